"""`pretrain evaluate`: a run's loss on the validation rows of any corpus."""

import argparse
import dataclasses

from experiments.pretrain.run import PretrainingRun, pretraining_objective
from experiments.pretrain.train import PretrainingValidation, check_corpus
from experiments.run import write_json
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import build_fit_model


def run(options: argparse.Namespace) -> None:
    """Evaluates, prints, and writes the scores."""
    opened = PretrainingRun.open(options.run)
    recipe = opened.recipe
    if (options.memory or options.clamp) and not recipe.has_memory:
        raise UserError(
            f"--memory, --clamp: {opened.path} was trained without a memory; leave them out"
        )
    corpus = PretrainingCorpus.open(options.corpus)
    check_vocabulary(opened.vocabulary.hash, corpus.vocabulary, str(opened.path))
    checkpoint = opened.checkpoint(options.checkpoint)
    lengths = options.memory or [recipe.memory_length]
    if recipe.has_memory:
        if min(lengths) < 1:
            raise UserError(f"--memory {min(lengths)}: give 1 or more")
        # Segments may have any length: the memory holds the text before them.
        recipe = recipe.changed(corpus=corpus.config)
    check_corpus(recipe, corpus, "paired")
    languages = recipe.corpus.languages
    if languages != corpus.config.languages:
        raise UserError(
            f"{corpus.folder} is in {', '.join(corpus.config.languages) or 'no named language'}, "
            f"{opened.path} was trained on {', '.join(languages) or 'none'}: give a corpus of the "
            "same languages in that order"
        )
    if options.clamp is not None:
        changed = {**dict(recipe.model_options), "clamp_length": options.clamp}
        recipe = recipe.changed(model_options=tuple(sorted(changed.items())))
    records = []
    for memory_length in lengths:
        chosen = recipe.changed(validation_batches=None, memory_length=memory_length)
        with options.devices.scope():
            network = dataclasses.replace(opened, recipe=chosen).load_network(checkpoint)
            model = build_fit_model(network, pretraining_objective(chosen), chosen.training)
        metrics = PretrainingValidation(chosen, corpus)(model, 0)
        memory = {}
        if recipe.has_memory:
            memory = {"memory": memory_length, "clamp": options.clamp}
            print(f"{'memory':24} {memory_length}")
        for name, value in metrics.items():
            print(f"{name:24} {value:.4f}")
        records.append(
            {
                "run": str(opened.path),
                "checkpoint": checkpoint.name,
                "corpus": str(options.corpus),
                "fingerprint": corpus.fingerprint,
                "rows": corpus.rows("validation"),
                **memory,
                **metrics,
            }
        )
    ending = "".join(f"-{length}" for length in ["memory", *lengths]) if recipe.has_memory else ""
    name = f"{corpus.fingerprint[:8]}-{checkpoint.name}{ending}.json"
    path = storage.as_path(options.output) if options.output else opened.path / "scores" / name
    write_json(path, records if len(records) > 1 else records[0])
    print(f"scores: {path}")
