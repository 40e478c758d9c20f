"""Cutting lines into sentences, by a library."""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text

from macaron_tf.errors import UserError

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

    `tensorflow_text`'s StateBasedSentenceBreaker cuts behind every ".", "?" and "!", in "Mr. Smith"
    and "3.5" too, and leaves a closing quotation mark to the next sentence; it takes 2.2 MB a
    second. `blingfire`, an optional package, knows abbreviations, numbers and quotation marks and
    takes 9.7 MB a second, but leaves lower-cased text whole.

    Args:
        lines: any number of lines.
        splitter: "tensorflow_text" or "blingfire".

    Returns:
        The sentences of each line, stripped, none empty.

    Raises:
        UserError: no such splitter, or its package is not installed.
    """
    if splitter == "blingfire":
        split = _blingfire()
        found = [split(line.encode("utf-8", "replace").decode()).split("\n") for line in lines]
    elif splitter == "tensorflow_text":
        raw = [line.encode("utf-8", "replace") for line in lines]
        with tf.device("CPU"):
            breaker = tensorflow_text.StateBasedSentenceBreaker()
            rows = breaker.break_sentences(tf.constant(raw, tf.string)).to_list() if raw else []
        found = [[sentence.decode("utf-8", "replace") for sentence in row] for row in rows]
    else:
        raise UserError(
            f"no sentence splitter {splitter!r}: it must be one of {', '.join(SPLITTERS)}"
        )
    return [[text for text in map(str.strip, row) if text] for row in found]


def _blingfire():
    try:
        import blingfire
    except ImportError as error:
        raise UserError(
            f"the sentence splitter blingfire is not installed ({error}): pip install blingfire, "
            "or take tensorflow_text"
        ) from error
    return blingfire.text_to_sentences
