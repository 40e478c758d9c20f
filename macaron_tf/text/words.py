"""Words of running text: sentences, words, their characters, and a vocabulary of words (ELMo)."""

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
from macaron_tf.special_ids import BOS, EOS, PAD, UNK
from macaron_tf.text.base import PieceVocabulary, Vocabulary
from macaron_tf.text.normalization import in_chunks

SENTENCE_START, SENTENCE_END = "<S>", "</S>"
# 0 follows a word's end, byte n is n + 1.
_WORD_START, _WORD_END, _OF_SENTENCE_START, _OF_SENTENCE_END = range(257, 261)

# White space, and characters that are words of their own; `\s` alone leaves out \v.
_SPACE, _APART = r"[\s\v]", r"[^\p{L}\p{M}\p{N}\s\v]"


def split_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Cuts texts `(B,)` into words `(B, words)`, at white space and around every character that is
    no letter, mark or digit."""
    apart = tf.strings.regex_replace(texts, r"([^\p{L}\p{M}\p{N}\s])", r" \1 ")
    return tf.strings.split(apart)


def with_ends(words: tf.RaggedTensor) -> tf.RaggedTensor:
    """Sentences `(B, words)` between the words that mark their two ends."""
    count = words.nrows()
    start, end = (tf.fill([count, 1], mark) for mark in (SENTENCE_START, SENTENCE_END))
    return tf.concat([start, words, end], axis=1)


def character_ids(words: tf.Tensor, width: int) -> tf.Tensor:
    """The characters, which are bytes, of words, between the marks of a word's two ends.

    Args:
        words: `(...)` strings; the empty one is padding. The two marks of a sentence's ends are
            one character each.
        width: C; a word of more than C - 2 bytes is cut.

    Returns:
        `(..., C)` int32: the mark of the beginning, the bytes plus 1, the mark of the end, zeros;
        padding is all zeros.
    """
    flat = tf.reshape(words, [-1])  # (...) -> (N,)
    kept = tf.strings.substr(flat, 0, width - 2)
    # decode_raw puts zeros behind the bytes: ones, once the bytes are counted from 1.
    ids = tf.cast(tf.io.decode_raw(kept, tf.uint8, fixed_length=width - 2), tf.int32) + 1
    length = tf.strings.length(kept)[:, None]  # (N, 1)
    marks = {SENTENCE_START: _OF_SENTENCE_START, SENTENCE_END: _OF_SENTENCE_END}
    for mark, character in marks.items():
        is_mark = (flat == mark)[:, None]
        ids = tf.where(is_mark, character, ids)
        length = tf.where(is_mark, 1, length)
    column = tf.range(width)[None]  # (1, C)
    ids = tf.pad(ids, [[0, 0], [1, 1]])  # (N, C - 2) -> (N, C)
    ids = tf.where(column == 0, _WORD_START, tf.where(column == length + 1, _WORD_END, ids))
    ids = tf.where((column <= length + 1) & (flat != "")[:, None], ids, PAD)
    return tf.reshape(ids, tf.concat([tf.shape(words), [width]], axis=0))


SPLITTERS = ("tensorflow_text", "blingfire")
_LONGEST = 1 << 16  # characters of a line; the sentence breakers are slow on longer ones


def cut_lines(text: str, longest: int = _LONGEST) -> list[str]:
    """The stripped lines of a text, none empty; one of more characters is cut at a space."""
    lines = []
    for line in text.split("\n"):
        line = line.strip()
        start = 0
        while len(line) - start > longest:
            space = line.rfind(" ", start + 1, start + longest + 1)
            end = space if space > 0 else start + longest
            lines.append(line[start:end].strip())
            start = end + (space > 0)
        lines.append(line[start:].strip())
    return [line for line in lines if line]


def split_sentences(lines: Sequence[str], splitter: str = "tensorflow_text") -> list[list[str]]:
    """Cuts lines into sentences.

    `tensorflow_text`'s StateBasedSentenceBreaker cuts after every ".", "?" and "!", in "Mr. Smith"
    and "3.5" too, and leaves a closing quotation mark to the next sentence; it takes 2.2 MB a
    second. `blingfire`, an optional package, knows abbreviations, numbers and quotation marks and
    takes 9.7 MB a second, but leaves lower-cased text whole.

    Returns:
        The sentences of each line, stripped, none empty.
    """
    if splitter == "blingfire":
        with needed("the sentence splitter blingfire", "blingfire, or take tensorflow_text"):
            from blingfire import text_to_sentences
        clean = (line.encode("utf-8", "replace").decode() for line in lines)
        found = [text_to_sentences(line).split("\n") for line in clean]
    else:
        raw = [line.encode("utf-8", "replace") for line in lines]
        with tf.device("CPU"):
            breaker = tensorflow_text.StateBasedSentenceBreaker()
            rows = breaker.break_sentences(tf.constant(raw, tf.string)).to_list() if raw else []
        found = [[sentence.decode("utf-8", "replace") for sentence in row] for row in rows]
    return [[text for text in map(str.strip, row) if text] for row in found]


UNKNOWN = "<UNK>"
_SPECIAL = (UNKNOWN, SENTENCE_START, SENTENCE_END)
_CHUNK = 256  # documents at once


@dataclasses.dataclass(frozen=True)
class WordVocabulary(Vocabulary):
    """The words that a model predicts, by id: three special ones, then the most frequent first."""

    kind = "words"
    contents_name = "words.txt"

    words: tuple[str, ...]

    @property
    def pieces(self) -> int:
        return len(self.words)

    @property
    def size(self) -> int:
        """V: an output layer has no padding rows."""
        return len(self.words)

    def contents(self) -> bytes:
        return ("\n".join(self.words) + "\n").encode()

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict[str, Any]) -> "WordVocabulary":
        try:
            return cls(tuple(contents.decode().removesuffix("\n").split("\n")))
        except UnicodeDecodeError as error:
            raise UserError("it is not UTF-8: restore it") from error


@dataclasses.dataclass(frozen=True, eq=False)
class WordText:
    """A text of words, with the characters of each and its id in a vocabulary.

    Attributes:
        types: the distinct words, `WordVocabulary`'s first and in its order.
        ids: `(N,)` int32, the text: each word's index in `types`.
        vocab_size: V; words with this index and later ones are unknown to the vocabulary.
    """

    types: Sequence[str]
    ids: np.ndarray
    vocab_size: int

    def characters(self, width: int) -> np.ndarray:
        """The types' characters `(types, width)` int32, see `character_ids`."""
        return character_ids(tf.constant(list(self.types)), width).numpy()

    def targets(self, ids: np.ndarray) -> np.ndarray:
        """Vocabulary ids of words by their index in `types`; 0 is the unknown word."""
        return np.where(ids < self.vocab_size, ids, 0)


