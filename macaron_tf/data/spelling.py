"""From generated ids to text, as it grows: what follows a prompt keeps its first space."""

import codecs
import re
from collections.abc import Iterable, Sequence

import tensorflow as tf

# Rows of running text have no line ends: documents are cut at them. RE2 reads these alike.
_LINE_ENDS, _TRAILING = r"[ \t\r]*\n[ \t\r\n]*", r"[ \t\r\n]+\z"


def as_prompt(text: str) -> str:
    """A text as the rows of a corpus hold it: a line's end is a space.

    White space at its end is left out: the word that follows brings its own.
    """
    return re.sub(_LINE_ENDS, " ", text.rstrip(" \t\r\n"))


def as_prompts(texts: tf.Tensor) -> tf.Tensor:
    """`as_prompt` in-graph, `(B,)` strings to `(B,)` strings."""
    texts = tf.strings.regex_replace(texts, _TRAILING, "")
    return tf.strings.regex_replace(texts, _LINE_ENDS, " ")


def spelled(spellings: Sequence[bytes], ids: Iterable[int]) -> str:
    """The text of some ids; bytes that make no character become U+FFFD.

    Args:
        spellings: of a vocabulary, see `PieceVocabulary.spellings`.
        ids: from 0 to V - 1.
    """
    return b"".join(spellings[int(i)] for i in ids).decode("utf-8", "replace")


def spelled_in_graph(spellings: Sequence[bytes], ids: tf.Tensor) -> tf.Tensor:
    """`spelled` in a graph.

    Args:
        spellings: as there.
        ids: (B, N) int32.

    Returns:
        (B,) strings of valid UTF-8.
    """
    joined = tf.strings.reduce_join(tf.gather(tf.constant(list(spellings)), ids), axis=-1)
    return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", errors="replace")


class SpelledStream:
    """`spelled`, an id at a time: a character comes out once its last byte is there.

    Args:
        spellings: as for `spelled`.
    """

    def __init__(self, spellings: Sequence[bytes]):
        self.spellings = spellings
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """What this id makes certain of the text; it may be empty."""
        return self._decoder.decode(self.spellings[int(token)])

    def end(self) -> str:
        """What is left at the end: U+FFFD where a character is not whole."""
        return self._decoder.decode(b"", final=True)
