"""Fixtures with a toy corpus of consecutive numbers, each of which is one token.

The numbers in a row show which documents the row contains.
"""

import pathlib

import numpy as np
import pytest

from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.toys.corpora import config_of


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

    def make(out=out, vocabulary=vocabulary, processes=1, tokenized=None, **settings):
        config = config_of(texts, **settings)
        return prepare(config, vocabulary, out, processes=processes, tokenized=tokenized)

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
        CorpusSource(f"text-paragraphs:{texts}/b/*.txt", language="b"),
        CorpusSource(f"tsv:{tmp_path}/pairs.tsv", language=("b", "a")),
    )
