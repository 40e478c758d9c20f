"""The corpus of numbers as fixtures."""

import pathlib

import pytest

from macaron_tf.data.corpus.writing import prepare
from macaron_tf.text.wordpiece import WordPieceVocabulary
from tests.data.corpus.number_corpus import config_of, number_vocabulary, write_numbers


@pytest.fixture(scope="session")
def vocabulary() -> WordPieceVocabulary:
    """Of the corpus of numbers; a file of tests with another one has its own fixture."""
    return number_vocabulary()


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> pathlib.Path:
    """The documents of the corpus of numbers."""
    return write_numbers(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def out(tmp_path) -> pathlib.Path:
    """The folder where `make` prepares a corpus."""
    return tmp_path / "out"


@pytest.fixture
def make(texts, vocabulary, out):
    """Prepares the corpus of numbers with other settings."""

    def make(out=out, vocabulary=vocabulary, **settings):
        return prepare(config_of(texts, **settings), vocabulary, out)

    return make
