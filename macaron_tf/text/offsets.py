"""Where pieces lie in a text, whatever was done to the text before it was cut."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

_SPACE = r"[\s\x{85}\pZ]+"
_MARK = r"\pM+"
# A normalization may strip a line: each character goes through it between two letters.
_GUARD = "x"


class LocatedPieces(NamedTuple):
    """Ids of pieces, and where each lies in the original text.

    Attributes:
        ids: (B, None) int32 ragged.
        starts, ends: (B, None) int64 ragged, of the same rows: `text[start:end]` in characters
            (code points, as Python counts them).
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class AlignedText:
    """Texts, normalized character by character, and the way back.

    A combining mark belongs to the character before it: a piece that holds a part of "e" and its
    accent lies over both.

    Args:
        texts: (B,) string tensor of UTF-8.
        normalize: (N,) strings to (N,) strings; it sees one character at a time, so that rules
            that look at a character's neighbours do nothing.

    Attributes:
        normalized: (B,) string tensor.
    """

    def __init__(self, texts: tf.Tensor, normalize: Callable[[tf.Tensor], tf.Tensor]):
        characters = tf.strings.unicode_split(texts, "UTF-8")  # (B, None)
        # A page has some hundred distinct characters: only those are normalized.
        distinct, place = tf.unique(characters.values)
        guarded = normalize(tf.strings.join([_GUARD, distinct, _GUARD]))
        lengths = tf.strings.length(guarded) - 2
        clean = tf.strings.substr(guarded, tf.ones_like(lengths), lengths)
        self.normalized = tf.strings.reduce_join(
            characters.with_values(tf.gather(clean, place)), axis=1
        )

        def of_character(values: tf.Tensor) -> tf.Tensor:
            return tf.gather(values, place)  # (N,), N characters of all texts

        lengths = of_character(tf.cast(lengths, tf.int64))
        ends = tf.concat([[tf.constant(0, tf.int64)], tf.cumsum(lengths)], axis=0)  # (N + 1,)
        self._text_bytes = tf.gather(ends, characters.row_starts())  # (B,), before each text
        columns = tf.ragged.range(characters.row_lengths()).values  # (N,)
        opens = ~of_character(tf.strings.regex_full_match(distinct, _MARK)) | (columns == 0)
        cluster = tf.cumsum(tf.cast(opens, tf.int64)) - 1  # (N,)
        # Of each cluster, the K of all texts: first character, one past the last, bytes so far.
        self._starts = tf.math.segment_min(columns, cluster)
        self._ends = tf.math.segment_max(columns, cluster) + 1
        self._bytes = tf.math.segment_max(ends[1:], cluster)
        space = of_character(tf.strings.regex_full_match(distinct, _SPACE))
        self._words = tf.where(~tf.boolean_mask(space, opens))[:, 0]  # clusters that are no space

    def original(
        self, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Bytes of the normalized texts to characters of the original ones.

        White space at a piece's beginning, which SentencePiece counts to the piece, is left out.

        Args:
            starts, ends: (B, None) integers, where pieces begin and end in `normalized`.

        Returns:
            (B, None) and (B, None) int64.
        """
        before = tf.gather(self._text_bytes, starts.value_rowids())
        first = tf.cast(starts.values, tf.int64) + before
        last = tf.maximum(tf.cast(ends.values, tf.int64) + before - 1, first)
        first, last = (
            tf.searchsorted(self._bytes, value, side="right", out_type=tf.int64)
            for value in (first, last)
        )
        last = tf.minimum(last, tf.size(self._bytes, tf.int64) - 1)
        # The next cluster that is no space, where it is still this piece's.
        words = tf.concat([self._words, [tf.int64.max]], axis=0)
        word = tf.gather(words, tf.searchsorted(self._words, first))
        first = tf.where(word <= last, word, tf.minimum(first, last))
        return (
            starts.with_values(tf.gather(self._starts, first)),
            starts.with_values(tf.gather(self._ends, last)),
        )


def locate(
    texts: tf.Tensor, normalize: Callable[[tf.Tensor], tf.Tensor], tokenizer
) -> LocatedPieces:
    """Cuts texts into pieces, in-graph, and says where each lies.

    Args:
        texts, normalize: as for `AlignedText`.
        tokenizer: has `tokenize_with_offsets`, as those of tensorflow_text.

    Returns:
        The pieces of the normalized texts.
    """
    aligned = AlignedText(texts, normalize)
    ids, starts, ends = tokenizer.tokenize_with_offsets(aligned.normalized)
    return LocatedPieces(ids, *aligned.original(starts, ends))
