"""Rows that are too long for a model, seen through windows that overlap."""

import tensorflow as tf


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
