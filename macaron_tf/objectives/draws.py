"""Random numbers for the rows of a batch, from one seed for all rows or one for each."""

import tensorflow as tf

# Named, so that every device draws the same numbers from a seed.
_ALGORITHM = "philox"


def split(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Seeds for `count` purposes, each of the shape of the one given, `(2,)` or `(B, 2)`."""
    seed = tf.convert_to_tensor(seed)
    if seed.shape.rank == 1:
        return tf.unstack(tf.random.split(seed, count, alg=_ALGORITHM))
    seeds = tf.map_fn(lambda own: tf.random.split(own, count, alg=_ALGORITHM), seed)
    return tf.unstack(tf.ensure_shape(seeds, (None, count, 2)), axis=1)


def fold_in(seed: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    """The seed of round `number` of a loop, `(2,)` or `(B, 2)` as the one given."""
    seed = tf.convert_to_tensor(seed)
    if seed.shape.rank == 1:
        return tf.random.experimental.stateless_fold_in(seed, number, _ALGORITHM)
    number = tf.cast(number, seed.dtype)
    return tf.map_fn(
        lambda own: tf.random.experimental.stateless_fold_in(own, number, _ALGORITHM), seed
    )


def uniform(
    seed: tf.Tensor, rows: tf.Tensor | int, columns: int, below: int | None = None
) -> tf.Tensor:
    """Uniform numbers in [0, 1), or whole ones from 0 on.

    Args:
        seed: `(2,)`, or `(B, 2)`: a row's numbers are then the same in whatever batch it comes.
        rows: B.
        columns: N.
        below: whole numbers less than this; None = float32 in [0, 1).

    Returns:
        `(B, N)` float32 or int32.
    """
    seed = tf.convert_to_tensor(seed)
    dtype = tf.float32 if below is None else tf.int32

    def draw(shape, seed):
        return tf.random.stateless_uniform(shape, seed, 0, below, dtype, alg=_ALGORITHM)

    if seed.shape.rank == 1:
        return draw([rows, columns], seed)
    drawn = tf.map_fn(lambda own: draw([columns], own), seed, fn_output_signature=dtype)
    return tf.ensure_shape(drawn, (None, columns))
