"""Text normalization as TensorFlow graph ops: the same rules in training, serving and export."""
# ruff: noqa: RUF001 -- look-alike punctuation is what this file is about

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

# RE2's classes are ASCII only; Python's `\s`, `\d`, which the Moses rules of sacremoses rely on,
# are Unicode's. These two classes make up the difference (a no-break space is white space here).
_SPACE = r"[\s\v\x{1c}-\x{1f}\x{85}\pZ]"
_DIGIT = r"\p{Nd}"
# A control character (a NUL, a stray line feed) or a Unicode line separator inside a line would
# break "one line in = one line out" or become an unknown piece: it counts as a space.
_LINE_BREAKERS = r"[\p{Cc}\x{2028}\x{2029}]"
_NO_BREAK = "\u00a0"

# (pattern, replacement) in the order in which Moses' normalize-punctuation applies them.
_SPACING = (
    (r"\r", ""),
    (r"\(", " ("),
    (r"\)", ") "),
    (r" +", " "),
    (r"\) ([.!:?;,])", r")\1"),
    (r"\( ", "("),
    (r" \)", ")"),
    (rf"({_DIGIT}) %", r"\1%"),
    (r" :", ":"),
    (r" ;", ";"),
)
_QUOTES = (
    (r"`", "'"),
    (r"''", ' " '),
    (r"[„“”]", '"'),
    (r"–", "-"),
    (r"—", " - "),
    (r" +", " "),
    (r"´", "'"),
    (r"([a-zA-Z])‘([a-zA-Z])", r"\1'\2"),
    (r"([a-zA-Z])’([a-zA-Z])", r"\1'\2"),
    (r"[‘‚’]", "'"),
    (r"''", '"'),
    (r"´´", '"'),
    (r"…", "..."),
    (rf"{_NO_BREAK}«{_NO_BREAK}", '"'),
    (rf"«{_NO_BREAK}", '"'),
    (r"«", '"'),
    (rf"{_NO_BREAK}»{_NO_BREAK}", '"'),
    (rf"{_NO_BREAK}»", '"'),
    (r"»", '"'),
)
_PSEUDO_SPACES = (
    (rf"{_NO_BREAK}%", "%"),
    (rf"nº{_NO_BREAK}", "nº "),
    (rf"{_NO_BREAK}:", ":"),
    (rf"{_NO_BREAK}ºC", " ºC"),
    (rf"{_NO_BREAK}cm", " cm"),
    (rf"{_NO_BREAK}\?", "?"),
    (rf"{_NO_BREAK}!", "!"),
    (rf"{_NO_BREAK};", ";"),
    (rf",{_NO_BREAK}", ", "),
    (r" +", " "),
)
_ENGLISH_COMMAS = ((r'"([,.]+)', r'\1"'),)
# The full stop stays inside when the quotation ends the sentence: hence "followed by something".
_EUROPEAN_COMMAS = ((r',"', '",'), (rf'(\.+)"({_SPACE}*[^<])', r'"\1\2'))
_DECIMAL_COMMA_LANGUAGES = ("de", "es", "cz", "cs", "fr")


@dataclasses.dataclass(frozen=True)
class NormalizationConfig:
    """What is done to a line before it is cut into pieces; every option is off by default.

    Args:
        punctuation: Moses punctuation normalization, as `sacremoses.MosesPunctNormalizer`.
        lower_case: Unicode lower-casing.
        remove_nonprinting: remove every character of Unicode category C (format characters,
            private use), as Moses' remove-non-printing-char does.
    """

    punctuation: bool = False
    lower_case: bool = False
    remove_nonprinting: bool = False


def punctuation_rules(language: str) -> tuple[tuple[str, str], ...]:
    """The Moses punctuation rules of a language, in order.

    Args:
        language: a language code such as "en" or "de-AT"; only its first part counts.

    Returns:
        Pairs of an RE2 pattern and its replacement.
    """
    language = language.replace("_", "-").split("-")[0].lower()
    rules = _SPACING + _QUOTES + _PSEUDO_SPACES
    if language == "en":
        rules += _ENGLISH_COMMAS
    elif language in ("de", "es", "fr"):
        rules += _EUROPEAN_COMMAS
    mark = "," if language in _DECIMAL_COMMA_LANGUAGES else "."
    return rules + ((rf"({_DIGIT}){_NO_BREAK}({_DIGIT})", rf"\1{mark}\2"),)


def normalize(strings: tf.Tensor, config: NormalizationConfig, language: str) -> tf.Tensor:
    """Normalizes lines in-graph; always mends invalid UTF-8 and removes line breakers.

    Args:
        strings: (B,) string tensor, nominally UTF-8; an invalid byte becomes U+FFFD.
        config: what else is done.
        language: the language whose punctuation rules apply.

    Returns:
        (B,) string tensor of valid UTF-8 without control characters, stripped of outer space.
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


def normalize_lines(lines: Sequence[str], config: NormalizationConfig, language: str) -> list[str]:
    """`normalize` for a list of strings, on the CPU.

    Args:
        lines: the lines; a lone surrogate, which UTF-8 cannot hold, becomes U+FFFD.
        config: what is done.
        language: whose punctuation rules apply.

    Returns:
        The normalized lines.
    """
    if not lines:
        return []
    raw = [line.encode("utf-8", "surrogatepass") for line in lines]
    with tf.device("CPU"):
        result = normalize(tf.constant(raw), config, language)
    return [line.decode("utf-8") for line in result.numpy().tolist()]


def in_chunks(items: Iterable, size: int = 8192) -> Iterator[list]:
    """Cuts a stream into lists: 8192 lines are about 1 MB, so no corpus sits in one tensor.

    Args:
        items: the stream.
        size: greatest length of a list.

    Yields:
        Lists, none empty.
    """
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk
