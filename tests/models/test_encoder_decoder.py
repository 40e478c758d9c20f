import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from tests.harness import check_saved, ids


def small(block="macaron", **options):
    defaults = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    config = EncoderDecoderConfig(24, 16, 32, 2, 2, 2, block=block, **{**defaults, **options})
    model = EncoderDecoder(config)
    model.build()
    return model


def inputs(batch=3, source_length=7, target_length=6):
    source, target = ids(batch, source_length), ids(batch, target_length, seed=1)
    source[-1, 4:] = 0
    target[:, 0] = 2
    return {"source": source, "target": target}


@pytest.mark.parametrize(
    ("block", "norm"),
    [
        ("macaron", "pre"),
        ("transformer", "post"),
        pytest.param("macaron", "post", marks=pytest.mark.slow),
        pytest.param("transformer", "pre", marks=pytest.mark.slow),
    ],
)
def test_cached_decoding_equals_uncached(block, norm):
    model, batch = small(block, norm=norm), inputs()
    whole = np.asarray(model(batch))

    @tf.function
    def cached(source, target):
        context, cache = model.init_decode(source, 2, 8)
        steps = []
        for t in range(6):
            tokens = tf.repeat(target[:, t : t + 1], 2, axis=1)
            logits, cache = model.decode_step(tokens, tf.constant(t), context, cache)
            steps.append(logits)
        return tf.stack(steps, axis=2)  # (B, K, T, V)

    stepped = cached(batch["source"], batch["target"]).numpy()
    np.testing.assert_allclose(stepped[:, 0], whole, atol=1e-5)
    np.testing.assert_allclose(stepped[:, 1], whole, atol=1e-5)


def test_padding_changes_nothing():
    model, batch = small(), inputs(1)
    wide = {name: np.pad(value, ((0, 2), (0, 3))) for name, value in batch.items()}
    np.testing.assert_allclose(np.asarray(model(wide))[:1, :6], np.asarray(model(batch)), atol=1e-5)
    assert np.isfinite(np.asarray(model(wide))).all()


def test_no_future_target_token_leaks():
    model, batch = small(), inputs(1)
    whole = np.asarray(model(batch))
    for t in range(5):
        target = batch["target"].copy()
        target[:, t + 1 :] = 5
        changed = np.asarray(model({**batch, "target": target}))
        np.testing.assert_array_equal(changed[:, : t + 1], whole[:, : t + 1])


def test_saved_model_equals_the_one_in_memory(tmp_path):
    model, batch = small(), inputs()
    assert check_saved(model, batch, tmp_path).config == model.config
    model.save_weights(tmp_path / "model.weights.h5")
    other = small()
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(np.asarray(other(batch)), np.asarray(model(batch)))


def test_mixed_bfloat16_stays_near_float32():
    exact = small()
    half = EncoderDecoder(exact.config, dtype="mixed_bfloat16")
    half.build()
    half.set_weights(exact.get_weights())
    batch = inputs()
    assert all(weight.dtype == "float32" for weight in half.weights)
    difference = np.asarray(tf.cast(half(batch), tf.float32)) - np.asarray(exact(batch))
    # bfloat16 keeps 8 bits: 2^-8 relative, over logits of about unit scale.
    assert 0 < np.abs(difference).max() < 0.1
