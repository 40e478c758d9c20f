import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import TemporalConfig, TemporalConvolution, TemporalModel
from tests.harness import built, ids, normal, numpy_of, randomized, weights_of

VECTORS = TemporalConfig(5, (6, 7), kernel_size=3, input_dim=4, dropout=0.3)
IDS = TemporalConfig(20, (6, 8), vocab_size=20, embedding_dim=8, tied=True, embedding_dropout=0.3)


@pytest.mark.parametrize("config", [VECTORS, IDS])
@pytest.mark.parametrize("mixer", ["tcn", "lstm", "gru", "rnn"])
def test_parameters_are_counted_and_no_position_sees_a_later_one(config, mixer):
    config = dataclasses.replace(config, mixer=mixer)
    model = built(TemporalModel, config)
    assert model.count_params() == config.parameters
    x = ids(2, 9) if config.vocab_size else normal(2, 9, 4)
    before = numpy_of(model(x))
    assert before.shape == (2, 9, config.output_dim)
    changed = x.copy()
    changed[:, 5] = changed[:, 5] % 10 + 5
    after = numpy_of(model(changed))
    np.testing.assert_array_equal(after[:, :5], before[:, :5])
    assert np.abs(after[:, 5:] - before[:, 5:]).max() > 0
    last = built(TemporalModel, dataclasses.replace(config, last_only=True))
    last.set_weights(model.get_weights())
    np.testing.assert_allclose(numpy_of(last(x)), before[:, -1], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("config", [VECTORS, IDS])
def test_an_export_takes_other_lengths_than_the_first_call_s(config, tmp_path):
    model = built(TemporalModel, config)
    first, other = (
        ids(rows, length) if config.vocab_size else normal(rows, length, 4)
        for rows, length in ((2, 9), (3, 11))
    )
    model(first)
    model.export(tmp_path / "export", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "export")
    np.testing.assert_allclose(loaded.serve(other), numpy_of(model(other)), atol=1e-5)


def test_the_dilation_doubles_and_the_receptive_field_is_exact():
    layer = TemporalConvolution([4] * 3, 3)
    assert [block.dilation for block in layer.blocks] == [1, 2, 4]
    receptive_field = 1 + 2 * 2 * (2**3 - 1)
    # ReLUs of positive numbers let each input change reach every dependent output.
    x = np.abs(normal(1, 40, 2))
    randomized(layer, x.shape, scale=1.0)
    layer.set_weights([np.abs(weight) for weight in layer.get_weights()])
    before = numpy_of(layer(x))
    for back in (0, 28, 29):
        changed = x.copy()
        changed[:, 39 - back] += 1.0
        difference = np.abs(numpy_of(layer(changed)) - before)
        assert (difference[0, -1].max() > 0) == (back < receptive_field)
        np.testing.assert_array_equal(difference[:, : 39 - back], 0.0)


@pytest.mark.parametrize("length", [1, 5, 16, 23])
def test_the_last_position_alone_is_the_whole_s_last(length):
    x = normal(2, length, 3)
    whole, last = (
        randomized(TemporalConvolution([4, 4, 6], 3, last_only=flag), x.shape, scale=0.7)
        for flag in (False, True)
    )
    np.testing.assert_allclose(numpy_of(last(x)), numpy_of(whole(x))[:, -1], atol=1e-5)


def test_the_tcn_is_pytorch_s():
    """The model agrees with PyTorch's `Conv1d` layers; the recurrent layers are Keras's own."""
    torch = pytest.importorskip("torch")
    model = built(TemporalModel, dataclasses.replace(VECTORS, dropout=0.0), noise=0.3)
    w = {name: torch.tensor(value) for name, value in weights_of(model).items()}
    inputs = normal(2, 9, 4)
    x = torch.tensor(inputs.astype("float64"))
    for number in range(len(VECTORS.widths)):
        dilation, h = 2**number, x.mT
        for name in ("convolution_0", "convolution_1"):
            path = f"tcn/block_{number}/{name}"
            v = w[f"{path}/direction"].permute(2, 1, 0)  # `(k, C, F) -> (F, C, k)`
            convolution = torch.nn.Conv1d(*v.shape[1::-1], 3, dilation=dilation).double()
            torch.nn.utils.parametrizations.weight_norm(convolution)
            with torch.no_grad():
                convolution.weight = v * (
                    w[f"{path}/length"][:, None, None] / v.norm(dim=(1, 2), keepdim=True)
                )
                convolution.bias.copy_(w[f"{path}/bias"])
            h = torch.relu(convolution(torch.nn.functional.pad(h, (2 * dilation, 0))))
        skip = f"tcn/block_{number}/skip"
        x = torch.relu(h.mT + x @ w[f"{skip}/kernel"] + w[f"{skip}/bias"])
    expected = x @ w["output/kernel"] + w["output/bias"]
    np.testing.assert_allclose(numpy_of(model(inputs)), expected.detach(), rtol=1e-5, atol=1e-5)
