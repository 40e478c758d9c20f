"""Networks and kernels of which FLOPs are counted, beside the closed formulas of their counts.

KERAS_BACKEND=jax python -m tests.toys.flops    # prints the names of wrong counts
"""

from collections.abc import Callable

import tensorflow as tf

import macaron_tf
from macaron_tf.kernels.delta_rule import delta_rule
from macaron_tf.layers import MixtureOfExperts, SwishRNN
from macaron_tf.layers.lstm import ProjectedLSTM
from macaron_tf.layers.mixer import Context
from macaron_tf.training.flops import forward_flops

B, L, D = 2, 12, 8


def _of_layer(layer, *options) -> tuple[Callable, tuple]:
    layer.build((B, L, D))
    return lambda x: layer.mix(x, Context())[0], (tf.TensorSpec((B, L, D)),)


def gpt():
    sizes = {"num_layers": 3, "hidden_dim": D, "feed_forward_dim": 20, "num_heads": 2}
    network = macaron_tf.build("gpt_tiny", **sizes, vocab_size=11)
    network.build()
    matrices = 3 * (4 * D * D + 2 * D * 20)
    attention = 3 * 2 * L * L * D  # products of queries with keys, and of their softmax with values
    specs = ({"token_ids": tf.TensorSpec((B, L), tf.int32)},)
    return network, specs, 2 * B * (L * matrices + attention)


def swish():
    width = 20
    layer = SwishRNN(width, step_size=3)
    products = 2 * B * L * 3 * D * width
    return *_of_layer(layer), products + 5 * B * L * width


def experts():
    layer = MixtureOfExperts(20, num_experts=4)
    return *_of_layer(layer), 2 * B * L * (D * 4 + 4 * 2 * D * 20)


def lstm():
    units, width = 8, 4
    layer = ProjectedLSTM(units, width)
    layer.build((B, L, D))
    products = 2 * (D * 4 * units + width * 4 * units + units * width)
    return layer, (tf.TensorSpec((B, L, D)),), B * L * (products + 9 * units)


def delta():
    heads, k, v, chunk = 3, 4, 5, 4

    def function(*arrays):
        return delta_rule(*arrays, chunk=chunk)

    shape = (B, heads, L)
    shapes = [(*shape, k), (*shape, k), (*shape, v), shape, shape, (B, heads, k, v)]
    inside = 2 * 2 * k + k + v + 2 * v  # of the matrices of a chunk, for each pair of positions
    between = 2 * k * (k + v) + 2 * 2 * k * v  # with states, for each position
    loop = 2 * k * k * v + k * v  # for each chunk
    count = B * heads * (L * (chunk * inside + between) + L // chunk * loop)
    return function, tuple(map(tf.TensorSpec, shapes)), count


CASES = (gpt, swish, experts, lstm, delta)


def wrong(case: Callable) -> str:
    """Returns "", or the name of the case with the count and that of its formula."""
    function, specs, expected = case()
    found = forward_flops(function, *specs)
    return "" if found == expected else f"{case.__name__}: {found}, not {expected}"


if __name__ == "__main__":
    print(*filter(None, map(wrong, CASES)), sep="\n", end="")
