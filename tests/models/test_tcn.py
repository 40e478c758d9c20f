import dataclasses

import numpy as np
import pytest

from macaron_tf.models import TemporalConfig, TemporalConvolution, TemporalModel, catalog
from macaron_tf.models.catalog import TEMPORAL_MODELS
from tests.harness import check_layer, check_saved, ids, normal, numpy_of

VECTORS = TemporalConfig(5, (6, 7), kernel_size=3, input_dim=4, dropout=0.3)
IDS = TemporalConfig(20, (6, 8), vocab_size=20, embedding_dim=8, tied=True, embedding_dropout=0.3)


@pytest.mark.parametrize("config", [VECTORS, IDS])
@pytest.mark.parametrize("mixer", ["tcn", "lstm", "gru", "rnn"])
def test_parameters_are_counted_and_no_position_sees_a_later_one(config, mixer):
    config = dataclasses.replace(config, mixer=mixer)
    model = TemporalModel(config)
    model.build()
    assert model.count_params() == config.parameters
    x = ids(2, 9) if config.vocab_size else normal(2, 9, 4)
    before = numpy_of(model(x))
    assert before.shape == (2, 9, config.output_dim) == model.compute_output_shape(x.shape)
    changed = x.copy()
    changed[:, 5] = changed[:, 5] % 10 + 5
    after = numpy_of(model(changed))
    np.testing.assert_array_equal(after[:, :5], before[:, :5])
    assert np.abs(after[:, 5:] - before[:, 5:]).max() > 0
    last = TemporalModel(dataclasses.replace(config, last_only=True))
    last.build()
    last.set_weights(model.get_weights())
    np.testing.assert_allclose(numpy_of(last(x)), before[:, -1], atol=1e-5)


def test_it_is_saved_with_its_configuration(tmp_path):
    model = TemporalModel(IDS)
    model.build()
    assert check_saved(model, ids(2, 9), tmp_path).config == IDS


@pytest.mark.parametrize("name", TEMPORAL_MODELS)
@pytest.mark.parametrize("mixer", ["lstm", "gru", "rnn"])
def test_recurrent_models_of_equal_size_are_within_two_percent(name, mixer):
    config = catalog.config(name)
    recurrent = config.equal_sized(mixer)
    assert recurrent.parameters == pytest.approx(config.parameters, rel=0.02)
    assert recurrent.mixer == mixer and recurrent.dropout == config.dropout


def test_the_slides_sizes():
    millions = {
        "adding": 0.07,
        "copy_memory": 0.016,
        "jsb": 0.3,
        "nottingham": 1.0,
        "mnist": 0.07,
        "ptb_words": 13.0,
        "ptb_characters": 3.0,
    }
    for task, size in millions.items():
        # "Model size (about)": the slide rounds, upwards most of the time.
        assert catalog.config(f"tcn_{task}").parameters == pytest.approx(size * 1e6, rel=0.6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixer": "cnn"}, "mixer='cnn' must be one of"),
        ({"widths": ()}, "widths"),
        ({"input_dim": 0}, "one of the two"),
        ({"vocab_size": 9}, "one of the two"),
        ({"tied": True}, "tied needs"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(VECTORS, **changes)


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


def test_no_blocks_are_refused():
    with pytest.raises(ValueError, match="at least one block"):
        TemporalConvolution([], 3)
