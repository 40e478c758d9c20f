"""`pretrain evaluate`: a run's loss on the validation rows of any corpus."""

import argparse
import dataclasses
import json

from experiments.pretraining.learning import pretraining_objective
from experiments.pretraining.run import PretrainingRun
from experiments.pretraining.train import PretrainingValidation, check_corpus
from macaron_tf.data import storage
from macaron_tf.data.pretraining_corpus import PretrainingCorpus
from macaron_tf.data.storage import write_aside
from macaron_tf.data.vocabulary import check_vocabulary
from macaron_tf.errors import UserError
from macaron_tf.training import build_fit_model


def run(options: argparse.Namespace) -> None:
    """Evaluates, prints, and writes the scores."""
    opened = PretrainingRun.open(options.run)
    corpus = PretrainingCorpus.open(options.corpus)
    check_vocabulary(opened.vocabulary.hash, corpus.vocabulary, str(opened.path))
    checkpoint = opened.checkpoint(options.checkpoint)
    check_corpus(opened.recipe, corpus, "paired")
    languages = opened.recipe.corpus.languages
    if languages != corpus.config.languages:
        raise UserError(
            f"{corpus.folder} is in {', '.join(corpus.config.languages) or 'no named language'}, "
            f"{opened.path} was trained on {', '.join(languages) or 'none'}: give a corpus of the "
            "same languages in that order"
        )
    # All rows, however many the run looked at while it trained.
    recipe = dataclasses.replace(opened.recipe, validation_batches=None)
    with options.devices.scope():
        network = opened.load_network(checkpoint)
        model = build_fit_model(network, pretraining_objective(recipe), recipe.training)
    metrics = PretrainingValidation(recipe, corpus)(model, 0)
    for name, value in metrics.items():
        print(f"{name:24} {value:.4f}")
    record = {
        "run": str(opened.path),
        "checkpoint": checkpoint.name,
        "corpus": str(options.corpus),
        "rows": corpus.rows("validation"),
        **metrics,
    }
    name = f"{corpus.fingerprint[:8]}-{checkpoint.name}.json"
    path = storage.as_path(options.output) if options.output else opened.path / "scores" / name
    write_aside(path, (json.dumps(record, indent=1) + "\n").encode())
    print(f"scores: {path}")
