"""Text normalization in a graph, and the way from normalized text back to the original."""

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from macaron_tf.errors import UserError, needed
from macaron_tf.settings import Settings

# RE2's classes are ASCII only; Python's `\s`, `\d`, which sacremoses' rules rely on, are Unicode's.
# These two classes make up the difference (a no-break space is white space here).
_SPACE = r"[\s\v\x{1c}-\x{1f}\x{85}\pZ]"
_DIGIT = r"\p{Nd}"
# A control character (a NUL, a stray line feed) or a Unicode line separator inside a line would
# break "one line in = one line out" or become an unknown piece: it counts as a space.
_LINE_BREAKERS = r"[\p{Cc}\x{2028}\x{2029}]"


@dataclasses.dataclass(frozen=True)
class NormalizationConfig(Settings):
    """Changes of a line before it is cut into pieces; every option is off by default.

    Attributes:
        punctuation: Moses punctuation normalization, as `sacremoses.MosesPunctNormalizer`.
        lower_case: Unicode lower-casing.
        remove_nonprinting: remove every character of Unicode category C (format characters,
            private use), as Moses' remove-non-printing-char does.
    """

    punctuation: bool = False
    lower_case: bool = False
    remove_nonprinting: bool = False


def punctuation_rules(language: str) -> list[tuple[str, str]]:
    """Moses' punctuation rules of a language in order: RE2 patterns and their replacements.

    Args:
        language: a language code such as "en" or "de-AT"; only its first part counts.
    """
    import sacremoses  # half a second, and few commands normalize punctuation

    moses = sacremoses.MosesPunctNormalizer(language.replace("_", "-").split("-")[0].lower())
    return [
        (
            pattern.replace(r"\s", _SPACE).replace(r"\d", _DIGIT),
            re.sub(r"\\g<(\d)>", r"\\\1", replacement),
        )
        for pattern, replacement in moses.substitutions
    ]


# Of Sennrich's scripts for Romanian: both ways to write a letter, and no diacritics.
_ROMANIAN = str.maketrans("ŞşȘșŢţȚțĂăÂâÎî", "SsSsTtTtAaAaIi")


def moses_words(line: str, language: str, lower_case: bool = False) -> list[str]:
    """The words of a line as XLM's texts were cut, by Moses's rules of a language, in Python.

    Punctuation is normalized, characters of Unicode's category C are removed, and signs are set
    apart. Chinese is cut by jieba and Thai by PyThaiNLP, packages that are not this library's.

    Args:
        lower_case: lower-case and take accents off.

    References: Conneau and Lample 2019 (XLM), section 5.1, and its released `tools/`.
    """
    if language == "ja":
        raise UserError(
            "XLM's Japanese was cut by KyTea, which is not used here: give text of other languages"
        )
    punctuation, tokenizer = _moses(language)
    if language == "zh":
        with needed("Chinese text of an XLM", "jieba"):
            import jieba
        words = punctuation.normalize(" ".join(jieba.cut(line))).split()
    elif language == "th":
        with needed("Thai text of an XLM", "pythainlp"):
            from pythainlp.tokenize import word_tokenize
        words = word_tokenize(punctuation.normalize(line))
    else:
        line = punctuation.normalize(line)
        if language == "ro":
            line = line.translate(_ROMANIAN)
        words = tokenizer.tokenize(line, escape=False)
    text = " ".join(words)
    if lower_case:
        letters = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in letters if unicodedata.category(c) != "Mn").lower()
    return [word for word in text.split(" ") if word]


@functools.cache
def _moses(language: str) -> tuple:
    import sacremoses

    options = {"pre_replace_unicode_punct": True, "post_remove_control_chars": True}
    normalizer = sacremoses.MosesPunctNormalizer(language, **options)
    return normalizer, sacremoses.MosesTokenizer(language)


def normalize(strings: tf.Tensor, config: NormalizationConfig, language: str) -> tf.Tensor:
    """Normalizes lines in-graph; always repairs invalid UTF-8 and removes line breakers.

    Returns:
        (B,) string tensor of valid UTF-8, U+FFFD for an invalid byte, without control characters,
        stripped of outer space.
    """
    lines = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
    lines = tf.strings.regex_replace(lines, _LINE_BREAKERS, " ")
    if config.remove_nonprinting:
        lines = tf.strings.regex_replace(lines, r"\pC", "")
    if config.punctuation:
        for pattern, replacement in punctuation_rules(language):
            lines = tf.strings.regex_replace(lines, pattern, replacement)
    if config.lower_case:
        lines = tf.strings.lower(lines, encoding="utf-8")
    return tf.strings.regex_replace(lines, rf"^{_SPACE}+|{_SPACE}+$", "")


def normalize_lines(lines: Iterable[str], config: NormalizationConfig, language: str) -> list[str]:
    return list(map_lines(lambda strings: normalize(strings, config, language), lines))


def map_lines(function: Callable[[tf.Tensor], tf.Tensor], lines: Iterable[str]) -> Iterator[str]:
    """Applies a graph function, `(B,)` strings to `(B,)`, to lines on the CPU, chunk by chunk."""
    for chunk in in_chunks(lines):
        with tf.device("CPU"):
            results = function(as_strings(chunk)).numpy().tolist()
        yield from (line.decode("utf-8") for line in results)


