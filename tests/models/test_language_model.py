import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.layers import SwishRNN
from macaron_tf.models import EncoderConfig, LanguageModel
from tests.harness import bfloat16_error, built, ids, numpy_of, refuses, rejects
from tests.toys.marks import slow, thorough

V, L = 24, 7
PLAIN = {"dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.3, "num_segments": 0}
# Several recurrent layers, so that a leak could pass through any state.
BLOCKS = {
    "transformer": {"block": "transformer", "norm": "pre", "embedding_norm": False},
    "macaron": {"block": "macaron", "norm": "pre"},
    "swish_rnn": {"block": "swish_rnn", "rnn_step_sizes": (1, 4)},
    "gmlp": {"block": "gmlp", "positions": "none", "norm": "pre"},
    "amlp": {"block": "amlp", "positions": "none", "tiny_attention_dim": 4},
}
MORE = {
    "gpt2": {"norm": "pre", "embedding_norm": False, "scaled_outputs": True},
    "relative": {"positions": "none", "relative_bias": "shared"},
    "relative_per_layer": {"relative_bias": "per_layer", "block": "macaron"},
    "sinusoidal": {"positions": "sinusoidal"},
    "narrow": {"embedding_dim": 8, "sharing": "all"},
    "gated_rms": {"norm_type": "rms", "gated": True, "use_bias": False, "scaled": False},
    "languages": {"num_languages": 2},
    "biased": {"output_bias": True},
    "banded": {"attention_windows": (0, 3), "norm": "pre"},
    # Rotary positions, key heads shared by two query heads, and a window, as in Llama and Mistral.
    "llama": {
        **{"positions": "rotary", "rotary_base": 100.0, "num_kv_heads": 1, "use_bias": False},
        **{"norm_type": "rms", "gated": True, "activation": "silu", "attention_windows": (0, 3)},
    },
    # Norms of queries and keys, as in Qwen 3 and OLMo 2, and of each sub-layer's output.
    "qwen": {"positions": "rotary", "num_kv_heads": 1, "qk_norm": "head", "norm": "pre"},
    "olmo": {"qk_norm": "heads", "norm": "output", "attention_windows": (0, 3)},
    "alibi": {"positions": "alibi", "attention_windows": (0, 3), "block": "macaron"},
    "deltanet": {"block": ("gated_deltanet", "transformer"), "positions": "rotary"},
    "experts": {"num_experts": 4, "gated": True, "block": "macaron"},
    "xl": {"positions": "transformer_xl"},
    "split": {"scheme": "2 x (tokens/2, channels/2)", "relative_bias": "per_layer"},
    "split_albert": {"scheme": "tokens/2, channels, tokens/2", "sharing": "all"},
    "split_xl": {"scheme": "channels, tokens/2, tokens/2 again", "positions": "transformer_xl"},
    "split_swish": {"scheme": "channels/2 by heun, tokens, channels/2", "block": "swish_rnn"},
    "branches": {
        "scheme": "tokens/2 by heun, channels step 2 width 1/4 by midpoint & tokens/2 by heun again"
    },
}
FIRST = ("transformer", "llama")
OTHERS = [kind for kind in BLOCKS | MORE if kind not in (*FIRST, "swish_rnn", "gmlp")]


def small(dtype=None, **options) -> LanguageModel:
    shapes = (V, 16, 32, 2, 2)
    config = EncoderConfig(*shapes, max_length=12, causal=True, **{**PLAIN, **options})
    return built(LanguageModel, config, dtype=dtype, noise=0.2)


def rows(batch=2, length=L):
    return ids(batch, length, vocab_size=V)


@pytest.mark.parametrize("kind", thorough(*(BLOCKS | MORE), but=(*BLOCKS, "llama", "split")))
def test_no_later_token_changes_an_output(kind):
    model, token_ids = small(**(BLOCKS | MORE)[kind]), rows()
    called = tf.function(lambda token_ids: model({"token_ids": token_ids}), autograph=False)
    whole = np.asarray(called(token_ids))
    assert whole.shape == (2, L, V)
    for t in range(1, L):
        changed = token_ids.copy()
        changed[:, t] = 4 + (changed[:, t] - 3) % (V - 4)
        found = np.asarray(called(changed))
        np.testing.assert_array_equal(found[:, :t], whole[:, :t])
        assert np.abs(found[:, t:] - whole[:, t:]).max(axis=(0, 2)).min() > 1e-4


@pytest.mark.parametrize(
    ("kind", "max_length"),
    [
        *((kind, None) for kind in FIRST),
        ("gmlp", None),  # without cached decoding, every step computes the whole text
        *thorough(("swish_rnn", None), ("gmlp", 9)),
        *slow(*((kind, 9) for kind in (*FIRST, "swish_rnn"))),
        *slow(*((kind, length) for kind in OTHERS for length in (None, 9))),
    ],
)
def test_cached_steps_and_reading_equal_the_whole_model(kind, max_length):
    model, token_ids = small(**(BLOCKS | MORE)[kind]), rows(6)
    whole = np.asarray(model({"token_ids": token_ids})).reshape(3, 2, L, V)

    @tf.function(autograph=False)
    def cached(tokens):  # `(B, K, L)`: three rows of two texts each
        context, cache = model.init_decode(tf.shape(tokens)[0], 2, max_length)
        steps = []
        for t in range(L):
            logits, cache = model.decode_step(tokens[:, :, t], tf.constant(t), context, cache)
            steps.append(logits)
        return tf.stack(steps, axis=2), cache

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)], autograph=False)
    def read(tokens):  # `(B, L)`
        context, cache = model.init_decode(tf.shape(tokens)[0], 1, max_length)
        cache = model.prefill(tokens[:, :4], tf.constant(0), context, cache)
        return model.prefill(tokens[:, 4:], tf.constant(4), context, cache)

    found, by_steps = cached(tf.constant(token_ids.reshape(3, 2, L)))
    np.testing.assert_allclose(found, whole, atol=2e-5)
    assert model.can_prefill
    caches = (keras.tree.flatten(cache) for cache in (read(token_ids), by_steps))
    for at_once, one in zip(*caches, strict=True):
        # `(B, K, ...) -> (B K, 1, ...)`
        one = np.reshape(one, at_once.shape).astype("float32")
        np.testing.assert_allclose(np.asarray(at_once, "float32"), one, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["transformer", "swish_rnn"])
