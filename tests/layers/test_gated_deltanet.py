"""Tests of `GatedDeltaNet` against the recurrence, step by step, and against Qwen3-Next."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from macaron_tf.kernels.delta_rule import delta_rule, delta_step
from macaron_tf.layers import GatedDeltaNet
from macaron_tf.layers.mixer import Context
from tests.harness import normal, numpy_of, randomized

B, H, T, K, V = 2, 3, 37, 8, 12  # T is no multiple of a chunk


def columns() -> list[tf.Tensor]:
    """Returns queries, keys, values, decays, strengths and a state, all different."""
    query, key = (normal(B, H, T, K, seed=seed) for seed in (0, 1))
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    decay = -np.exp(normal(B, H, T, seed=2))
    strength = 1 / (1 + np.exp(-normal(B, H, T, seed=3)))
    arrays = (query, key, normal(B, H, T, V, seed=4), decay, strength, normal(B, H, K, V, seed=5))
    return [tf.constant(array, tf.float32) for array in arrays]


def step_by_step(*arrays):
    *inputs, state = arrays
    outputs = []
    for t in range(T):
        y, state = delta_step(*(x[:, :, t] for x in inputs), state)
        outputs.append(y)
    return ops.stack(outputs, axis=2), state


# With strong decays, exp(g[j] - g[i]) at j > i would overflow.
@pytest.mark.parametrize("chunk, decays", [(5, 1), (16, 1), (64, 1), (64, 300)])
def test_chunks_equal_steps_and_so_do_their_gradients(chunk, decays):
    results = []
    for function in (step_by_step, lambda *arrays: delta_rule(*arrays, chunk=chunk)):
        arrays = columns()
        arrays[3] *= decays
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            y, state = function(*arrays)
            total = ops.sum(ops.sin(y)) + ops.sum(ops.cos(state))
        results.append([y, state, *tape.gradient(total, arrays)])
    # Sums of up to T products, in float32.
    for by_steps, by_chunks in zip(*results, strict=True):
        np.testing.assert_allclose(by_chunks, by_steps, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_any_length_and_xla(compiled):
    arrays = columns()
    signature = [tf.TensorSpec((None, H, None, *x.shape[3:])) for x in arrays[:5]]
    signature.append(tf.TensorSpec((None, *arrays[5].shape[1:])))
    options = {"jit_compile": True} if compiled else {"input_signature": signature}
    function = tf.function(
        lambda *arrays: delta_rule(*arrays, chunk=16), autograph=False, **options
    )
    for found, expected in zip(function(*arrays), step_by_step(*arrays), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def layer_of(causal: bool) -> GatedDeltaNet:
    return randomized(GatedDeltaNet(4, causal=causal), (B, T, 32), scale=0.3)


def test_steps_and_segments_equal_the_whole():
    layer, x = layer_of(causal=True), normal(B, T, 32)
    whole = numpy_of(layer(x))
    state, steps = layer.init_cache(1, B, None), []
    for t in range(T):
        y, state = layer.mix(ops.convert_to_tensor(x[:, t]), Context(), state)
        steps.append(numpy_of(y))
    np.testing.assert_allclose(np.stack(steps, 1), whole, atol=1e-5)
    first, state = layer.mix(x[:, :20], Context(), layer.init_memory(B, 0))
    second, _ = layer.mix(x[:, 20:], Context(), state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_and_later_positions(causal):
    layer, x = layer_of(causal), normal(B, T, 32)
    y = numpy_of(layer(x, mask=np.arange(T)[None] < np.array([[30], [T]])))
    np.testing.assert_allclose(y[0, :30], numpy_of(layer(x[:1, :30]))[0], atol=1e-5)
    changed = x.copy()
    changed[:, 20] += 1
    difference = np.abs(numpy_of(layer(changed)) - numpy_of(layer(x))).max(axis=(0, 2))
    assert difference[20:26].min() > 1e-3
    assert difference[:20].max() == 0 if causal else difference[15:20].min() > 1e-3


def test_it_has_as_many_matrix_weights_as_attention():
    layer = layer_of(causal=True)
    matrices = [weight for weight in layer.weights if len(weight.shape) == 2]
    # 4 D^2, and one decay and one strength for each head.
    assert sum(keras.ops.size(weight) for weight in matrices) == 4 * 32**2 + 2 * 4 * 32


@pytest.mark.thorough
def test_parity_with_qwen3_next():
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    heads, width, d_k, d_v = 4, 64, 8, 16
    sizes = {"linear_num_value_heads": heads, "linear_num_key_heads": heads}
    sizes |= {"linear_key_head_dim": d_k, "linear_value_head_dim": d_v, "hidden_size": width}
    config = qwen.Qwen3NextConfig(
        **sizes, num_hidden_layers=1, layer_types=["linear_attention"], rms_norm_eps=1e-5
    )
    torch.manual_seed(0)
    theirs = qwen.Qwen3NextGatedDeltaNet(config, 0)
    with torch.no_grad():
        theirs.norm.weight.uniform_(0.5, 1.5)
        theirs.dt_bias.uniform_(-4, 1)
    arrays = {name: value.detach().numpy() for name, value in theirs.named_parameters()}
    layer = GatedDeltaNet(heads, causal=True)
    layer.build((None, None, width))

    def joined(*parts):
        return np.concatenate([part.reshape(width, -1) for part in parts], axis=-1)

    # (2 H d_k + 2 H d_v, D) -> (D, H, 2 d_k + 2 d_v)
    mixed = arrays["in_proj_qkvz.weight"].T.reshape(width, heads, -1)
    query, key, value, gate = np.split(mixed, [d_k, 2 * d_k, 2 * d_k + d_v], axis=-1)
    layer.query_key.kernel.assign(joined(query, key))
    layer.value_gate.kernel.assign(joined(value, gate))
    strength, decay = np.moveaxis(arrays["in_proj_ba.weight"].T.reshape(width, heads, 2), -1, 0)
    layer.rates.kernel.assign(joined(decay, strength))
    taps = np.split(arrays["conv1d.weight"][:, 0].T, [heads * d_k, 2 * heads * d_k], axis=-1)
    layer.filter.assign(np.concatenate([part.reshape(4, heads, -1) for part in taps], axis=-1))
    layer.log_a.assign(arrays["A_log"])
    layer.step_bias.assign(arrays["dt_bias"])
    layer.scale.assign(arrays["norm.weight"])
    layer.output_projection.kernel.assign(arrays["out_proj.weight"].T)
    x = normal(B, 70, width)
    expected = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(numpy_of(layer(x)), expected, atol=1e-5)
