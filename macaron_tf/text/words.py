"""Word-level text for ELMo: sentence and word splitting, character ids, word vocabularies."""

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text

from macaron_tf.errors import UserError, needed
from macaron_tf.text.base import PieceVocabulary, Vocabulary, lines_of
from macaron_tf.text.normalization import in_chunks

SENTENCE_START, SENTENCE_END = "<S>", "</S>"
# Byte n has the character id n + 1; 0 is padding.
_WORD_START, _WORD_END, _OF_SENTENCE_START, _OF_SENTENCE_END = range(257, 261)

# White space, and characters that form a word by themselves. RE2's `\s` lacks \v.
_SPACES = r"\s\v\x{85}\pZ"
_SPACE, _SINGLE_CHARACTER = f"[{_SPACES}]", rf"[^\pL\pM\pN{_SPACES}]"


def split_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Splits texts `(B,)` into words `(B, None)`, ragged.

    Words are separated by white space. Each character other than white space, letters, combining
    marks and numbers is a word by itself.
    """
    spaced = tf.strings.regex_replace(texts, f"{_SPACE}+", " ")
    spaced = tf.strings.regex_replace(spaced, f"({_SINGLE_CHARACTER})", r" \1 ")
    return tf.strings.split(spaced)


def with_ends(words: tf.RaggedTensor) -> tf.RaggedTensor:
    """Adds "<S>" before and "</S>" after the words of each sentence `(B, None)`."""
    count = words.nrows()
    start, end = (tf.fill([count, 1], mark) for mark in (SENTENCE_START, SENTENCE_END))
    return tf.concat([start, words, end], axis=1)


def character_ids(words: tf.Tensor, width: int) -> tf.Tensor:
    """Encodes each word as character ids, one for each UTF-8 byte, as ELMo does.

    Args:
        words: `(...)` strings. An empty string is padding. The sentence boundaries "<S>" and "</S>"
            get a single character id each.
        width: C, the number of ids per word. A word of more than C - 2 bytes is truncated.

    Returns:
        `(..., C)` int32: the start-of-word id, each byte plus 1, the end-of-word id, then zeros. An
        empty string gives only zeros.
    """
    flat = tf.reshape(words, [-1])  # (...) -> (N,)
    truncated = tf.strings.substr(flat, 0, width - 2)
    # decode_raw pads with zeros, which become ones here; the last tf.where replaces them.
    ids = tf.cast(tf.io.decode_raw(truncated, tf.uint8, fixed_length=width - 2), tf.int32) + 1
    length = tf.strings.length(truncated)[:, None]  # (N, 1)
    marks = {SENTENCE_START: _OF_SENTENCE_START, SENTENCE_END: _OF_SENTENCE_END}
    for mark, character in marks.items():
        is_mark = (flat == mark)[:, None]
        ids = tf.where(is_mark, character, ids)
        length = tf.where(is_mark, 1, length)
    column = tf.range(width)[None]  # (1, C)
    ids = tf.pad(ids, [[0, 0], [1, 1]])  # (N, C - 2) -> (N, C)
    ids = tf.where(column == 0, _WORD_START, tf.where(column == length + 1, _WORD_END, ids))
    ids = tf.where((column <= length + 1) & (flat != "")[:, None], ids, 0)
    return tf.reshape(ids, tf.concat([tf.shape(words), [width]], axis=0))


SPLITTERS = ("tensorflow_text", "blingfire")
# Maximum number of characters in a line; sentence splitters are slow beyond it.
_MAX_LINE_LENGTH = 1 << 16


def cut_lines(text: str, max_length: int = _MAX_LINE_LENGTH) -> list[str]:
    """Splits a text into stripped, non-empty lines of at most `max_length` characters.

    A longer line is split at its last possible space or, without one, after `max_length`
    characters.
    """
    lines = []
    for line in text.split("\n"):
        line = line.strip()
        start = 0
        while len(line) - start > max_length:
            space = line.rfind(" ", start + 1, start + max_length + 1)
            end = space if space > 0 else start + max_length
            lines.append(line[start:end].strip())
            start = end + (space > 0)
        lines.append(line[start:].strip())
    return [line for line in lines if line]


def split_sentences(lines: Sequence[str], splitter: str = "tensorflow_text") -> list[list[str]]:
    """Splits lines into stripped, non-empty sentences.

    `"tensorflow_text"` splits after every ".", "?" and "!", even in "Mr. Smith" and "3.5", and puts
    a closing quotation mark into the next sentence. It processes 2.2 MB per second. The optional
    package `"blingfire"` handles abbreviations, numbers and quotation marks, and processes 9.7 MB
    per second, but does not split lower-cased text.
    """
    if splitter == "blingfire":
        with needed("the sentence splitter blingfire", "blingfire, or choose tensorflow_text"):
            from blingfire import text_to_sentences
        clean = (line.encode("utf-8", "replace").decode() for line in lines)
        sentences = [text_to_sentences(line).split("\n") for line in clean]
    else:
        raw = [line.encode("utf-8", "replace") for line in lines]
        with tf.device("CPU"):
            breaker = tensorflow_text.StateBasedSentenceBreaker()
            rows = breaker.break_sentences(tf.constant(raw, tf.string)).to_list() if raw else []
        sentences = [[sentence.decode("utf-8", "replace") for sentence in row] for row in rows]
    return [[text for text in map(str.strip, row) if text] for row in sentences]


UNKNOWN = "<UNK>"
_SPECIAL = (UNKNOWN, SENTENCE_START, SENTENCE_END)
_CHUNK = 256  # number of documents to process at once


@dataclasses.dataclass(frozen=True)
class WordVocabulary(Vocabulary):
    """Word-level output vocabulary of a language model.

    The first words are "<UNK>", "<S>" and "</S>". The other words follow in order of decreasing
    frequency.
    """

    kind = "words"
    contents_name = "words.txt"

    words: tuple[str, ...]

    @property
    def size(self) -> int:
        """V, the number of words, which is not rounded up to a multiple of 8."""
        return len(self.words)

    pieces = size

    def contents(self) -> bytes:
        return ("\n".join(self.words) + "\n").encode()

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict[str, Any]) -> "WordVocabulary":
        return cls(tuple(lines_of(contents)))

    def index(self, words: Sequence[str]) -> tuple[list[str], np.ndarray]:
        """Returns the distinct words of a text, and the index of each of its N words among them.

        All words of the vocabulary come first, and then the unknown words of the text. A word whose
        index is V or more is therefore unknown. The indices are `(N,)` int32.
        """
        types = {word: token_id for token_id, word in enumerate(self.words)}
        ids = np.array([types.setdefault(word, len(types)) for word in words], np.int32)
        return list(types), ids


def read_words(documents: Iterable[str]) -> list[list[str]]:
    """Splits documents into words, with "<S>" before and "</S>" after each sentence.

    A line end also ends a sentence.
    """
    documents_words = []
    for chunk in in_chunks(documents, _CHUNK):
        lines = [text.split("\n") for text in chunk]
        sentences = iter(split_sentences([line for text in lines for line in text]))
        for text in lines:
            text_sentences = [sentence for _ in text for sentence in next(sentences)]
            with tf.device("CPU"):
                rows = split_words(tf.constant(text_sentences, tf.string)).to_list()
            words = [[word.decode("utf-8", "replace") for word in row] for row in rows]
            documents_words.append(
                [word for row in words for word in (SENTENCE_START, *row, SENTENCE_END)]
            )
    return documents_words


def count_words(texts: Iterable[Sequence[str]], size: int) -> WordVocabulary:
    """Builds a vocabulary of the most frequent words, and prints the share of unknown words.

    Words with equal counts are in alphabetical order. `size` includes "<UNK>", "<S>" and "</S>".
    """
    counts = collections.Counter(itertools.chain.from_iterable(texts))
    for word in _SPECIAL:
        counts.pop(word, None)
    if not counts:
        raise UserError("the sources contain no words: give other sources")
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    most_frequent = ordered[: size - len(_SPECIAL)]
    unknown = counts.total() - sum(counts[word] for word in most_frequent)
    share = f"{unknown / counts.total():.3%}"
    print(f"unknown to the vocabulary: {share} of the words in the text", flush=True)
    return WordVocabulary((*_SPECIAL, *most_frequent))


@dataclasses.dataclass(eq=False, repr=False)
class CharacterWords(PieceVocabulary):
    """Open vocabulary of a model that reads words as characters, such as ELMo.

    Each distinct word gets the next free id at the first occurrence of the word, so no word is
    unknown. Batches contain these word ids, as with other vocabularies. The row of a word id in
    `characters` contains the `max_characters` character ids that the model reads. Each TensorFlow
    graph assigns ids to its words independently. `empty_copy` returns a copy without words. If each
    dataset uses such a copy, the word ids of a dataset depend only on its own texts.
    """

    kind = "character_words"
    contents_name = "characters.txt"
    pieces = size = 2**31 - 1

    max_characters: int = 50

    def __post_init__(self):
        words = ("", *_SPECIAL)  # in the order of the special ids
        self._word_ids = {word.encode(): token_id for token_id, word in enumerate(words)}
        # The words that each graph encodes, as tensors; their ids follow the ids of eager words.
        self._in_graphs = weakref.WeakKeyDictionary()

    def empty_copy(self) -> "CharacterWords":
        """Returns a copy that contains only the special words."""
        return CharacterWords(self.max_characters)

    @property
    def characters(self) -> np.ndarray:
        """Character ids `(words, C)` int32 of all words so far, in the order of the word ids."""
        return character_ids(tf.constant(list(self._word_ids)), self.max_characters).numpy()

    def characters_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Looks up the character ids `(..., C)` int32 of word ids `(...)`."""
        words = tf.constant([*self._word_ids])
        if not tf.executing_eagerly():
            words = tf.concat([words, *self._graph_words()], axis=0)
        return character_ids(tf.gather(words, ids), self.max_characters)

    def _graph_words(self) -> list[tf.Tensor]:
        return self._in_graphs.setdefault(tf.compat.v1.get_default_graph(), [])

    def contents(self) -> bytes:
        return b""

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict[str, Any]) -> "CharacterWords":
        return cls(**settings)

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        # `regex_split_with_offsets` drops the text after a NUL.
        return tf.strings.regex_replace(strings, r"\x00", "\ufffd")

    def tokenize(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Splits lines `(B,)` like `split_words`, and returns the word ids `(B, None)` int32."""
        return self.tokenize_with_offsets(strings)[0]

    def tokenize_with_offsets(self, strings: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns the ids of `tokenize` and the byte offsets where each word starts and ends."""
        words, starts, ends = tensorflow_text.regex_split_with_offsets(
            strings, f"{_SPACE}+|{_SINGLE_CHARACTER}", _SINGLE_CHARACTER
        )
        word_ids = self._word_ids
        if not tf.executing_eagerly():
            graph_words = self._graph_words()
            first_id = len(word_ids) + sum(map(tf.size, graph_words))
            distinct, indices = tf.unique(words.values)
            graph_words.append(distinct)
            return words.with_values(first_id + indices), starts, ends
        ids = [word_ids.setdefault(word, len(word_ids)) for word in words.values.numpy()]
        return words.with_values(tf.constant(ids, tf.int32)), starts, ends

    def piece_bytes(self, token_id: int) -> bytes:
        return list(self._word_ids)[token_id]
