import numpy as np
import pytest

from macaron_tf.models import TemporalConvolution
from tests.harness import assert_reading_equals_steps, check_layer, normal, numpy_of


def test_contract():
    check_layer(TemporalConvolution([4, 5], 3, dropout=0.5), normal(2, 7, 6))
    check_layer(TemporalConvolution([4, 5], 3, last_only=True), normal(2, 7, 6))


def test_the_dilation_doubles_and_the_receptive_field_is_exact():
    layer = TemporalConvolution([4] * 3, 3)
    assert [block.dilation for block in layer.blocks] == [1, 2, 4]
    assert layer.receptive_field == 1 + 2 * 2 * (2**3 - 1) == 29
    # Of ReLUs, so that a change of the input is seen in all that depends on it.
    x = np.abs(normal(1, 40, 2))
    layer.build(x.shape)
    layer.set_weights([np.abs(normal(*w.shape, seed=i)) for i, w in enumerate(layer.get_weights())])
    before = numpy_of(layer(x))
    for back in (0, 28, 29):
        changed = x.copy()
        changed[:, 39 - back] += 1.0
        difference = np.abs(numpy_of(layer(changed)) - before)
        assert (difference[0, -1].max() > 0) == (back < layer.receptive_field)
        np.testing.assert_array_equal(difference[:, : 39 - back], 0.0)


@pytest.mark.parametrize("length", [1, 5, 16, 23])
def test_the_last_position_alone_is_the_whole_s_last(length):
    x = normal(2, length, 3)
    whole, last = (TemporalConvolution([4, 4, 6], 3, last_only=flag) for flag in (False, True))
    for layer in (whole, last):
        layer.build(x.shape)
    weights = [0.7 * normal(*w.shape, seed=i) for i, w in enumerate(whole.get_weights())]
    for layer in (whole, last):
        layer.set_weights(weights)
    np.testing.assert_allclose(numpy_of(last(x)), numpy_of(whole(x))[:, -1], atol=1e-5)


def test_a_token_at_a_time_and_reading_equal_the_whole():
    x = normal(4, 12, 3)
    layer = TemporalConvolution([4, 4, 6], 3, dropout=0.5)
    whole, cache = numpy_of(layer(x)), layer.empty_cache(2, 2, None)
    for t in range(12):
        y, cache = layer.step(x[:, t], t, cache)
        np.testing.assert_allclose(numpy_of(y), whole[:, t], atol=1e-5)
    assert_reading_equals_steps(layer, x, cache)


def test_no_blocks_are_refused():
    with pytest.raises(ValueError, match="at least one block"):
        TemporalConvolution([], 3)
