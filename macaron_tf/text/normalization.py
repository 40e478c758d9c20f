"""In-graph text normalization, and alignment of normalized text with the original text."""

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from macaron_tf.errors import UserError
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
    """Returns Moses' punctuation rules for a language, such as "de-AT", which counts as "de".

    A rule is a pair (RE2 pattern, replacement).
    """
    import sacremoses  # here, because it takes half a second and few commands use it

    moses = sacremoses.MosesPunctNormalizer(language.replace("_", "-").split("-")[0].lower())
    rules = []
    for pattern, replacement in moses.substitutions:
        pattern = pattern.replace(r"\s", _SPACE).replace(r"\d", _DIGIT)
        rules.append((pattern, re.sub(r"\\g<(\d)>", r"\\\1", replacement)))
    return rules


# From Sennrich's scripts for Romanian: removes diacritics, in both encodings of each letter.
_ROMANIAN = str.maketrans("ŞşȘșŢţȚțĂăÂâÎî", "SsSsTtTtAaAaIi")


def moses_words(line: str, language: str, lower_case: bool = False) -> list[str]:
    """Splits a line into words by Moses' rules for a language, as XLM does.

    The function normalizes punctuation, removes characters in Unicode category C, and separates
    punctuation from words. `lower_case` also strips accents.

    References: Conneau and Lample 2019 (XLM), section 5.1, and its released `tools/`.
    """
    if language in ("ja", "th", "zh"):
        raise UserError(f"XLM splits words of the language {language!r} by a tool of its own")
    punctuation, tokenizer = _moses(language)
    line = punctuation.normalize(line)
    if language == "ro":
        line = line.translate(_ROMANIAN)
    text = " ".join(tokenizer.tokenize(line, escape=False))
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
    """Normalizes lines `(B,)` in-graph. The results are valid UTF-8.

    With every configuration, invalid bytes become U+FFFD, control characters and line separators
    become spaces, and outer white space is stripped. `language` selects the punctuation rules.
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
    """Applies a TensorFlow function of `(B,)` strings to lines, in chunks and on the CPU."""
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


# Separates the parts of a text: noncharacters, which no text contains in this order.
CUT = "\U0010ffff\U0010fffe"


def split_at(strings: tf.Tensor, pattern: str, replacement: str) -> tf.RaggedTensor:
    """Replaces the matches of a pattern in strings `(N,)`, and splits the results at `CUT`."""
    return tf.strings.split(tf.strings.regex_replace(strings, pattern, replacement), CUT)


def text_limit(max_tokens: int | None) -> int:
    """Returns the number of characters after which a text may be cut before tokenization.

    The first characters have more than `max_tokens` tokens, unless a token has more than 32
    characters on average, as in long white space. English has 4 to 5 characters per token. The
    limit is at least 32,768 characters, as on 15 pages. The slowest tokenizer needs 0.3 seconds for
    that, but 36 seconds for ten times as many characters, if all of them are unknown.
    """
    return max(1 << 15, 32 * (max_tokens or 0))


def byte_limit(max_tokens: int | None) -> int:
    """Returns the number of bytes above which a task that does not cut texts refuses a text.

    The limit is 128 bytes per token, the length of GPT-2's longest token.
    """
    return 4 * text_limit(max_tokens)


def cut_texts(texts: tf.Tensor, max_tokens: int) -> tf.Tensor:
    """Cuts texts `(B,)` to `text_limit(max_tokens)` characters, in-graph."""
    limit = min(text_limit(max_tokens), 2**31 - 1)  # TensorFlow counts characters in int32
    return tf.strings.substr(texts, 0, limit, unit="UTF8_CHAR")


# The training texts of models that are trained here have no line ends, because documents are split
# at line ends. These patterns match the same text in Python and in RE2.
_LINE_ENDS, _TRAILING = r"[ \t\r]*\n[ \t\r\n]*", r"[ \t\r\n]+\z"


def as_prompt(text: str, line_ends: bool = False) -> str:
    """Replaces line ends in a prompt, with the white space around them, by single spaces.

    The function also strips white space at the end of the prompt, because the first generated word
    includes its own leading space. If `line_ends` is True, the function only strips spaces at the
    end, because the model was trained with line ends.
    """
    return text.rstrip(" ") if line_ends else re.sub(_LINE_ENDS, " ", text.rstrip(" \t\r\n"))


def as_prompts(texts: tf.Tensor, line_ends: bool = False) -> tf.Tensor:
    """Applies `as_prompt` to strings `(B,)`, in-graph."""
    if line_ends:
        return tf.strings.regex_replace(texts, r" +\z", "")
    texts = tf.strings.regex_replace(texts, _TRAILING, "")
    return tf.strings.regex_replace(texts, _LINE_ENDS, " ")


# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Tai Le, Tai Lue, Tai
# Tham, Balinese, kana and bopomofo, ideographs and Yi, Javanese and Tai Viet.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\u3040-\u312f\u31a0-\u31ff"
    "\u3400-\u4dbf\u4e00-\ua4cf\ua980-\uaadf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


def in_spaced_script(piece: bytes) -> bool:
    """Returns whether a piece does not begin with a letter of a script without spaces.

    A combining mark or a mark of length is no such letter. The first bytes of a letter count as the
    letter.
    """
    first = (piece + b"\xbf" * 3).decode("utf-8", "replace")[:1]
    return not _UNSPACED.match(first) or unicodedata.category(first) in ("Mn", "Mc", "Lm")


# BERT treats all ASCII symbols as punctuation, even "$" and "+", which Unicode does not.
PUNCTUATION = r"!-/:-@\[-`{-~\pP"
# CJK unified ideographs and their extensions. BERT makes a word of each such character.
IDEOGRAPHS = (
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}"
    r"\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}"
)
_SPACES = r"[\s\x{85}\pZ]\pM*"
_OTHER = rf"[^\s\x{{85}}\pZ{PUNCTUATION}{IDEOGRAPHS}]+"
# The parts of a text that are normalized separately. Within a word, the lower case of a sigma
# depends on the letters around it, even beyond an apostrophe or a full stop. ALBERT replaces the
# two quotation marks of LaTeX.
_WORD = rf"``|''|{_OTHER}(?:['.:\x{{b7}}\x{{2019}}]{_OTHER})*|(?s:.)\pM*"
_CLUSTER = r"\PM\pM*|\pM+"  # a character with its combining marks


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
    """Texts that are normalized word by word, with a map back to the original positions.

    Each character of a word is also normalized alone, and the lengths of the results tell which
    characters of the normalized word belong to the character. If these lengths do not add up to the
    length of the normalized word, as for two LaTeX quotation marks that become one character or for
    a word that is too long for BERT, the positions are those of the whole word.

    A combining mark belongs to the character before the mark. If "é" consists of the code points
    "e" and an accent, a token that contains only one of the two code points is mapped to both.

    Args:
        texts: `(B,)` UTF-8 strings.
        normalize: function of strings `(N,)` that returns strings `(N,)`. The function receives
            single words, so rules that depend on other words, such as Moses' rules for spaces
            before punctuation, have no effect.

    Attributes:
        normalized: `(B,)` normalized texts.
    """

    def __init__(self, texts: tf.Tensor, normalize: Callable[[tf.Tensor], tf.Tensor]):
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        words = split_at(texts, _WORD, rf"{CUT}\0")[:, 1:]  # (B, None)
        # Only distinct strings are normalized. A page has a few hundred of them.
        distinct, word_index = tf.unique(words.values)  # (D,), (W,), W words of all texts
        clusters = split_at(distinct, _CLUSTER, rf"{CUT}\0")[:, 1:]  # (D, None)
        characters, cluster_index = tf.unique(clusters.values)
        num_words = tf.size(distinct)
        distinct = tf.concat([distinct, characters], axis=0)
        # The letters around a string keep its outer white space.
        clean = normalize(tf.strings.join(["q ", distinct, " q"]))
        clean = tf.strings.regex_replace(clean, r"(?s)\Aq ?(.*?) ?q\z", r"\1")
        self.normalized = tf.strings.reduce_join(
            words.with_values(tf.gather(clean, word_index)), axis=1
        )
        lengths = tf.cast(tf.strings.length(clean), tf.int64)
        # Each unit has one range of positions: a cluster, or a word that is mapped as a whole.
        clusters = clusters.with_values(cluster_index + num_words)
        cluster_lengths = clusters.with_values(tf.gather(lengths, clusters.values))
        is_unit = tf.reduce_sum(cluster_lengths, axis=1) != lengths[:num_words]  # (D,)
        is_cluster = clusters.with_values(~tf.gather(is_unit, clusters.value_rowids()))
        units = [
            tf.ragged.boolean_mask(tf.range(num_words)[:, None], is_unit[:, None]),
            tf.ragged.boolean_mask(clusters, is_cluster),
        ]
        # (W, None), the U units of all texts as indices in `distinct`
        units = tf.gather(tf.concat(units, axis=1), word_index)
        text_index = tf.gather(words.value_rowids(), units.value_rowids())  # (U,)
        widths = tf.gather(_num_characters(distinct), units.values)
        text_starts = tf.cumsum(_num_characters(texts), exclusive=True)  # (B,), in characters
        self._ends = tf.cumsum(widths) - tf.gather(text_starts, text_index)
        self._starts = self._ends - widths
        self._bytes = tf.cumsum(tf.gather(lengths, units.values))  # (U,), up to a unit's end
        text_lengths = tf.cast(tf.strings.length(self.normalized), tf.int64)
        self._text_bytes = tf.cumsum(text_lengths, exclusive=True)  # (B,), before each text
        is_space = tf.gather(tf.strings.regex_full_match(distinct, _SPACES), units.values)
        self._visible_units = tf.where(~is_space)[:, 0]

    def original(
        self, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Converts byte positions in normalized texts to character positions in original texts.

        White space at the start of a piece, which SentencePiece includes, is left out. `starts` and
        `ends` are `(B, None)`, and so are the int64 results.
        """
        text_starts = tf.gather(self._text_bytes, starts.value_rowids())
        first = tf.cast(starts.values, tf.int64) + text_starts
        last = tf.maximum(tf.cast(ends.values, tf.int64) + text_starts - 1, first)
        options = {"side": "right", "out_type": tf.int64}
        first, last = (tf.searchsorted(self._bytes, place, **options) for place in (first, last))
        last = tf.minimum(last, tf.size(self._bytes, tf.int64) - 1)
        # Start at the next unit that is not white space, if it belongs to this piece.
        padded_units = tf.concat([self._visible_units, [tf.int64.max]], axis=0)
        next_visible = tf.gather(padded_units, tf.searchsorted(self._visible_units, first))
        first = tf.where(next_visible <= last, next_visible, tf.minimum(first, last))
        found = tf.gather(self._starts, first), tf.gather(self._ends, last)
        return starts.with_values(found[0]), starts.with_values(found[1])


def _num_characters(strings: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(strings, "UTF8_CHAR"), tf.int64)
