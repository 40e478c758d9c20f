"""A small real corpus and vocabularies for the tests of this room."""

import string

import pytest

from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.text.conftest import (  # noqa: F401 -- fixtures
    bert,
    real_pairs,
    real_vocabulary,
    toy_pairs,
    toy_vocabulary,
)


@pytest.fixture(scope="session")
def vocabulary() -> WordPieceVocabulary:
    """A piece for each letter that begins a word, from id 5 on, and for each that goes on."""
    letters = string.ascii_lowercase
    return WordPieceVocabulary([*SPECIAL_PIECES, *letters, *(f"##{x}" for x in letters)])


@pytest.fixture
def table(tmp_path):
    """Writes a table and gives its source."""

    def write(*lines, name="table.tsv"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return f"tsv:{tmp_path}/{name}"

    return write
