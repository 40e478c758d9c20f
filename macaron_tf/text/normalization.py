"""In-graph text normalization, and alignment of normalized text with the original text."""

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

# sacremoses relies on Python's `\s` and `\d`, which match Unicode (a no-break space is white
# space). RE2's `\s` and `\d` match ASCII only, so these character classes replace them.
_SPACE = r"[\s\v\x{1c}-\x{1f}\x{85}\pZ]"
_DIGIT = r"\p{Nd}"
# Control characters (NUL, line feed) and Unicode line separators within a line. Each becomes a
# space, because it would otherwise split a line of output or become UNK.
_LINE_BREAKERS = r"[\p{Cc}\x{2028}\x{2029}]"


@dataclasses.dataclass(frozen=True)
class NormalizationConfig(Settings):
    """Options of text normalization before tokenization, which are all off by default.

    Attributes:
        punctuation: whether to normalize punctuation as `sacremoses.MosesPunctNormalizer` does.
        lower_case: whether to lower-case the text by Unicode's rules.
        remove_nonprinting: whether to remove characters in Unicode category C, such as format
            characters, as Moses' script remove-non-printing-char does.
    """

    punctuation: bool = False
    lower_case: bool = False
    remove_nonprinting: bool = False


def punctuation_rules(language: str) -> list[tuple[str, str]]:
    """Returns Moses' punctuation rules for a language as (RE2 pattern, replacement) pairs.

    Args:
        language: language code such as "en" or "de-AT". Only the part before the hyphen is used.
    """
    import sacremoses  # here, because it takes half a second and few commands use it

    moses = sacremoses.MosesPunctNormalizer(language.replace("_", "-").split("-")[0].lower())
    return [
        (
            pattern.replace(r"\s", _SPACE).replace(r"\d", _DIGIT),
            re.sub(r"\\g<(\d)>", r"\\\1", replacement),
        )
        for pattern, replacement in moses.substitutions
    ]


# From Sennrich's scripts for Romanian: removes diacritics, in both encodings of each letter.
_ROMANIAN = str.maketrans("ŞşȘșŢţȚțĂăÂâÎî", "SsSsTtTtAaAaIi")


def moses_words(line: str, language: str, lower_case: bool = False) -> list[str]:
    """Splits a line into words by Moses' rules for a language, as XLM does.

    The function normalizes punctuation, removes characters in Unicode category C, and separates
    punctuation from words. Chinese needs the package jieba, and Thai needs the package pythainlp.
    macaron_tf does not install these packages.

    Args:
        line: line to split.
        language: language code, such as "en".
        lower_case: whether to lower-case and strip accents.

    Raises:
        UserError: `language` is "ja" (Japanese), or a package is missing.

    References: Conneau and Lample 2019 (XLM), section 5.1, and its released `tools/`.
    """
    if language == "ja":
        raise UserError(
            "XLM splits Japanese text with the tool KyTea, which macaron_tf does not support: give "
            "text in another language"
        )
    punctuation, tokenizer = _moses(language)
    if language == "zh":
        with needed("Chinese text for XLM", "jieba"):
            import jieba
        words = punctuation.normalize(" ".join(jieba.cut(line))).split()
    elif language == "th":
        with needed("Thai text for XLM", "pythainlp"):
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

    With every configuration, invalid bytes become U+FFFD, control characters and line separators
    become spaces, and outer white space is stripped.

    Args:
        strings: `(B,)` lines.
        config: normalizations to apply in addition.
        language: language code, such as "en", which selects the punctuation rules.

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
    """Normalizes lines eagerly (see `normalize`)."""
    return list(map_lines(lambda strings: normalize(strings, config, language), lines))


def map_lines(function: Callable[[tf.Tensor], tf.Tensor], lines: Iterable[str]) -> Iterator[str]:
    """Applies a TensorFlow function to lines, in chunks and on the CPU.

    Args:
        function: function of `(B,)` strings that returns `(B,)` strings.
        lines: lines to convert.

    Yields:
        The converted lines in order.
    """
    for chunk in in_chunks(lines):
        with tf.device("CPU"):
            results = function(as_strings(chunk)).numpy().tolist()
        yield from (line.decode("utf-8") for line in results)


def as_strings(lines: Sequence[str]) -> tf.Tensor:
    """Converts lines to strings `(B,)`. An unpaired surrogate is encoded as invalid UTF-8."""
    return tf.constant([line.encode("utf-8", "surrogatepass") for line in lines], tf.string)


