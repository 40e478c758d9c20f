"""Conversion of token ids to text: in Python, in a TensorFlow graph, or one id at a time."""

import codecs
from collections.abc import Iterable, Sequence

import tensorflow as tf

_EACH_BYTE = "macaron_tf.each_byte"
codecs.register_error(_EACH_BYTE, lambda error: ("\ufffd" * (error.end - error.start), error.end))


class Detokenizer:
    """Converter from token ids to text, which replaces invalid UTF-8 by U+FFFD.

    Args:
        token_bytes: UTF-8 bytes of each of the V tokens. A token may be a part of a character.
        spaces_after: whether the last piece of a word includes the space after the word. If so, the
            detokenizer removes a space at the end of a text and adds a space at the start.
        byte_fallback: whether each invalid byte becomes one U+FFFD, as in SentencePiece. Otherwise,
            all bytes of an incomplete character together become one U+FFFD, as in Python and GPT-2.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], spaces_after: bool = False, byte_fallback: bool = False
    ):
        self.token_bytes = list(token_bytes)
        self.spaces_after = spaces_after
        self.errors = _EACH_BYTE if byte_fallback else "replace"

    def __call__(self, ids: Iterable[int]) -> str:
        """Converts ids in [0, V) to a text."""
        text = b"".join(self.token_bytes[int(i)] for i in ids)
        if self.spaces_after and text:
            text = b" " + text.removesuffix(b" ")
        return text.decode("utf-8", self.errors)

    def in_graph(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Converts ids `(B, N)` to texts `(B,)`, in-graph."""
        texts = tf.strings.reduce_join(tf.gather(tf.constant(self.token_bytes), ids), axis=-1)
        if self.spaces_after:
            texts = tf.strings.regex_replace(texts, r" \z", "")
            texts = tf.where(texts == "", "", tf.strings.join([" ", texts]))
        if self.errors == _EACH_BYTE:
            # \C matches one invalid byte after a run of characters. The appended byte is always
            # invalid, so the pattern also matches the last run; then its U+FFFD is removed.
            texts = tf.strings.join([texts, b"\xff"])
            texts = tf.strings.regex_replace(texts, r"([\x00-\x{10ffff}]*)\C", "\\1\ufffd")
            texts = tf.strings.regex_replace(texts, r"\x{fffd}\z", "")
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")

    def stream(self) -> "TextStream":
        """Returns a decoder that takes the ids of a text one by one and returns new characters."""
        return TextStream(self)


class TextStream:
    """Incremental decoder, which returns a character when the ids contain all of its bytes."""

    def __init__(self, detokenizer: Detokenizer):
        self._detokenizer = detokenizer
        self._space = b" "  # with `spaces_after`, the space to write before the next piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(detokenizer.errors)

    def add(self, token: int) -> str:
        """Adds an id and returns the newly completed text, which may be empty."""
        piece = self._detokenizer.token_bytes[int(token)]
        if self._detokenizer.spaces_after and piece:
            space, self._space = self._space, piece[-1:] if piece.endswith(b" ") else b""
            piece = space + piece.removesuffix(b" ")
        return self._decoder.decode(piece)

    def end(self) -> str:
        """Returns the remaining text: U+FFFD if the last character is incomplete, or else ""."""
        return self._decoder.decode(b"", final=True)
