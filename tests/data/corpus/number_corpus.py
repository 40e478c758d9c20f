"""A corpus of numbers, each a piece of its own: every id of a row tells where it comes from."""

import pathlib

import numpy as np

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.text.wordpiece import WordPieceVocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def number_vocabulary() -> WordPieceVocabulary:
    """A piece for each number up to 999 and the full stop."""
    return WordPieceVocabulary([*SPECIAL, *map(str, range(1000)), "."])


def write_numbers(folder: pathlib.Path) -> pathlib.Path:
    """Two folders in one: 12 documents of 0 to 599 in sentences of 5, 3 of 600 to 749."""
    for name, first, documents in (("a", 0, 12), ("b", 600, 3)):
        (folder / name).mkdir()
        for document in range(documents):
            numbers = np.arange(50).reshape(10, 5) + first + 50 * document
            sentences = (" ".join(map(str, row)) + "." for row in numbers)
            (folder / name / f"{document:02d}.txt").write_text("\n".join(sentences))
    return folder


def config_of(texts: pathlib.Path, **settings) -> CorpusConfig:
    """A small corpus of the first folder's documents."""
    settings = {
        "sources": (f"text:{texts}/a/*.txt",),
        "sequence_length": 16,
        "validation_every": 10,
        "rows_per_shard": 12,
        **settings,
    }
    return CorpusConfig(**settings)


def weighted(texts: pathlib.Path, *weights: float) -> tuple[CorpusSource, CorpusSource]:
    """Both folders as sources."""
    a, b = (
        CorpusSource(f"text:{texts}/{name}/*.txt", weight=weight)
        for name, weight in zip("ab", weights, strict=True)
    )
    return a, b


def rows_of(corpus: PretrainingCorpus, split: str) -> np.ndarray:
    """(rows, L) token ids of a split, in the files' order."""
    dataset = corpus.dataset(split, 7, seed=None, repeat=False, drop_remainder=False)
    return np.concatenate([batch["token_ids"].numpy() for batch in dataset])


def numbers_of(corpus: PretrainingCorpus, rows: np.ndarray) -> list[int]:
    """The numbers in rows, in their order."""
    ids = rows[(rows >= len(SPECIAL)) & (rows < corpus.vocabulary.pieces - 1)]
    return (ids - len(SPECIAL)).tolist()


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """The bytes of a folder's files by name, but for the lock."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != ".lock"}
