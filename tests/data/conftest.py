"""A small real corpus and vocabulary for the tests of this room."""

import pathlib

import pytest

from macaron_tf.text.wordpiece import WordPieceVocabulary
from tests.data.number_corpus import number_vocabulary, write_numbers
from tests.text.conftest import (  # noqa: F401 -- fixtures
    real_pairs,
    real_vocabulary,
    toy_pairs,
    toy_vocabulary,
)


@pytest.fixture(scope="session")
def vocabulary() -> WordPieceVocabulary:
    """Of the corpus of numbers; a file of tests with another one has its own fixture."""
    return number_vocabulary()


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> pathlib.Path:
    """The documents of the corpus of numbers."""
    return write_numbers(tmp_path_factory.mktemp("texts"))
