"""Text normalization in a graph, and positions in normalized text mapped back to the original."""

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

# The rules of sacremoses rely on Python's `\s` and `\d`, which match Unicode (a no-break space is
# white space). Those of RE2 match ASCII only, so that these classes replace them.
_SPACE = r"[\s\v\x{1c}-\x{1f}\x{85}\pZ]"
_DIGIT = r"\p{Nd}"
# Control characters (NUL, line feed) and Unicode line separators inside a line. They would split a
# line of output or become an unknown piece, so that each becomes a space.
_LINE_BREAKERS = r"[\p{Cc}\x{2028}\x{2029}]"


@dataclasses.dataclass(frozen=True)
class NormalizationConfig(Settings):
    """Normalization of a line before it is cut into pieces; every option is off by default.

    Attributes:
        punctuation: whether to normalize punctuation as `sacremoses.MosesPunctNormalizer` does.
        lower_case: whether to lower-case the text, by Unicode's rules.
        remove_nonprinting: whether to remove characters of Unicode category C (format characters,
            private use), as Moses' remove-non-printing-char does.
    """

    punctuation: bool = False
    lower_case: bool = False
    remove_nonprinting: bool = False


def punctuation_rules(language: str) -> list[tuple[str, str]]:
    """Moses' punctuation rules for a language, in order: RE2 patterns and their replacements.

    Args:
        language: a language code such as "en" or "de-AT", of which the first part is used.
    """
    import sacremoses  # takes half a second, and few commands normalize punctuation

    moses = sacremoses.MosesPunctNormalizer(language.replace("_", "-").split("-")[0].lower())
    return [
        (
            pattern.replace(r"\s", _SPACE).replace(r"\d", _DIGIT),
            re.sub(r"\\g<(\d)>", r"\\\1", replacement),
        )
        for pattern, replacement in moses.substitutions
    ]


# Sennrich's scripts for Romanian: removes diacritics, in both encodings of a letter.
_ROMANIAN = str.maketrans("ŞşȘșŢţȚțĂăÂâÎî", "SsSsTtTtAaAaIi")


def moses_words(line: str, language: str, lower_case: bool = False) -> list[str]:
    """Splits a line into words by Moses' rules for its language, as in the training of XLM.

    It normalizes punctuation, removes characters of Unicode category C, and separates punctuation
    from words. Chinese needs the package jieba, Thai pythainlp; neither comes with this library.

    Args:
        line: the line.
        language: a language code, such as "en".
        lower_case: whether to lower-case and strip accents.

    Raises:
        UserError: the text is Japanese, or a package is missing.

    References: Conneau and Lample 2019 (XLM), section 5.1, and its released `tools/`.
    """
    if language == "ja":
        raise UserError(
            "XLM's Japanese text is split by KyTea, which this library does not support: give text "
            "of other languages"
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
    """Normalizes lines `(B,)` in-graph.

    Whatever the configuration, invalid bytes become U+FFFD, control characters and line separators
    become spaces, and outer white space is stripped.

    Returns:
        `(B,)` strings of valid UTF-8.
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
    """Normalizes lines outside a graph; see `normalize`."""
    return list(map_lines(lambda strings: normalize(strings, config, language), lines))


def map_lines(function: Callable[[tf.Tensor], tf.Tensor], lines: Iterable[str]) -> Iterator[str]:
    """Applies a function of TensorFlow, `(B,)` strings to `(B,)`, to lines in chunks on the CPU."""
    for chunk in in_chunks(lines):
        with tf.device("CPU"):
            results = function(as_strings(chunk)).numpy().tolist()
        yield from (line.decode("utf-8") for line in results)


def as_strings(lines: Sequence[str]) -> tf.Tensor:
    """Converts lines to a string tensor; a lone surrogate becomes bytes that are invalid UTF-8."""
    return tf.constant([line.encode("utf-8", "surrogatepass") for line in lines], tf.string)


def in_chunks(items: Iterable, size: int = 8192) -> Iterator[list]:
    """Cuts a stream into lists of `size` items; 8192 lines are about 1 MB."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


# Rows of training text have no line ends, because documents are split there. Python and RE2 read
# these patterns alike.
_LINE_ENDS, _TRAILING = r"[ \t\r]*\n[ \t\r\n]*", r"[ \t\r\n]+\z"


def as_prompt(text: str) -> str:
    """Brings a prompt into the form of training text: line ends become spaces.

    White space at the end is removed, because the next word carries its own space.
    """
    return re.sub(_LINE_ENDS, " ", text.rstrip(" \t\r\n"))


def as_prompts(texts: tf.Tensor) -> tf.Tensor:
    """Applies `as_prompt` in-graph: `(B,)` strings to `(B,)` strings."""
    texts = tf.strings.regex_replace(texts, _TRAILING, "")
    return tf.strings.regex_replace(texts, _LINE_ENDS, " ")


_SPACES = r"[\s\x{85}\pZ]+"
_MARK = r"\pM+"
# A normalization may strip white space, so each character passes it between two letters. A lone
# accent does not combine with them: Unicode has no "q" with an accent.
_GUARD = "q"


class LocatedPieces(NamedTuple):
    """Ids of pieces, and their positions in the original texts.

    Attributes:
        ids: `(B, None)` int32, ragged.
        starts, ends: `(B, None)` int64, ragged like `ids`; a piece is `text[start:end]`, counted in
            characters (code points, as in Python).
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class AlignedText:
    """Normalizes texts character by character, and maps positions back to the original texts.

    A combining mark belongs to the character before it: a piece with "e" or its accent covers both.

    Args:
        texts: `(B,)` strings of UTF-8.
        normalize: function of strings `(N,)` that returns strings `(N,)`. It gets single
            characters, so that rules which depend on their neighbours, such as BERT's limit on the
            length of a word, have no effect.

    Attributes:
        normalized: `(B,)` strings, the normalized texts.
    """

    def __init__(self, texts: tf.Tensor, normalize: Callable[[tf.Tensor], tf.Tensor]):
        characters = tf.strings.unicode_split(texts, "UTF-8")  # (B, None)
        # A page has about a hundred distinct characters: only these are normalized.
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
        # For each of the K clusters of all texts: its first character, the one after its last, and
        # the number of normalized bytes up to its end.
        self._starts = tf.math.segment_min(columns, cluster)
        self._ends = tf.math.segment_max(columns, cluster) + 1
        self._bytes = tf.math.segment_max(ends[1:], cluster)
        space = tf.gather(tf.strings.regex_full_match(distinct, _SPACES), index)
        self._words = tf.where(~tf.boolean_mask(space, opens))[:, 0]  # clusters without space

    def original(
        self, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Converts positions of pieces from bytes of normalized texts to original characters.

        White space at the start of a piece, which SentencePiece includes, is left out.

        Args:
            starts, ends: `(B, None)` bytes of the normalized texts.

        Returns:
            The starts and ends `(B, None)` int64 in characters of the original texts.
        """
        before = tf.gather(self._text_bytes, starts.value_rowids())
        first = tf.cast(starts.values, tf.int64) + before
        last = tf.maximum(tf.cast(ends.values, tf.int64) + before - 1, first)
        first, last = (
            tf.searchsorted(self._bytes, value, side="right", out_type=tf.int64)
            for value in (first, last)
        )
        last = tf.minimum(last, tf.size(self._bytes, tf.int64) - 1)
        # Start at the next cluster that is not a space, if it belongs to this piece.
        words = tf.concat([self._words, [tf.int64.max]], axis=0)
        word = tf.gather(words, tf.searchsorted(self._words, first))
        first = tf.where(word <= last, word, tf.minimum(first, last))
        return (
            starts.with_values(tf.gather(self._starts, first)),
            starts.with_values(tf.gather(self._ends, last)),
        )
