"""GPT-2's byte alphabet and its way of cutting text into words, as graph ops."""

import tensorflow as tf
import tensorflow_text

# Python's and Rust's `\s`; RE2's own knows ASCII alone.
_SPACE = r"\t-\r\x{85}\pZ"
# Set between two words for a moment. No character (Unicode keeps it for such uses), so that it
# may be taken out of every text.
_MARK = "\U0010ffff"
# Radford et al. 2019: contractions, then letters, digits and signs, each with the one space before
# them. Their pattern leaves the last space of several to the next word by looking ahead, which
# RE2 cannot: `_MARK` is set there.
_WORD = (
    "'s|'t|'re|'ve|'m|'ll|'d"
    rf"| ?\pL+| ?\pN+| ?[^{_SPACE}\pL\pN{_MARK}]+|[{_SPACE}]+"
)


def byte_alphabet() -> tuple[str, ...]:
    """The character that stands for each of the 256 bytes in a piece: none is a space.

    Bytes that Latin-1 prints stand for themselves, the others for U+0100, U+0101, ... in turn.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printed else next(others)) for byte in range(256))


def clean(strings: tf.Tensor, lower_case: bool, add_prefix_space: bool) -> tf.Tensor:
    """What is done to text before it is cut.

    Args:
        strings: (B,) string tensor, nominally UTF-8; an invalid byte becomes U+FFFD.
        lower_case: lower-case it.
        add_prefix_space: begin every line with a space, so that its first word is as any other.

    Returns:
        (B,) string tensor of valid UTF-8.
    """
    lines = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
    lines = tf.strings.regex_replace(lines, _MARK, "")
    # `regex_split` loses a line that has a NUL.
    lines = tf.strings.regex_replace(lines, r"\x00", "\ufffd")
    if lower_case:
        lines = tf.strings.lower(lines, encoding="utf-8")
    if add_prefix_space:
        lines = tf.strings.regex_replace(lines, rf"^([^{_SPACE}])", r" \1")
    return lines


def words(lines: tf.Tensor) -> tf.RaggedTensor:
    """Cuts cleaned lines into words, which together are the line.

    Args:
        lines: (B,) string tensor, as `clean` gives it.

    Returns:
        (B, None) string ragged tensor.
    """
    marked = tf.strings.regex_replace(
        lines, rf"([{_SPACE}]+)([{_SPACE}][^{_SPACE}])", rf"\1{_MARK}\2"
    )
    found = tensorflow_text.regex_split(marked, _WORD, keep_delim_regex_pattern=_WORD)
    return tf.ragged.boolean_mask(found, (found != _MARK) & (found != ""))
