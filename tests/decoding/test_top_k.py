import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding.beam_search import top_k


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("size", "k"), [(10_000, 7), (72, 7), (7, 7), (1000, 1)])
def test_it_equals_the_ordinary_op_with_and_without_ties(size, k, jit):
    rng = np.random.default_rng(size)
    search = tf.function(lambda x: top_k(x, k), jit_compile=jit)
    for values in (2, 50, 10**6):  # few values: nearly all tie
        scores = tf.constant(rng.integers(0, values, (6, size)), tf.float32)
        scores = tf.where(scores == 0, float("-inf"), scores)
        for found, expected in zip(search(scores), tf.math.top_k(scores, k), strict=True):
            np.testing.assert_array_equal(found, expected)
