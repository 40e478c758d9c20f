"""`pretrain evaluate`: a run's loss on the validation rows of any corpus."""

import argparse
import dataclasses
import json

from experiments.pretraining.run import PretrainingRun
from experiments.pretraining.train import (
    MaskedLanguageValidation,
    check_corpus,
    masked_language_objective,
)
from macaron_tf.data.pretraining_corpus import PretrainingCorpus
from macaron_tf.data.storage import write_aside
from macaron_tf.data.vocabulary import check_vocabulary
from macaron_tf.training import build_fit_model


def run(options: argparse.Namespace) -> None:
    """Evaluates, prints, and writes the scores."""
    opened = PretrainingRun.open(options.run)
    corpus = PretrainingCorpus.open(options.corpus)
    check_vocabulary(opened.vocabulary.hash, corpus.vocabulary, str(opened.path))
    checkpoint = opened.checkpoint(options.checkpoint)
    check_corpus(opened.recipe, corpus)
    # All rows, however many the run looked at while it trained.
    recipe = dataclasses.replace(opened.recipe, validation_batches=None)
    with options.devices.scope():
        network = opened.load_network(checkpoint)
        model = build_fit_model(network, masked_language_objective(recipe), recipe.training)
    metrics = MaskedLanguageValidation(recipe, corpus)(model, 0)
    for name, value in metrics.items():
        print(f"{name:24} {value:.4f}")
    record = {
        "run": str(opened.path),
        "checkpoint": checkpoint.name,
        "corpus": str(options.corpus),
        "rows": corpus.rows("validation"),
        **metrics,
    }
    path = opened.path / "scores" / f"{corpus.fingerprint[:8]}-{checkpoint.name}.json"
    write_aside(path, (json.dumps(record, indent=1) + "\n").encode())
    print(f"scores: {path}")