def test_reading_under_bfloat16_is_near_steps_that_xla_compiles(kind):
    model, token_ids = small("mixed_bfloat16", **BLOCKS[kind]), rows(2)
    context, cache = model.init_decode(2, 1, L)

    @tf.function(jit_compile=True, autograph=False)
    def by_steps(tokens, cache):
        for t in range(L):
            logits, cache = model.decode_step(tokens[:, t : t + 1], tf.constant(t), context, cache)
        return logits, cache

    expected = by_steps(tf.constant(token_ids), cache)
    cache = model.prefill(token_ids[:, :-1], 0, context, cache)
    found = model.decode_step(token_ids[:, -1:], L - 1, context, cache)
    for one, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
        bound = bfloat16_error(2 * 2 * 24) * np.abs(numpy_of(other)).max()  # twice two layers
        np.testing.assert_allclose(numpy_of(one), numpy_of(other), rtol=0, atol=bound)
    whole = numpy_of(model({"token_ids": token_ids}))[:, -1:]
    bound = bfloat16_error(2 * 2 * 24) * np.abs(whole).max()
    np.testing.assert_allclose(numpy_of(expected[0]), whole, rtol=0, atol=bound)


def test_a_mixer_that_cannot_prefill_is_told(monkeypatch):
    monkeypatch.setattr(SwishRNN, "can_prefill", False)
    assert not small(**BLOCKS["swish_rnn"]).can_prefill and small().can_prefill


def test_what_cannot_be_is_refused():
    rejects("set causal=True", LanguageModel, EncoderConfig(V, 16, 32, 2, 2))
    rejects("max_length=13 is too long: give at most 12", small().init_decode, 2, 1, 13)
    assert small(positions="sinusoidal").init_decode(2, 1, 13)
    message = "GatedMLP has no cached decoding"
    refuses(message, small(**BLOCKS["gmlp"]).encoder.stack.init_cache, 2, 1, None)
