"""Sentences that a tiny encoder learns to compare in seconds: praise is near praise."""

import pathlib

import numpy as np

from experiments.embed.__main__ import main
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.experiments.finetuning_toy import BLAME, FILLERS, PRAISE, sentences, write_table

HEADERS = {
    "stsb": "sentence1\tsentence2\tlabel",
    "mrpc": "sentence1\tsentence2\tlabel",
    "triplets": "anchor\tpositive\tnegative",
}


def examples(task: str, count: int, seed: int) -> list[tuple]:
    """Rows of a task's table."""
    rng, rows = np.random.default_rng(seed), []
    pool = sentences(200, seed)
    while len(rows) < count:
        (a, kind), (b, other) = (pool[i] for i in rng.integers(len(pool), size=2))
        same = kind == other
        if task == "stsb":
            rows.append((a, b, 5.0 if same else 0.0))
        elif task == "mrpc":
            rows.append((a, b, ("not_equivalent", "equivalent")[same]))
        elif same:
            negatives = [text for text, label in pool if label != kind]
            rows.append((a, b, negatives[rng.integers(len(negatives))]))
    return rows


def write_embedding_toy(folder: pathlib.Path) -> None:
    """A table a split of each task, and a vocabulary, in vocabulary/."""
    for task, header in HEADERS.items():
        for split, count, seed in (("train", 240, 1), ("validation", 60, 2)):
            write_table(folder / f"{task}-{split}.tsv", examples(task, count, seed), header)
    WordPieceVocabulary((*SPECIAL_PIECES, *PRAISE, *BLAME, *FILLERS)).save(folder / "vocabulary")


def toy_flags(folder: pathlib.Path, task: str, model: str = "bert_tiny", **settings) -> list[str]:
    """From nothing to the task in 40 updates; settings by path, "__" for a dot."""
    chosen = {
        "max_length": 16,
        "model.hidden_dim": 32,
        "model.feed_forward_dim": 96,
        "model.num_layers": 1,
        "model.max_length": 16,
        "model.initializer_range": 0.1,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "training.learning_rate": 0.005,
        "training.log_every": 10,
        "training.schedule": "constant",
        "training.max_steps": 40,
        "training.validate_every": 20,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    flags = ["--init", "none", "--model", model, "--vocabulary", str(folder / "vocabulary")]
    flags += ["--source", f"tsv:{folder}/{task}-{{split}}.tsv"]
    for name, value in chosen.items():
        flags += ["--set", f"{name}={value}"]
    return flags


def train_toy(folder: pathlib.Path, run: pathlib.Path, task: str = "stsb", **options) -> None:
    """Trains a run by the command line."""
    assert main(["train", task, str(run), *toy_flags(folder, task, **options)]) == 0
