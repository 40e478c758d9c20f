import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from macaron_tf.layers.packing import Packing, packing_scope
from macaron_tf.models import Encoder, EncoderConfig

LENGTHS = (5, 0, 7, 1)


def batch(lengths=LENGTHS, width=7):
    rng = np.random.default_rng(0)
    real = np.arange(width) < np.array(lengths)[:, None]
    ids = rng.integers(1, 30, real.shape) * real
    segments = rng.integers(0, 2, real.shape) * real
    return {"token_ids": ids.astype("int32"), "segment_ids": segments.astype("int32")}, real


def test_padded_undoes_packed():
    x, mask = np.arange(24.0).reshape(4, 3, 2), np.arange(3) < np.array([2, 0, 3, 1])[:, None]
    packing = Packing(ops.convert_to_tensor(mask))
    packed = packing.pack(x)
    np.testing.assert_array_equal(packed, x[mask])
    np.testing.assert_array_equal(packing.pad(packed), x * mask[..., None])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"norm": "pre", "block": "macaron", "positions": "sinusoidal"},
        {"block": "swish_rnn", "relative_bias": "per_layer", "rnn_step_sizes": (2,)},
        {"block": "gmlp"},
        {"block": "amlp"},
        {"positions": "transformer_xl"},
        {"embedding_dim": 6, "sharing": "all", "gated": True},
        {"adaptive_cutoffs": (10, 20), "num_segments": 0},
        {"scheme": "tokens by heun, channels/2, channels/2 again"},
    ],
    ids=str,
)
def test_packed_encoders_equal_padded_ones(options):
    config = EncoderConfig(30, 8, 12, 2, 2, max_length=7, initializer_range=0.5, **options)
    encoder = Encoder(config)
    inputs, real = batch()
    if not config.num_segments:
        del inputs["segment_ids"]
    expected = np.array(encoder(inputs))

    @tf.function(autograph=False, reduce_retracing=True)
    def packed(inputs):
        with packing_scope():
            return encoder(inputs)

    found = packed(inputs).numpy()
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)
    assert not found[~real].any()


def test_a_mask_of_attention_goes_over_the_padded_rows():
    encoder = Encoder(EncoderConfig(30, 8, 12, 2, 2, initializer_range=0.5))
    inputs, real = batch()
    inputs["attention_mask"] = np.tril(np.ones((4, 7, 7), "int32"))
    expected = np.array(encoder(inputs))
    with packing_scope():
        found = np.array(encoder(inputs))
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


def test_nothing_but_padding_is_nothing():
    encoder = Encoder(EncoderConfig(30, 8, 12, 2, 2))
    with packing_scope():
        for ids in (np.zeros(shape, "int32") for shape in ((2, 3), (0, 3), (2, 0))):
            found = np.array(encoder(ids))
            assert found.shape == (*ids.shape, 8) and not found.any()
        assert not np.allclose(encoder(np.ones((1, 3), "int32"), training=True), 0.0)
