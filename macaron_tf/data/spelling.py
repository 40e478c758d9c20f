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


def spelled(spellings: Sequence[bytes], ids: Iterable[int], spaces_after: bool = False) -> str:
    """The text of some ids; bytes that make no character become U+FFFD.

    Args:
        spellings: of a vocabulary, see `PieceVocabulary.spellings`.
        ids: from 0 to V - 1.
        spaces_after: of the vocabulary; the text begins with a space all the same, and ends with
            none.
    """
    text = b"".join(spellings[int(i)] for i in ids)
    if spaces_after and text:
        text = b" " + text.removesuffix(b" ")
    return text.decode("utf-8", "replace")


def spelled_in_graph(
    spellings: Sequence[bytes], ids: tf.Tensor, spaces_after: bool = False
) -> tf.Tensor:
    """`spelled` in a graph.

    Args:
        spellings, spaces_after: as there.
        ids: (B, N) int32.

    Returns:
        (B,) strings of valid UTF-8.
    """
    joined = tf.strings.reduce_join(tf.gather(tf.constant(list(spellings)), ids), axis=-1)
    if spaces_after:
        joined = tf.strings.regex_replace(joined, r" \z", "")
        joined = tf.where(joined == "", "", tf.strings.join([" ", joined]))
    return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", errors="replace")


class SpelledStream:
    """`spelled`, an id at a time: a character comes out once its last byte is there.

    Args:
        spellings, spaces_after: as for `spelled`.
    """

    def __init__(self, spellings: Sequence[bytes], spaces_after: bool = False):
        self.spellings = spellings
        self.spaces_after = spaces_after
        self._space = b" "  # before the next piece, where they stand after words
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """What this id makes certain of the text; it may be empty."""
        piece = self.spellings[int(token)]
        if self.spaces_after and piece:
            before, self._space = self._space, piece[-1:] if piece.endswith(b" ") else b""
            piece = before + piece.removesuffix(b" ")
        return self._decoder.decode(piece)

    def end(self) -> str:
        """What is left at the end: U+FFFD where a character is not whole."""
        return self._decoder.decode(b"", final=True)
