"""Tasks whose sequences are drawn: the adding problem and copy memory."""

from collections.abc import Callable

import tensorflow as tf

from experiments.tcn.task_data import Source, TaskData

ADDING_LENGTH = 600
COPY_DISTANCE = 1000
COPIED = 10  # symbols to be remembered
COPY_LENGTH = COPY_DISTANCE + 2 * COPIED
_HELD_OUT = 1000  # sequences of the validation, and as many of the test
_TRAIN, _VALIDATION, _TEST = range(3)  # parts of the seed

_Draw = Callable[[int, tf.Tensor], dict[str, tf.Tensor]]


def adding(source: Source, size: int, seed: int) -> TaskData:
    """Two of 600 uniform numbers are marked: what is their sum?"""
    return _drawn(adding_batch, size, seed, f"sequences of {ADDING_LENGTH}")


def copy_memory(source: Source, size: int, seed: int) -> TaskData:
    """Ten symbols, 1000 positions without any, and then they are to be said again."""
    summary = f"sequences of {COPY_LENGTH}, {COPIED} symbols to remember"
    return _drawn(copy_batch, size, seed, summary)


def adding_batch(size: int, seed: tf.Tensor, length: int = ADDING_LENGTH) -> dict[str, tf.Tensor]:
    """Sequences of (number, mark), the marks 1 at two positions and 0 elsewhere.

    Args:
        size: sequences B.
        seed: `(2,)` int64.
        length: T.

    Returns:
        `inputs (B, T, 2)`, `targets (B, 1)`, the sum of the marked numbers, and `weight (B,)`.
    """
    seeds = tf.random.split(seed, 2)
    numbers = tf.random.stateless_uniform((size, length), seeds[0])
    # The two places whose random keys are greatest: any two, alike often.
    keys = tf.random.stateless_uniform((size, length), seeds[1])
    places = tf.math.top_k(keys, 2).indices  # (B, 2)
    marks = tf.reduce_sum(tf.one_hot(places, length), axis=1)  # (B, 2, T) -> (B, T)
    return {
        "inputs": tf.stack([numbers, marks], axis=-1),
        "targets": tf.reduce_sum(numbers * marks, axis=1, keepdims=True),
        "weight": tf.ones(size),
    }


def copy_batch(size: int, seed: tf.Tensor, distance: int = COPY_DISTANCE) -> dict[str, tf.Tensor]:
    """Ten symbols 1 to 8, T - 1 zeros, eleven 9s; the answer is zeros and at last the symbols.

    Args:
        size: sequences B.
        seed: `(2,)` int64.
        distance: T.

    Returns:
        `inputs (B, T + 20, 10)`, one-hot; `targets` and `weight (B, T + 20)`, all ones: the mean is
        over all positions, so that who remembers nothing has 10 ln 8 / (T + 20) = 0.0204.
    """
    symbols = tf.random.stateless_uniform((size, COPIED), seed, 1, 9, tf.int32)
    blank = tf.zeros((size, distance - 1), tf.int32)
    ask = tf.fill((size, COPIED + 1), 9)
    ids = tf.concat([symbols, blank, ask], axis=1)  # (B, T + 20)
    silent = tf.zeros((size, distance + COPIED), tf.int32)
    return {
        "inputs": tf.one_hot(ids, 10),
        "targets": tf.concat([silent, symbols], axis=1),
        "weight": tf.ones((size, distance + 2 * COPIED)),
    }


def _drawn(draw: _Draw, size: int, seed: int, summary: str) -> TaskData:
    def batch(part: int, number: tf.Tensor, count: int = size):
        # Validation and test are the same sequences for all seeds.
        first = tf.constant(3 * (seed if part == _TRAIN else 0) + part, tf.int64)
        return draw(count, tf.stack([first, number]))

    def train(start: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(start, 2**62)
        return numbers.map(lambda number: batch(_TRAIN, number)).prefetch(2)

    def held_out(part: int) -> tf.data.Dataset:
        count = -(-_HELD_OUT // size)
        return tf.data.Dataset.range(count).map(lambda number: batch(part, number))

    return TaskData(train, held_out(_VALIDATION), held_out(_TEST), f"{summary}, always new ones")
