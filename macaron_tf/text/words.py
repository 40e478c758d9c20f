"""Words as rows of characters, which are bytes: in the graph, so that a served model has it too."""

import codecs
import collections
import dataclasses
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.special_ids import PAD
from macaron_tf.text.sentences import split_sentences

SENTENCE_START, SENTENCE_END = "<S>", "</S>"
# 0 stands behind a word's end, byte n is n + 1.
_WORD_START, _WORD_END, _OF_SENTENCE_START, _OF_SENTENCE_END = range(257, 261)


def split_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Texts cut at white space and around every character that is no letter, mark or digit.

    Args:
        texts: `(B,)` strings, UTF-8.

    Returns:
        `(B, words)` strings.
    """
    apart = tf.strings.regex_replace(texts, r"([^\p{L}\p{M}\p{N}\s])", r" \1 ")
    return tf.strings.split(apart)


def with_ends(words: tf.RaggedTensor) -> tf.RaggedTensor:
    """Sentences `(B, words)` between the words that mark their two ends."""
    count = words.nrows()
    start, end = (tf.fill([count, 1], mark) for mark in (SENTENCE_START, SENTENCE_END))
    return tf.concat([start, words, end], axis=1)


def character_ids(words: tf.Tensor, places: int) -> tf.Tensor:
    """The characters of words between the marks of a word's two ends.

    Args:
        words: `(...)` strings; the empty one is padding. The two marks of a sentence's ends are
            one character each.
        places: C; a word of more than C - 2 bytes is cut.

    Returns:
        `(..., C)` int32: the mark of the beginning, the bytes plus 1, the mark of the end, zeros;
        padding is all zeros.
    """
    flat = tf.reshape(words, [-1])  # (...) -> (N,)
    kept = tf.strings.substr(flat, 0, places - 2)
    # decode_raw puts zeros behind the bytes: ones, once the bytes are counted from 1.
    ids = tf.cast(tf.io.decode_raw(kept, tf.uint8, fixed_length=places - 2), tf.int32) + 1
    length = tf.strings.length(kept)[:, None]  # (N, 1)
    for mark, character in (
        (SENTENCE_START, _OF_SENTENCE_START),
        (SENTENCE_END, _OF_SENTENCE_END),
    ):
        is_mark = (flat == mark)[:, None]
        ids = tf.where(is_mark, character, ids)
        length = tf.where(is_mark, 1, length)
    place = tf.range(places)[None]  # (1, C)
    ids = tf.pad(ids, [[0, 0], [1, 1]])  # (N, C - 2) -> (N, C)
    ids = tf.where(place == 0, _WORD_START, tf.where(place == length + 1, _WORD_END, ids))
    ids = tf.where((place <= length + 1) & (flat != "")[:, None], ids, PAD)
    return tf.reshape(ids, tf.concat([tf.shape(words), [places]], axis=0))


# Rows of running text have no line ends: documents are cut at them. RE2 reads these alike.
_LINE_ENDS, _TRAILING = r"[ \t\r]*\n[ \t\r\n]*", r"[ \t\r\n]+\z"


def as_prompt(text: str) -> str:
    """A text as the rows of a corpus hold it: a line's end is a space.

    White space at its end is left out: the word that follows brings its own.
    """
    return re.sub(_LINE_ENDS, " ", text.rstrip(" \t\r\n"))


def as_prompts(texts: tf.Tensor) -> tf.Tensor:
    """`as_prompt` in-graph, `(B,)` strings to `(B,)` strings."""
    texts = tf.strings.regex_replace(texts, _TRAILING, "")
    return tf.strings.regex_replace(texts, _LINE_ENDS, " ")


def spelled(spellings: Sequence[bytes], ids: Iterable[int], spaces_after: bool = False) -> str:
    """The text of some ids; bytes that make no character become U+FFFD.

    Args:
        spellings: of a vocabulary, see `PieceVocabulary.spellings`.
        ids: from 0 to V - 1.
        spaces_after: of the vocabulary; the text begins with a space all the same, and ends with
            none.
    """
    text = b"".join(spellings[int(i)] for i in ids)
    if spaces_after and text:
        text = b" " + text.removesuffix(b" ")
    return text.decode("utf-8", "replace")


def spelled_in_graph(
    spellings: Sequence[bytes], ids: tf.Tensor, spaces_after: bool = False
) -> tf.Tensor:
    """`spelled` in a graph.

    Args:
        spellings, spaces_after: as there.
        ids: (B, N) int32.

    Returns:
        (B,) strings of valid UTF-8.
    """
    joined = tf.strings.reduce_join(tf.gather(tf.constant(list(spellings)), ids), axis=-1)
    if spaces_after:
        joined = tf.strings.regex_replace(joined, r" \z", "")
        joined = tf.where(joined == "", "", tf.strings.join([" ", joined]))
    return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", errors="replace")


class SpelledStream:
    """`spelled`, an id at a time: a character comes out once its last byte is there.

    Args:
        spellings, spaces_after: as for `spelled`.
    """

    def __init__(self, spellings: Sequence[bytes], spaces_after: bool = False):
        self.spellings = spellings
        self.spaces_after = spaces_after
        self._space = b" "  # before the next piece, where they stand after words
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """What this id makes certain of the text; it may be empty."""
        piece = self.spellings[int(token)]
        if self.spaces_after and piece:
            before, self._space = self._space, piece[-1:] if piece.endswith(b" ") else b""
            piece = before + piece.removesuffix(b" ")
        return self._decoder.decode(piece)

    def end(self) -> str:
        """What is left at the end: U+FFFD where a character is not whole."""
        return self._decoder.decode(b"", final=True)


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

    def trackables(self) -> list:
        """Nothing: words are cut and numbered by stateless ops."""
        return []

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
