"""A toy language that a tiny encoder learns in seconds: each document repeats one letter."""

import pathlib

import numpy as np

from experiments.commands import main

LETTERS = "abcdefghij"


def write_documents(folder: pathlib.Path, count: int = 60, seed: int = 0) -> str:
    """Writes documents of sentences such as "c c c c ."; returns their `text:` source.

    Each document repeats one letter.
    """
    rng = np.random.default_rng(seed)
    for index in range(count):
        letter = LETTERS[rng.integers(len(LETTERS))]
        sentences = [" ".join(letter * rng.integers(3, 9)) + " ." for _ in range(15)]
        (folder / f"{index:03d}.txt").write_text("\n".join(sentences))
    return f"text:{folder}/*.txt"


def toy_settings(source: str, steps: int = 40, recipe: str = "") -> list[str]:
    """Returns settings that shrink a tiny recipe, so that it trains on toy documents in seconds.

    Args:
        source: source of the documents.
        steps: number of updates.
        recipe: name of the recipe; required only for `t5_tiny` and `bart_tiny`.
    """
    settings = {
        "data.sources": source,
        "data.sequence_length": 16,
        "data.validation_every": 20,
        "data.vocabulary.size": 27,
        "data.batch_size": 16,
        "data.validation_batches": None,
        "model.hidden_dim": 32,
        "model.feed_forward_dim": 96,
        "model.num_heads": 2,
        "model.num_layers": 1,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "training.max_steps": steps,
        "model.initializer_range": 0.1,
        "training.learning_rate": 0.005,
        "training.warmup_steps": min(10, steps // 2),
        "training.validate_every": 20,
        "training.save_every_steps": 20,
        "training.log_every": 10,
    }
    if recipe:
        del settings["model.num_layers"]
        settings |= {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    if recipe == "t5_tiny":  # the initial scale of T5's matrices depends on their fan-in
        del settings["model.initializer_range"]
    return [f"{name}={value}" for name, value in settings.items()]


def flags(settings: list[str]) -> list[str]:
    """Returns each setting after a `--set` flag."""
    return [argument for setting in settings for argument in ("--set", setting)]


def prepare(recipe: str, corpus: str, settings: list[str]) -> str:
    """Prepares a corpus by the command line; returns its folder."""
    assert main(["prepare", recipe, corpus, *flags(settings)]) == 0
    return corpus


def train(recipe: str, run, corpus: str, settings: list[str]) -> int:
    """Runs `train` on a corpus; returns the exit status."""
    return main(["train", recipe, str(run), "--corpus", corpus, *flags(settings)])
