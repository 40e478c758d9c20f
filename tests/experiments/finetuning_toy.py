"""A task that a tiny encoder learns in seconds: praise or blame, told by one word."""

import pathlib

import numpy as np

from experiments.finetune.__main__ import main
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary

PRAISE, BLAME = ("good", "great", "fun"), ("bad", "awful", "dull")
FILLERS = ("film", "plot", "actor", "the", "was", "very")


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences and the names of their classes in SST-2."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        label = int(rng.integers(2))
        words = list(rng.choice(FILLERS, rng.integers(2, 6)))
        words.insert(rng.integers(len(words)), str(rng.choice(PRAISE if label else BLAME)))
        found.append((" ".join(words), ("negative", "positive")[label]))
    return found


def write_table(path: pathlib.Path, rows: list[tuple], header: str = "sentence\tlabel") -> None:
    """A `tsv:` file."""
    lines = [header, *("\t".join(map(str, row)) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_toy(folder: pathlib.Path) -> str:
    """The task's source; the folder gets its vocabulary too, in vocabulary/."""
    for split, count, seed in (("train", 240, 1), ("validation", 50, 2), ("test", 10, 3)):
        write_table(folder / f"{split}.tsv", sentences(count, seed))
    words = (*SPECIAL_PIECES, *PRAISE, *BLAME, *FILLERS)
    WordPieceVocabulary(words).save(folder / "vocabulary")
    return f"tsv:{folder}/{{split}}.tsv"


def toy_flags(
    folder: pathlib.Path, source: str | None = None, model: str = "bert_tiny", **settings
) -> list[str]:
    """From nothing to the task in 40 updates; settings by path, "__" for a dot."""
    chosen = {
        "batch_size": 16,
        "max_length": 16,
        "head_dropout": 0.0,
        "model.hidden_dim": 32,
        "model.feed_forward_dim": 96,
        "model.num_layers": 1,
        "model.max_length": 16,
        "model.initializer_range": 0.1,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "training.learning_rate": 0.01,
        "training.log_every": 10,
        "training.schedule": "constant",
        "training.max_steps": 40,
        "training.validate_every": 20,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    flags = ["--init", "none", "--model", model]
    flags += ["--vocabulary", str(folder / "vocabulary")]
    flags += ["--source", source or f"tsv:{folder}/{{split}}.tsv"]
    for name, value in chosen.items():
        flags += ["--set", f"{name}={value}"]
    return flags


def train_toy(folder: pathlib.Path, run: pathlib.Path, task: str = "sst2", **options) -> None:
    """Trains a run by the command line."""
    assert main(["train", task, str(run), *toy_flags(folder, **options)]) == 0
