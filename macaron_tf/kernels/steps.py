"""Positions as steps of a loop: k neighbours are one step, for their chains do not touch.

The arrays of a loop are in time order, `(n, k, B, R)`: whatever k is, they lie as `(L, B, R)`.
"""

from keras import ops


def count(length, step_size: int):
    """How many steps of k positions L positions take: ceil(L / k)."""
    return -(-length // step_size)


def in_steps(x, step_size: int):
    """`(B, L, R) -> (n, k, B, R)`, filled up with zeros at the end, where nothing comes after."""
    batch, length, width = ops.shape(x)
    steps = count(length, step_size)
    x = ops.transpose(x, (1, 0, 2))  # (L, B, R)
    if step_size > 1:
        x = ops.pad(x, ((0, steps * step_size - length), (0, 0), (0, 0)))
    # (n k, B, R) -> (n, k, B, R)
    return ops.reshape(x, (steps, step_size, batch, width))


def from_steps(x, length):
    """`(n, k, B, R) -> (B, L, R)`: `in_steps` undone."""
    steps, step_size, batch, width = ops.shape(x)
    # (n, k, B, R) -> (n k, B, R) -> (L, B, R)
    x = ops.reshape(x, (steps * step_size, batch, width))[:length]
    return ops.transpose(x, (1, 0, 2))


def start_in_steps(start):
    """`(B, k, R) -> (k, B, R)`."""
    return ops.transpose(start, (1, 0, 2))


def keep_in_steps(mask, step_size: int):
    """`(B, L)` booleans or None -> `(n, k, B, 1)` float32, 1 at real positions, or None."""
    if mask is None:
        return None
    return in_steps(ops.cast(mask, "float32")[..., None], step_size)
