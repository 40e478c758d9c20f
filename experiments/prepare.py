"""The command `prepare`, which prepares a corpus."""

import argparse
import functools

from experiments import registry
from macaron_tf.errors import needed
from macaron_tf.runs.pretraining import PretrainingRecipe, prepare_corpus


def run(options: argparse.Namespace) -> None:
    """Prepares a corpus, and prints the next command."""
    recipe = registry.load(options.recipe, PretrainingRecipe, options.set)
    writing = {"processes": options.processes}
    if options.beam:
        with needed("preparing a corpus with --beam"):
            from macaron_tf.data.corpus import beam
        writing["tokenized"] = functools.partial(beam.tokenized_mixture, options=options.beam)
    corpus = prepare_corpus(recipe, options.corpus, options.vocabulary, options.tfds, **writing)
    print(f"{options.corpus}: {corpus.summary()}")
    # The recipe of the run must say so, too.
    shape = ("data.sequence_length=", "data.pairs=")
    given = "".join(f" --set {text}" for text in options.set if text.startswith(shape))
    print(f"next: macaron train {options.recipe} RUN --corpus {options.corpus}{given}")
