"""Fixtures with a toy corpus of consecutive numbers, each of which is one token.

The numbers in a row show which documents the row contains.
"""

import pathlib
from collections.abc import Iterator

import numpy as np
import pytest

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary

BOTH = ("train", "validation")


def config_of(texts: pathlib.Path, weights=None, **settings) -> CorpusConfig:
    """Returns the configuration of a small corpus with rows of 16 tokens.

    The corpus reads folder "a" of `texts`. With `weights`, the corpus mixes folders "a" and "b"
    with these sampling weights. `settings` are further fields of `CorpusConfig`.
    """
    sources = (f"text:{texts}/a/*.txt",)
    if weights:
        folders = zip("ab", weights, strict=True)
        sources = tuple(CorpusSource(f"text:{texts}/{n}/*.txt", weight=w) for n, w in folders)
    shape = {"sequence_length": 16, "validation_every": 10, "rows_per_shard": 12}
    return CorpusConfig(**{"sources": sources, **shape, **settings})


def rows_of(corpus: PretrainingCorpus, *splits: str) -> np.ndarray:
    """Returns the token ids of `splits` (default: all splits) in file order: `(rows, L)`."""
    return np.stack([row["token_ids"] for row in each_row(corpus, *splits)])


def each_row(corpus: PretrainingCorpus, *splits: str) -> Iterator[dict[str, np.ndarray]]:
    """Yields the features of each row in `splits` (default: all splits), in file order."""
    for split in splits or BOTH:
        dataset = corpus.dataset(split, 7, seed=None, repeat=False, drop_remainder=False)
        yield from dataset.unbatch().as_numpy_iterator()


def numbers_of(corpus: PretrainingCorpus, rows: np.ndarray) -> list[int]:
    """Returns the numbers in `rows` in order; special tokens and full stops are skipped."""
    ids = rows[(rows >= len(SPECIAL_PIECES)) & (rows < corpus.vocabulary.pieces - 1)]
    return (ids - len(SPECIAL_PIECES)).tolist()


def halves_of(corpus: PretrainingCorpus, ids: np.ndarray) -> tuple[list[int], list[int]]:
    """Returns the numbers of the first and of the second segment in a sentence-pair row."""
    first, _ = np.flatnonzero(ids == 3)
    return numbers_of(corpus, ids[:first]), numbers_of(corpus, ids[first:])


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns a dict mapping file names in `folder` to contents; the lock file is left out."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != ".lock"}


@pytest.fixture(scope="session")
def vocabulary() -> WordPieceVocabulary:
    """Returns a vocabulary with a piece for each number up to 999 and for the full stop."""
    return WordPieceVocabulary([*SPECIAL_PIECES, *map(str, range(1000)), "."])


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> pathlib.Path:
    """Writes the corpus into folders "a" and "b".

    Folder "a" holds the numbers 0 to 599 in 12 documents, and folder "b" holds the numbers 600 to
    749 in 3 documents. A sentence has 5 numbers.
    """
    folder = tmp_path_factory.mktemp("texts")
    for name, first, documents in (("a", 0, 12), ("b", 600, 3)):
        (folder / name).mkdir()
        for document in range(documents):
            numbers = np.arange(50).reshape(10, 5) + first + 50 * document
            sentences = (" ".join(map(str, row)) + "." for row in numbers)
            (folder / name / f"{document:02d}.txt").write_text("\n".join(sentences))
    return folder


@pytest.fixture
def out(tmp_path) -> pathlib.Path:
    """Returns the folder in which `make` writes a corpus by default."""
    return tmp_path / "out"


@pytest.fixture
def make(texts, vocabulary, out):
    """Returns `make(**settings)`, which prepares and returns the number corpus."""

    def make(out=out, vocabulary=vocabulary, processes=1, write=None, **settings):
        config = config_of(texts, **settings)
        return prepare(config, vocabulary, out, processes=processes, write=write)

    return make


@pytest.fixture
def sources(texts, tmp_path) -> tuple[CorpusSource, ...]:
    """Returns corpus sources in two languages, and a source of translation pairs.

    Numbers below 600 are language "a", and numbers from 600 on are language "b". The third source
    has 40 translation pairs. Pair 7 is too long for a row.
    """
    pairs = [(f"{n} {n + 1}", f"{n + 600}") for n in range(40)]
    pairs[7] = (" ".join(["7"] * 20), "607")
    (tmp_path / "pairs.tsv").write_text("\n".join("\t".join(pair) for pair in pairs))
    return (
        CorpusSource(f"text:{texts}/a/*.txt", language="a"),
        CorpusSource(f"text:{texts}/b/*.txt", language="b"),
        CorpusSource(f"tsv:{tmp_path}/pairs.tsv", language=("b", "a")),
    )
