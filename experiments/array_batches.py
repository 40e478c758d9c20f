"""Batches of arrays that can be gone on with from any one of them."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

_POOL = 16  # batches whose sequences are sorted by length together


def shuffled(
    count: int, size: int, seed: int, start: int = 0, lengths: Sequence[int] | None = None
) -> Iterator[np.ndarray]:
    """Numbers of the examples of each batch, epoch after epoch without end.

    Args:
        count: examples.
        size: of a batch; what is left over in an epoch is left out.
        seed: of the order, which is another in each epoch.
        start: the first batch wanted.
        lengths: of the examples; those of a batch are then alike.
    """
    size = min(size, count)
    epoch, passed = divmod(start, count // size)
    while True:
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(count)
        if lengths is not None:
            pools = np.split(order, range(_POOL * size, count, _POOL * size))
            lengths = np.asarray(lengths)
            order = np.concatenate([pool[np.argsort(lengths[pool])] for pool in pools])
        batches = order[: count - count % size].reshape(-1, size)  # (N,) -> (N / size, size)
        yield from rng.permutation(batches)[passed:]
        epoch, passed = epoch + 1, 0


def in_turn(count: int, size: int) -> Iterator[np.ndarray]:
    """Numbers of the examples of each batch, each example once and in order."""
    for first in range(0, count, size):
        yield np.arange(first, min(first + size, count))


def from_batches(
    make: Callable[[], Iterator[dict[str, np.ndarray]]], shapes: dict[str, tuple]
) -> tf.data.Dataset:
    """A dataset of the dicts that an iterator makes.

    Args:
        make: gives the iterator.
        shapes: (dtype, shape) of each entry.
    """
    signature = {name: tf.TensorSpec(shape, dtype) for name, (dtype, shape) in shapes.items()}
    return tf.data.Dataset.from_generator(make, output_signature=signature).prefetch(2)
