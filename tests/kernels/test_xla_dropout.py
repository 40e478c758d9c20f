import numpy as np
import tensorflow as tf

from macaron_tf.kernels import xla
from macaron_tf.layers.norms import Dropout

COUNT, RATE = 200_000, 0.25
WITHIN = 5 * (RATE * (1 - RATE) / COUNT) ** 0.5  # five standard deviations


def test_a_layer_drops_at_its_rate_and_passes_gradients_where_it_kept():
    layer = Dropout(RATE, seed=3)

    @tf.function(jit_compile=True, autograph=False)
    def dropped(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, tape.gradient(y, x)

    x = tf.random.stateless_uniform((COUNT,), (1, 2), 1.0, 2.0)
    first, second = dropped(x), dropped(x)
    kept = np.asarray(first[0]) > 0
    assert abs(kept.mean() - (1 - RATE)) < WITHIN
    np.testing.assert_allclose(first[0], np.where(kept, x / (1 - RATE), 0), rtol=1e-6)
    np.testing.assert_allclose(first[1], np.where(kept, 1 / (1 - RATE), 0), rtol=1e-6)
    # The next call's mask is independent of this call's mask.
    assert abs((np.asarray(second[0]) > 0)[kept].mean() - (1 - RATE)) < 2 * WITHIN
    # TensorFlow's own program has 316 lines, most of them for the key.
    program = dropped.experimental_get_compiler_ir(x)(stage="hlo")
    assert program.count("\n") < 120 and "rng-bit-generator" in program


def test_neighbouring_seeds_drop_independently_and_equal_ones_alike():
    ones = tf.ones((COUNT,))
    seeds = [(7, 0), (7, 1), (7, 2), (8, 0), (8, 1), (1 << 30, 0)]
    kept = np.array([xla.dropout(ones, 0.5, tf.constant(seed)) for seed in seeds]) > 0
    correlation = np.corrcoef(kept) - np.eye(len(seeds))
    assert np.abs(correlation).max() < 5 / COUNT**0.5
    np.testing.assert_array_equal(xla.dropout(ones, 0.5, tf.constant((8, 1))) > 0, kept[4])