def as_strings(lines: Sequence[str]) -> tf.Tensor:
    """Lines as a string tensor; a lone surrogate, which UTF-8 cannot hold, is invalid bytes."""
    return tf.constant([line.encode("utf-8", "surrogatepass") for line in lines], tf.string)


def in_chunks(items: Iterable, size: int = 8192) -> Iterator[list]:
    """Cuts a stream into lists; 8192 lines are about 1 MB, so no corpus sits in one tensor."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


# Rows of running text have no line ends: documents are cut at them. Python and RE2 agree here.
_LINE_ENDS, _TRAILING = r"[ \t\r]*\n[ \t\r\n]*", r"[ \t\r\n]+\z"


def as_prompt(text: str) -> str:
    """A text in the form of a corpus's rows: each line end is a space.

    White space at the end is removed: the next word carries its own space.
    """
    return re.sub(_LINE_ENDS, " ", text.rstrip(" \t\r\n"))


def as_prompts(texts: tf.Tensor) -> tf.Tensor:
    """`as_prompt` in-graph, `(B,)` strings to `(B,)` strings."""
    texts = tf.strings.regex_replace(texts, _TRAILING, "")
    return tf.strings.regex_replace(texts, _LINE_ENDS, " ")


_SPACES = r"[\s\x{85}\pZ]+"
_MARK = r"\pM+"
# A normalization may strip a line: each character goes through it between two letters. Unicode has
# no "q" with an accent, which an accent alone could become part of.
_GUARD = "q"


class LocatedPieces(NamedTuple):
    """Ids of pieces, and the position of each in the original text.

    Attributes:
        starts, ends: (B, None) int64 ragged, of the same rows: `text[start:end]` in characters
            (code points, as Python counts them).
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class AlignedText:
    """Texts normalized character by character, with the way back to the original.

    A combining mark belongs to the character before it: a piece that holds a part of "e" and its
    accent lies over both.

    Args:
        texts: (B,) string tensor of UTF-8.
        normalize: (N,) strings to (N,) strings; it sees one character at a time: rules that
            depend on neighbours, such as BERT's limit of a word's length, have no effect.
    """

    def __init__(self, texts: tf.Tensor, normalize: Callable[[tf.Tensor], tf.Tensor]):
        characters = tf.strings.unicode_split(texts, "UTF-8")  # (B, None)
        # A page has some hundred distinct characters: only those are normalized.
        distinct, index = tf.unique(characters.values)
        guarded = normalize(tf.strings.join([_GUARD, distinct, _GUARD]))
        lengths = tf.strings.length(guarded) - 2
        clean = tf.strings.substr(guarded, tf.ones_like(lengths), lengths)
        self.normalized = tf.strings.reduce_join(
            characters.with_values(tf.gather(clean, index)), axis=1
        )
        lengths = tf.gather(tf.cast(lengths, tf.int64), index)  # (N,), N characters of all texts
        ends = tf.concat([[tf.constant(0, tf.int64)], tf.cumsum(lengths)], axis=0)  # (N + 1,)
        self._text_bytes = tf.gather(ends, characters.row_starts())  # (B,), before each text
        columns = tf.ragged.range(characters.row_lengths()).values  # (N,)
        opens = ~tf.gather(tf.strings.regex_full_match(distinct, _MARK), index) | (columns == 0)
        cluster = tf.cumsum(tf.cast(opens, tf.int64)) - 1  # (N,)
        # Of each cluster, the K of all texts: first character, one past the last, bytes so far.
        self._starts = tf.math.segment_min(columns, cluster)
        self._ends = tf.math.segment_max(columns, cluster) + 1
        self._bytes = tf.math.segment_max(ends[1:], cluster)
        space = tf.gather(tf.strings.regex_full_match(distinct, _SPACES), index)
        self._words = tf.where(~tf.boolean_mask(space, opens))[:, 0]  # clusters that are no space

    def original(
        self, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Bytes `(B, None)` of the normalized texts to characters `(B, None)` of the original ones.

        White space at a piece's beginning, which SentencePiece counts to the piece, is left out.
        """
        before = tf.gather(self._text_bytes, starts.value_rowids())
        first = tf.cast(starts.values, tf.int64) + before
        last = tf.maximum(tf.cast(ends.values, tf.int64) + before - 1, first)
        first, last = (
            tf.searchsorted(self._bytes, value, side="right", out_type=tf.int64)
            for value in (first, last)
        )
        last = tf.minimum(last, tf.size(self._bytes, tf.int64) - 1)
        # The next cluster that is no space, if it belongs to this piece.
        words = tf.concat([self._words, [tf.int64.max]], axis=0)
        word = tf.gather(words, tf.searchsorted(self._words, first))
        first = tf.where(word <= last, word, tf.minimum(first, last))
        return (
            starts.with_values(tf.gather(self._starts, first)),
            starts.with_values(tf.gather(self._ends, last)),
        )
