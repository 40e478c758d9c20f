"""One text or two to the rows of an encoder: in-graph, so that training and serving agree."""

import tensorflow as tf

from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.errors import UserError

CLS_SEGMENT = 2  # of a [CLS] that ends a row: neither text's (Yang et al. 2019, section 2.5)


def encode_pairs(
    vocabulary: PieceVocabulary, first: tf.Tensor, second: tf.Tensor | None, max_length: int
) -> dict[str, tf.Tensor]:
    """Texts to `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, with `pair_separators` between.

    Of a vocabulary with `cls_last` to `a [SEP] [CLS]` or `a [SEP] b [SEP] [CLS]`.

    Where a row is too long, the longer text loses its last token, again and again, until it fits;
    of two texts of equal length the second one (Devlin et al. 2019, `_truncate_seq_pair`).

    Args:
        vocabulary: an encoder vocabulary.
        first: (B,) string tensor.
        second: (B,) string tensor; None for tasks on one text.
        max_length: greatest L, special ids included.

    Returns:
        {"token_ids": (B, L) int32, filled up with 0 (PAD); "segment_ids": (B, L) int32, 1 in
        `b [SEP]`, 2 at a [CLS] that ends a row, else 0}; L is the length of the longest row.

    Raises:
        UserError: `max_length` leaves no room for a token of each text.
    """
    texts = 1 if second is None else 2
    specials = 2 if second is None else 2 + vocabulary.pair_separators
    if max_length < specials + texts:
        raise UserError(
            f"max_length is {max_length}: {texts} text(s) need at least {specials + texts}"
        )
    a = vocabulary.encode(tf.convert_to_tensor(first))  # (B, None)
    cls, sep = (
        tf.fill([a.nrows(), 1], tf.constant(i, tf.int32))  # (B, 1)
        for i in (vocabulary.cls_id, vocabulary.sep_id)
    )
    room = max_length - specials
    if second is None:
        texts = [tf.concat([a[:, :room], sep], axis=1)]  # of (B, None)
    else:
        b = vocabulary.encode(tf.convert_to_tensor(second))  # (B, None)
        keep_a, keep_b = kept_lengths(a.row_lengths(), b.row_lengths(), room)
        between = [sep] * vocabulary.pair_separators
        texts = [
            tf.concat([_heads(a, keep_a), *between], axis=1),
            tf.concat([_heads(b, keep_b), sep], axis=1),
        ]
    parts = [(row, number) for number, row in enumerate(texts)]
    parts = [*parts, (cls, CLS_SEGMENT)] if vocabulary.cls_last else [(cls, 0), *parts]
    segments = [tf.ones_like(row) * number for row, number in parts]
    return {
        "token_ids": tf.concat([row for row, _ in parts], axis=1).to_tensor(),  # (B, L)
        "segment_ids": tf.concat(segments, axis=1).to_tensor(),
    }


def kept_lengths(first: tf.Tensor, second: tf.Tensor, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """How many tokens of each text stay: the closed form of trimming the longer one step by step.

    `tensorflow_text.ShrinkLongestTrimmer` goes those steps, one token at a time, which a text of
    ten megabytes does not forgive, and takes from the first of two equal texts.

    Args:
        first, second: (B,) integer lengths.
        room: tokens that fit, of both texts together.

    Returns:
        (B,) and (B,) lengths.
    """
    # A text of at most half the room is never the longer one of a row that is too long.
    keep_first = tf.minimum(first, tf.maximum(room - second, (room + 1) // 2))
    return keep_first, tf.minimum(second, room - keep_first)


def _heads(rows: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """(B, None): the first `lengths[i]` values of row i."""
    places = tf.ragged.range(rows.row_lengths())
    kept = places.values < tf.gather(tf.cast(lengths, places.dtype), rows.value_rowids())
    return tf.ragged.boolean_mask(rows, rows.with_values(kept))
