"""What BERT's tokenizer does to text before it cuts words into pieces, as graph ops."""
# ruff: noqa: RUF001 -- a sigma is no "o" here

import tensorflow as tf
import tensorflow_text

CONTINUES = "##"  # begins a piece that continues a word
# BERT gives up on words of more than 100 characters; one takes four bytes at most in UTF-8.
LONG_WORD_BYTES = 400

# Everything that `str.isspace` or BERT takes for white space, the no-break spaces included.
_SPACE = r"\s\x{85}\pZ"
# ASCII signs count as punctuation even where Unicode calls them symbols, such as "$" and "+".
_PUNCTUATION = r"!-/:-@\[-`{-~\pP"
# "CJK Unified Ideographs" and their extensions: each character is a word.
_IDEOGRAPHS = (
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}"
    r"\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}"
)
# Between single spaces: over the classes above, {101,} takes RE2 more memory than it allows.
_LONG_WORD = "[^ ]{101,}"
# A character of no meaning that `clean` removes everywhere else: no piece can hold it.
_UNKNOWN_WORD = "\U0010ffff"


def clean(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """BERT's text cleaning, lower-casing and accent stripping.

    Args:
        strings: (B,) string tensor, nominally UTF-8; invalid bytes are left out.
        lower_case: lower-case and strip accents (BERT does both or neither).

    Returns:
        (B,) string tensor without control characters; a word of more than 100 characters has
        become one unknown character.
    """
    lines = _without_case(strings, lower_case)
    # Few lines have so long a run without a space, and only those are looked at more closely.
    return _where(
        lines,
        f"(?s).*{_LONG_WORD}.*",
        True,
        lambda found: tf.strings.regex_replace(_spaced(found), _LONG_WORD, _UNKNOWN_WORD),
    )


def _without_case(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """`clean` but for its limit of a word's length."""
    # Most lines of English are plain ASCII, for which none of the slower ops does anything.
    lines = _where(strings, "[ -~]*", False, lambda found: _without_oddities(found, lower_case))
    return tf.strings.lower(lines, encoding="utf-8") if lower_case else lines


def spaced_words(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """`clean`, with the words that BERT cuts text into set apart by single spaces.

    Args:
        strings, lower_case: as for `clean`.

    Returns:
        (B,) string tensor; words too long for BERT are left out.
    """
    lines = tf.strings.regex_replace(clean(strings, lower_case), _UNKNOWN_WORD, " ")
    return tf.strings.strip(_spaced(lines))


def basic_words(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """`spaced_words`, with words of any length: what BERT calls its basic tokenizer.

    Args:
        strings, lower_case: as for `clean`.

    Returns:
        (B,) string tensor.
    """
    return tf.strings.strip(_spaced(_without_case(strings, lower_case)))


def _where(lines: tf.Tensor, pattern: str, matching: bool, change) -> tf.Tensor:
    """`change` done to those of the lines that match a pattern as a whole, or to the others."""
    matches = tf.strings.regex_full_match(lines, pattern)
    places = tf.where(matches == matching)  # (n, 1)
    return tf.tensor_scatter_nd_update(lines, places, change(tf.gather(lines, places[:, 0])))


def _without_oddities(lines: tf.Tensor, lower_case: bool) -> tf.Tensor:
    lines = tf.strings.unicode_transcode(lines, "UTF-8", "UTF-8", errors="replace")
    lines = tf.strings.regex_replace(lines, r"[\t\n\r]", " ")
    lines = tf.strings.regex_replace(lines, r"[\pC\x{fffd}]+", "")
    if lower_case:
        lines = tensorflow_text.normalize_utf8(lines, "NFD")
        lines = tf.strings.regex_replace(lines, r"\p{Mn}+", "")
        # Character by character, as BERT's tokenizers do it: no final form of the sigma.
        lines = tf.strings.regex_replace(lines, "Σ", "σ")
    return lines


def _spaced(lines: tf.Tensor) -> tf.Tensor:
    lines = tf.strings.regex_replace(lines, rf"([{_PUNCTUATION}{_IDEOGRAPHS}])", r" \1 ")
    return tf.strings.regex_replace(lines, rf"[{_SPACE}]+", " ")