def in_chunks(items: Iterable, size: int = 8192) -> Iterator[list]:
    """Splits an iterable into lists of at most `size` items. 8192 lines take about 1 MB."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


# Training sequences have no line ends, because documents are split at line ends. These patterns
# match the same text in Python and in RE2.
_LINE_ENDS, _TRAILING = r"[ \t\r]*\n[ \t\r\n]*", r"[ \t\r\n]+\z"


def as_prompt(text: str) -> str:
    """Replaces line ends in a prompt, with the white space around them, by single spaces.

    Training text has no line ends either. The function also strips white space at the end of the
    prompt, because the first generated word includes its own leading space.
    """
    return re.sub(_LINE_ENDS, " ", text.rstrip(" \t\r\n"))


def as_prompts(texts: tf.Tensor) -> tf.Tensor:
    """Applies `as_prompt` to strings `(B,)`, in-graph."""
    texts = tf.strings.regex_replace(texts, _TRAILING, "")
    return tf.strings.regex_replace(texts, _LINE_ENDS, " ")


_SPACES = r"[\s\x{85}\pZ]+"
_MARK = r"\pM+"
# Each character is normalized between two of these letters, because a normalization may strip outer
# white space. An accent does not combine with "q", because Unicode has no accented "q".
_GUARD = "q"


class LocatedPieces(NamedTuple):
    """Token ids with the positions of the tokens in the original texts.

    Attributes:
        ids: token ids, `(B, None)` int32, ragged.
        starts, ends: positions where the tokens start and end, `(B, None)` int64, ragged like
            `ids`. A token is `text[start:end]`. Positions count code points, as in Python.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class AlignedText:
    """Texts that are normalized character by character, with a map back to the original positions.

    A combining mark belongs to the character before the mark. If "é" consists of the code points
    "e" and an accent, a token that contains only one of the two code points is mapped to both.

    Args:
        texts: `(B,)` UTF-8 strings.
        normalize: function of strings `(N,)` that returns strings `(N,)`. The function receives
            single characters, so rules that depend on other characters, such as BERT's limit on the
            length of a word, have no effect.

    Attributes:
        normalized: `(B,)` normalized texts.
    """

    def __init__(self, texts: tf.Tensor, normalize: Callable[[tf.Tensor], tf.Tensor]):
        characters = tf.strings.unicode_split(texts, "UTF-8")  # (B, None)
        # Only distinct characters are normalized; a page has about a hundred of them.
        distinct, index = tf.unique(characters.values)
        normalized_characters = normalize(tf.strings.join([_GUARD, distinct, _GUARD]))
        lengths = tf.strings.length(normalized_characters) - 2
        clean = tf.strings.substr(normalized_characters, tf.ones_like(lengths), lengths)
        self.normalized = tf.strings.reduce_join(
            characters.with_values(tf.gather(clean, index)), axis=1
        )
        lengths = tf.gather(tf.cast(lengths, tf.int64), index)  # (N,), N characters of all texts
        ends = tf.concat([[tf.constant(0, tf.int64)], tf.cumsum(lengths)], axis=0)  # (N + 1,)
        self._text_bytes = tf.gather(ends, characters.row_starts())  # (B,), before each text
        columns = tf.ragged.range(characters.row_lengths()).values  # (N,)
        is_start = ~tf.gather(tf.strings.regex_full_match(distinct, _MARK), index) | (columns == 0)
        cluster = tf.cumsum(tf.cast(is_start, tf.int64)) - 1  # (N,)
        # For each of the K clusters in all texts: the index of its first character, the index after
        # its last character, and the number of normalized bytes up to its end.
        self._starts = tf.math.segment_min(columns, cluster)
        self._ends = tf.math.segment_max(columns, cluster) + 1
        self._bytes = tf.math.segment_max(ends[1:], cluster)
        is_space = tf.gather(tf.strings.regex_full_match(distinct, _SPACES), index)
        self._visible_clusters = tf.where(~tf.boolean_mask(is_space, is_start))[
            :, 0
        ]  # clusters without space

    def original(
        self, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Converts byte positions in normalized texts to character positions in original texts.

        White space at the start of a piece, which SentencePiece includes, is left out.

        Args:
            starts, ends: `(B, None)` byte offsets of the pieces in the normalized texts.

        Returns:
            The starts and ends `(B, None)` int64, in characters of the original texts.
        """
        text_starts = tf.gather(self._text_bytes, starts.value_rowids())
        first = tf.cast(starts.values, tf.int64) + text_starts
        last = tf.maximum(tf.cast(ends.values, tf.int64) + text_starts - 1, first)
        first, last = (
            tf.searchsorted(self._bytes, value, side="right", out_type=tf.int64)
            for value in (first, last)
        )
        last = tf.minimum(last, tf.size(self._bytes, tf.int64) - 1)
        # Start at the next cluster that is not white space, if it belongs to this piece.
        padded_clusters = tf.concat([self._visible_clusters, [tf.int64.max]], axis=0)
        next_visible = tf.gather(padded_clusters, tf.searchsorted(self._visible_clusters, first))
        first = tf.where(next_visible <= last, next_visible, tf.minimum(first, last))
        return (
            starts.with_values(tf.gather(self._starts, first)),
            starts.with_values(tf.gather(self._ends, last)),
        )
