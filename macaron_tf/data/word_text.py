"""Running text as the numbers of its words, for models that predict whole words."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data import storage
from macaron_tf.data.characters import SENTENCE_END, SENTENCE_START, character_ids, split_words
from macaron_tf.data.sentences import split_sentences
from macaron_tf.errors import UserError

UNKNOWN = "<UNK>"
_SPECIAL = (UNKNOWN, SENTENCE_START, SENTENCE_END)
_FILE = "words.txt"
_CHUNK = 256  # documents at once


@dataclasses.dataclass(frozen=True)
class WordVocabulary:
    """The words that a model predicts: three special ones, then the most frequent first.

    Attributes:
        words: all of them; a word's number is its place.
    """

    words: tuple[str, ...]

    @property
    def size(self) -> int:
        """V."""
        return len(self.words)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of the words, which a checkpoint keeps."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def save(self, directory: str | os.PathLike) -> None:
        """Writes `words.txt`, a word a line.

        Raises:
            UserError: the folder cannot be written.
        """
        storage.as_path(directory).mkdir(parents=True, exist_ok=True)
        text = "\n".join(self.words) + "\n"
        storage.write_aside(storage.as_path(directory) / _FILE, text.encode())

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "WordVocabulary":
        """Reads what `save` wrote.

        Raises:
            UserError: the file cannot be read.
        """
        path = storage.as_path(directory) / _FILE
        try:
            text = path.read_bytes().decode()
        except (*storage.FILE_ERRORS, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}; restore it") from error
        return cls(tuple(text.removesuffix("\n").split("\n")))


@dataclasses.dataclass(frozen=True, eq=False)
class WordText:
    """A text of words, each of which has its characters and its number in a vocabulary.

    Attributes:
        types: the words there are, `WordVocabulary`'s first and in its order.
        ids: `(N,)` int32, the text: each word's place in `types`.
        vocab_size: V; words from there on are unknown to the vocabulary.
    """

    types: Sequence[str]
    ids: np.ndarray
    vocab_size: int

    def characters(self, places: int) -> np.ndarray:
        """The types' characters `(types, places)` int32, see `character_ids`."""
        return character_ids(tf.constant(list(self.types)), places).numpy()

    def targets(self, ids: np.ndarray) -> np.ndarray:
        """Numbers in the vocabulary of words by their place in `types`; 0 is the unknown one."""
        return np.where(ids < self.vocab_size, ids, 0)


def read_words(documents: Iterable[str]) -> list[list[str]]:
    """The words of each document, every sentence between its two marks.

    Args:
        documents: texts; a line's end is a sentence's.
    """
    found = []
    documents = iter(documents)
    while chunk := list(itertools.islice(documents, _CHUNK)):
        lines = [text.split("\n") for text in chunk]
        sentences = iter(split_sentences([line for text in lines for line in text]))
        for text in lines:
            mine = [sentence for _ in text for sentence in next(sentences)]
            with tf.device("CPU"):
                rows = split_words(tf.constant(mine, tf.string)).to_list() if mine else []
            words = [[word.decode("utf-8", "replace") for word in row] for row in rows]
            found.append([word for row in words for word in (SENTENCE_START, *row, SENTENCE_END)])
    return found


def count_words(texts: Iterable[Sequence[str]], size: int) -> WordVocabulary:
    """The most frequent words; of equally frequent ones the first by the alphabet.

    Args:
        texts: words.
        size: V, the special ones included.

    Raises:
        UserError: there is no word.
    """
    counts = collections.Counter(itertools.chain.from_iterable(texts))
    for word in _SPECIAL:
        counts.pop(word, None)
    if not counts:
        raise UserError("the sources hold no word: give others")
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return WordVocabulary((*_SPECIAL, *ordered[: size - len(_SPECIAL)]))


def as_word_text(words: Sequence[str], vocabulary: WordVocabulary) -> WordText:
    """Words as numbers.

    Args:
        words: the text.
        vocabulary: what is predicted of it.
    """
    numbers = {word: number for number, word in enumerate(vocabulary.words)}
    ids = np.fromiter(
        (numbers.setdefault(word, len(numbers)) for word in words), np.int32, len(words)
    )
    return WordText(list(numbers), ids, vocabulary.size)
