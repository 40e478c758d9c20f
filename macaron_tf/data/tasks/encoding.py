"""Rows that are too long for a model, seen through windows that overlap."""

from collections.abc import Callable

import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.text.base import PieceVocabulary


def window_starts(lengths: tf.Tensor, rooms: tf.Tensor, stride: int) -> tf.RaggedTensor:
    """Where the windows over some rows begin: one every `stride` ids, until the last id is seen.

    Args:
        lengths: (B,) int64, ids of each row.
        rooms: (B,) int64, ids that a window on each row holds, 1 or more.
        stride: ids between two windows' beginnings; no more than the room is taken, so that no id
            is lost.

    Returns:
        (B, None) int64; at least one window a row.
    """
    steps = tf.minimum(tf.constant(stride, tf.int64), rooms)
    hidden = tf.maximum(lengths - rooms, 0)  # (B,): ids that the first window does not see
    numbers = tf.ragged.range(1 + (hidden + steps - 1) // steps)  # (B, None)
    return numbers.with_values(numbers.values * tf.gather(steps, numbers.value_rowids()))


def cut(
    rows: tf.RaggedTensor, numbers: tf.Tensor, starts: tf.Tensor, lengths: tf.Tensor
) -> tf.RaggedTensor:
    """The ids that windows show.

    Args:
        rows: (B, None).
        numbers: (M,) the row of each window.
        starts, lengths: (M,) int64, in that row.

    Returns:
        (M, None).
    """
    begins = tf.gather(rows.row_starts(), numbers) + starts
    places = tf.ragged.range(begins, begins + lengths)  # (M, None)
    return places.with_values(tf.gather(rows.values, places.values))


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


def encode_causal(
    vocabulary: PieceVocabulary, first: tf.Tensor, second: tf.Tensor | None, max_length: int
) -> dict[str, tf.Tensor]:
    """Texts to `start a extract` or `start a delimiter b extract`, else as `encode_pairs`.

    Only the last position has seen all of a text; its token stands nowhere else. Start and
    delimiter are [CLS] and [SEP], which begin a row and end a document in pre-training, and the
    token to extract from is [MASK], which a language model has not met: as new as the paper's.

    Args:
        vocabulary, first, second, max_length: as there.

    Returns:
        As there.

    Raises:
        UserError: as there.

    References: Radford et al. 2018 (GPT), figure 1 and section 3.3.
    """
    encoded = encode_pairs(vocabulary, first, second, max_length)
    token_ids = encoded["token_ids"]  # (B, L)
    lengths = tf.reduce_sum(tf.cast(token_ids != vocabulary.pad_id, tf.int32), axis=1)  # (B,)
    last = tf.range(tf.shape(token_ids)[1]) == lengths[:, None] - 1  # (B, L)
    extract = tf.constant(vocabulary.mask_id, token_ids.dtype)
    return {**encoded, "token_ids": tf.where(last, extract, token_ids)}


def row_encoder(causal: bool) -> Callable[..., dict[str, tf.Tensor]]:
    """What makes the rows of a causal model, or of one that sees both sides."""
    return encode_causal if causal else encode_pairs
