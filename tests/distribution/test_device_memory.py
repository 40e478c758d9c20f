"""Networks that exceed any machine's memory can be built without allocating their weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.distribution import device_memory as memory
from macaron_tf.distribution.device_memory import device_memory, refuse_oversize, without_values
from macaron_tf.errors import UserError
from macaron_tf.layers import MacaronBlock

pytestmark = pytest.mark.quick


def test_weights_beyond_the_memory_are_refused_before_it_is_taken():
    block = MacaronBlock(num_heads=2, feed_forward_dim=2**31 - 2)
    with (
        pytest.raises(UserError, match=r"the model does not fit .* has the shape \(8, 107"),
        refuse_oversize(copies=4),
    ):
        block.build((None, None, 8))


def test_trained_weights_count_as_often_as_they_are_kept(monkeypatch):
    monkeypatch.setattr(memory, "device_memory", lambda: 4 * (8 * 8 + 8) * 3 - 1)

    def build(copies):
        with refuse_oversize("it", copies):
            layer = keras.layers.Dense(8)
            layer.build((None, 8))
        return layer

    assert build(2).count_params() == 72
    with pytest.raises(UserError, match="it does not fit"):
        build(3)


@pytest.mark.parametrize(
    ("initializer", "message"),
    [
        ("identity", "Identity matrix initializer can only be used for 2D"),
        (lambda shape, dtype=None: tf.reshape(tf.zeros(5), shape), "Cannot reshape"),
    ],
)
def test_another_error_of_an_initializer_is_not_about_memory(initializer, message):
    with pytest.raises(ValueError, match=message) as caught, refuse_oversize():
        keras.Variable(keras.initializers.get(initializer), shape=(3, 4, 5))
    assert not isinstance(caught.value, UserError)


def test_values_are_those_without_the_check():
    def build():
        layer = keras.layers.Dense(8, kernel_initializer=keras.initializers.GlorotNormal(3))
        layer.build((None, 8))
        return np.array(layer.kernel)

    plain = build()
    with refuse_oversize():
        np.testing.assert_array_equal(build(), plain)
        # Variables whose initial value is a tensor, or a function of an outside tensor, have
        # values.
        outside = tf.ones([2])
        np.testing.assert_array_equal(tf.Variable(lambda: outside * 2), [2, 2])


def test_a_model_that_no_machine_holds_has_shapes_without_values():
    with without_values():
        block = MacaronBlock(num_heads=2, feed_forward_dim=2**31 - 2, dropout=0.1)
        block.build((None, None, 8))
    # Two feed-forward halves of (D + 1) F / 2 + (F / 2 + 1) D each, attention's 4 (D + 1) D, and
    # three norms.
    half = 2**30 - 1
    assert block.count_params() == 2 * (9 * half + 8 * (half + 1)) + 4 * 9 * 8 + 3 * 16
    assert all(not variable.value.is_initialized() for variable in block.trainable_variables)


def test_a_control_group_may_have_less_than_the_machine(monkeypatch):
    whole = device_memory()
    read = memory._read
    monkeypatch.setattr(memory, "_read", lambda f: "4096\n" if f in memory._LIMITS else read(f))
    assert device_memory() == 4096 < whole