def read_words(documents: Iterable[str]) -> list[list[str]]:
    """The words of each document, every sentence between its two marks; a line ends a sentence."""
    found = []
    for chunk in in_chunks(documents, _CHUNK):
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
    """A vocabulary of the most frequent words; ties in alphabetical order.

    Args:
        size: V, the special ones included.
    """
    counts = collections.Counter(itertools.chain.from_iterable(texts))
    for word in _SPECIAL:
        counts.pop(word, None)
    if not counts:
        raise UserError("the sources hold no word: give others")
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    kept = ordered[: size - len(_SPECIAL)]
    unknown = counts.total() - sum(counts[word] for word in kept)
    share = f"{unknown / counts.total():.3%}"
    print(f"unknown to the vocabulary: {share} of the words of the text", flush=True)
    return WordVocabulary((*_SPECIAL, *kept))


def as_word_text(words: Sequence[str], vocabulary: WordVocabulary) -> WordText:
    """The ids of a text's words: the vocabulary's, then one for each further word."""
    numbers = {word: number for number, word in enumerate(vocabulary.words)}
    ids = np.fromiter(
        (numbers.setdefault(word, len(numbers)) for word in words), np.int32, len(words)
    )
    return WordText(list(numbers), ids, vocabulary.size)


class CharacterWords(PieceVocabulary):
    """Words for a model that reads their characters: there is no unknown one.

    The ids are numbers of the words that were met, for rows and batches; `characters` has what the
    model reads. They begin anew in each graph and each `opened` copy, so that the ids of a set of
    examples follow from its texts alone.

    Args:
        max_characters: C, see `character_ids`.
    """

    kind = "character_words"
    contents_name = "characters.txt"
    options = ("max_characters",)
    unk_id, cls_id, sep_id = UNK, BOS, EOS
    pieces = size = 2**31 - 1

    def __init__(self, max_characters: int):
        self.max_characters = max_characters
        words = ("", *_SPECIAL)  # in the order of the special ids
        self._numbers = {word.encode(): number for number, word in enumerate(words)}
        # Of each graph, the words of its tokenized tensors, whose numbers follow the special ones'.
        self._in_graphs = weakref.WeakKeyDictionary()

    def opened(self) -> "CharacterWords":
        """A copy that has met no word."""
        return CharacterWords(self.max_characters)

    @property
    def characters(self) -> np.ndarray:
        """The characters of the words met, `(words, C)` int32; of padding zeros."""
        return character_ids(tf.constant(list(self._numbers)), self.max_characters).numpy()

    def characters_of(self, ids: tf.Tensor) -> tf.Tensor:
        """The characters `(..., C)` int32 of words that were met, by their ids."""
        words = tf.constant([*self._numbers])
        if not tf.executing_eagerly():
            words = tf.concat([words, *self._met_in_graph()], axis=0)
        return character_ids(tf.gather(words, ids), self.max_characters)

    def _met_in_graph(self) -> list[tf.Tensor]:
        return self._in_graphs.setdefault(tf.compat.v1.get_default_graph(), [])

    def contents(self) -> bytes:
        return b""

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict[str, Any]) -> "CharacterWords":
        return cls(**settings)

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        # `regex_split_with_offsets` loses what follows a NUL.
        return tf.strings.regex_replace(strings, r"\x00", "\ufffd")

    @property
    def tokenizer(self) -> "CharacterWords":
        return self

    def tokenize(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Lines `(B,)` to ids `(B, words)` int32, cut as `split_words` cuts."""
        return self.tokenize_with_offsets(strings)[0]

    def tokenize_with_offsets(self, strings: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """`tokenize`, and where each word begins and ends, in bytes."""
        words, starts, ends = tensorflow_text.regex_split_with_offsets(
            strings, f"{_SPACE}+|{_APART}", _APART
        )
        numbers = self._numbers
        if not tf.executing_eagerly():
            met = self._met_in_graph()
            before = len(numbers) + sum(map(tf.size, met))
            own, found = tf.unique(words.values)
            met.append(own)
            return words.with_values(before + found), starts, ends
        found = [numbers.setdefault(word, len(numbers)) for word in words.values.numpy()]
        return words.with_values(tf.constant(found, tf.int32)), starts, ends

    def piece_bytes(self, number: int) -> bytes:
        return list(self._numbers)[number]

    def trackables(self) -> list:
        return []
