"""Fixtures of the data tests: a toy vocabulary, and a function that writes tables."""

import string

import pytest

from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.toys.vocabularies import (  # noqa: F401  fixtures
    bert,
    toy_pairs,
    toy_vocabulary,
)


@pytest.fixture(scope="session")
def vocabulary() -> WordPieceVocabulary:
    """Returns a WordPiece vocabulary with a word-initial and a continuing piece for each letter.

    The word-initial pieces have the ids 5 to 30.
    """
    letters = string.ascii_lowercase
    return WordPieceVocabulary([*SPECIAL_PIECES, *letters, *(f"##{x}" for x in letters)])


@pytest.fixture
def table(tmp_path):
    """Returns `write(*lines, name=...)`, which writes a table and returns its `tsv:` source."""

    def write(*lines, name="table.tsv"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return f"tsv:{tmp_path}/{name}"

    return write
