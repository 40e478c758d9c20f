"""`pretrain evaluate`: a run's loss on the validation rows of any corpus."""

import argparse
import dataclasses

from etils import epath

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
    if (options.memory or options.clamp) and not opened.recipe.has_memory:
        raise UserError(
            f"--memory, --clamp: {opened.path} was trained without a memory; leave them out"
        )
    corpus = PretrainingCorpus.open(options.corpus)
    check_vocabulary(opened.vocabulary.hash, corpus.vocabulary, str(opened.path))
    checkpoint = opened.checkpoint(options.checkpoint)
    if opened.recipe.has_memory:
        # Segments may have any length: the memory holds the text before them.
        recipe = dataclasses.replace(opened.recipe, corpus=corpus.config)
        opened = dataclasses.replace(opened, recipe=recipe)
    check_corpus(opened.recipe, corpus, "paired")
    languages = opened.recipe.corpus.languages
    if languages != corpus.config.languages:
        raise UserError(
            f"{corpus.folder} is in {', '.join(corpus.config.languages) or 'no named language'}, "
            f"{opened.path} was trained on {', '.join(languages) or 'none'}: give a corpus of the "
            "same languages in that order"
        )
    lengths = options.memory or [opened.recipe.memory_length]
    if opened.recipe.has_memory and min(lengths) < 1:
        raise UserError(f"--memory {min(lengths)}: give 1 or more")
    records = [
        _evaluate(_changed(opened, memory_length, options.clamp), checkpoint, corpus, options)
        for memory_length in lengths
    ]
    path = storage.as_path(options.output) if options.output else _place(opened, records)
    write_json(path, records if len(records) > 1 else records[0])
    print(f"scores: {path}")


def _place(opened: PretrainingRun, records: list[dict]) -> epath.Path:
    """The file in RUN/scores."""
    lengths = [str(record["memory"]) for record in records if "memory" in record]
    parts = [records[0]["fingerprint"][:8], records[0]["checkpoint"]]
    parts += ["memory", *lengths] if lengths else []
    return opened.path / "scores" / f"{'-'.join(parts)}.json"


def _changed(opened: PretrainingRun, memory_length: int, clamp: int | None) -> PretrainingRun:
    """The run with another memory, evaluated on all validation rows."""
    recipe = dataclasses.replace(
        opened.recipe, validation_batches=None, memory_length=memory_length
    )
    if clamp is not None:
        changed = {**dict(recipe.model_options), "clamp_length": clamp}
        recipe = dataclasses.replace(recipe, model_options=tuple(sorted(changed.items())))
    return dataclasses.replace(opened, recipe=recipe)


def _evaluate(
    opened: PretrainingRun, checkpoint, corpus: PretrainingCorpus, options: argparse.Namespace
) -> dict:
    """Prints and returns the scores with one memory."""
    recipe = opened.recipe
    with options.devices.scope():
        network = opened.load_network(checkpoint)
        model = build_fit_model(network, pretraining_objective(recipe), recipe.training)
    metrics = PretrainingValidation(recipe, corpus)(model, 0)
    memory = {}
    if recipe.has_memory:
        memory = {"memory": recipe.memory_length, "clamp": options.clamp}
        print(f"{'memory':24} {recipe.memory_length}")
    for name, value in metrics.items():
        print(f"{name:24} {value:.4f}")
    return {
        "run": str(opened.path),
        "checkpoint": checkpoint.name,
        "corpus": str(options.corpus),
        "fingerprint": corpus.fingerprint,
        "rows": corpus.rows("validation"),
        **memory,
        **metrics,
    }
