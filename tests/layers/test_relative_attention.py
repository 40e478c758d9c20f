import keras
import numpy as np
import pytest

from macaron_tf.layers import SwishRNNBlock, TransformerBlock
from macaron_tf.layers.mixer import Context
from macaron_tf.layers.positions import RelativePositionBias
from macaron_tf.layers.relative_attention import RelativeAttention, Segment, aligned
from macaron_tf.models import EncoderConfig, Stack
from tests.harness import normal, numpy_of, randomized, weights_of

H, D = 2, 8
SIZES = {"num_heads": H, "feed_forward_dim": 192}


def by_the_equations(layer, x, past=None, seen=None, segment_ids=None, hidden=None):
    """Dai et al. 2019, section 3.3, as loops over heads, queries and keys, in float64.

    `hidden (B, L, L)` says which of the keys of x may be attended.
    """
    w = weights_of(layer)
    past = np.zeros((len(x), 0, D)) if past is None else past.astype("float64")
    seen = np.ones(past.shape[:2], bool) if seen is None else seen
    context = np.concatenate([past, x.astype("float64")], axis=1)
    held, length, width = past.shape[1], x.shape[1], D // H
    keys, values = np.split(context @ w["key_value/kernel"], 2, axis=-1)
    queries = x @ w["query/kernel"]
    outputs = np.zeros((len(x), length, D))
    for b in range(len(x)):
        for h in range(H):
            part = slice(h * width, (h + 1) * width)
            u, v = w["content_bias"][h, 0], w["distance_bias"][h, 0]
            for i in range(length):
                scores = np.full(held + length, -np.inf)
                for j in range(held + length):
                    if j < held and not seen[b, j]:
                        continue
                    if j >= held and hidden is not None and not hidden[b, i, j - held]:
                        continue
                    if layer.causal and j > held + i:
                        continue
                    distance = held + i - j
                    if layer.clamp_length:
                        distance = np.clip(distance, -layer.clamp_length, layer.clamp_length)
                    angles = distance / 10_000 ** (np.arange(0, D, 2) / D)
                    r = np.concatenate([np.sin(angles), np.cos(angles)])
                    r = (r @ w["distance/kernel"])[part]
                    q, k = queries[b, i, part], keys[b, j, part]
                    score = q @ k + q @ r + u @ k + v @ r  # (a) (b) (c) (d)
                    if layer.segments:
                        theirs = 0 if j < held else segment_ids[b, j - held]
                        which = int(segment_ids[b, i] != theirs)
                        score += (q + w["segment_bias"][h, 0]) @ w["segment_vectors"][h, which]
                    scores[j] = score / np.sqrt(width)
                weights = np.exp(scores - scores.max())
                outputs[b, i, part] = weights / weights.sum() @ values[b, :, part]
    return outputs @ w["output/kernel"]


def attention(**options):
    return RelativeAttention(H, use_bias=False, **options)


@pytest.mark.parametrize("options", [{"causal": True}, {}, {"causal": True, "clamp_length": 3}])
def test_it_is_the_paper_s_four_terms(options):
    x = normal(2, 6, D)
    layer = randomized(attention(**options), x.shape)
    np.testing.assert_allclose(numpy_of(layer(x)), by_the_equations(layer, x), atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_with_a_memory_of_which_some_is_missing(causal):
    x, past = normal(2, 4, D), normal(2, 5, D, seed=1)
    seen = np.arange(5) >= np.array([[0], [3]])
    layer = randomized(attention(causal=causal, clamp_length=6), x.shape)
    y, new = layer.mix(x, Context(), Segment(past, seen))
    np.testing.assert_allclose(numpy_of(y), by_the_equations(layer, x, past, seen), atol=1e-5)
    np.testing.assert_allclose(numpy_of(new.hidden), np.concatenate([past, x], 1)[:, -5:], atol=0)


def test_segments_and_a_mask_over_the_new_positions():
    x, past = normal(2, 4, D), normal(2, 3, D, seed=1)
    segment_ids = np.array([[0, 0, 1, 1], [0, 1, 1, 2]], "int32")
    hidden = np.random.default_rng(0).random((2, 4, 4)) < 0.5
    layer = randomized(attention(segments=True), x.shape)
    context = Context(attention_mask=hidden, segment_ids=segment_ids)
    y, _ = layer.mix(x, context, Segment(past, np.ones((2, 3), bool)))
    expected = by_the_equations(layer, x, past, None, segment_ids, hidden)
    np.testing.assert_allclose(numpy_of(y), expected, atol=1e-5)


def test_the_shift_puts_every_distance_at_its_key():
    length, held = 4, 3
    total = length + held
    distances = np.arange(total, -length, -1)  # of both sides
    scores = np.broadcast_to(distances, (1, 1, length, len(distances))).astype("float32")
    expected = held + np.arange(length)[:, None] - np.arange(total)
    np.testing.assert_array_equal(numpy_of(aligned(scores, total))[0, 0], expected)


def test_no_gradient_flows_into_the_past():
    tf = pytest.importorskip("tensorflow")
    x, past = tf.constant(normal(1, 4, D)), tf.constant(normal(1, 4, D, seed=1))
    block = SwishRNNBlock(**SIZES, causal=True, relative=True)
    block(x)
    held = block.init_memory(1, 4)
    start = tf.constant(normal(*held[1].shape, seed=2))
    with tf.GradientTape() as tape:
        tape.watch([x, past, start])
        y, new = block.mix(x, Context(), [Segment(past, np.ones((1, 4), bool)), start])
        loss = tf.reduce_sum(y**2) + tf.reduce_sum(new[0].hidden) + tf.reduce_sum(new[1])
    gradients = tape.gradient(loss, [x, past, start])
    assert gradients[0] is not None and gradients[1] is None and gradients[2] is None


def stack_of(block: str, layers=1, shared_biases=False):
    keras.utils.set_random_seed(3)
    config = EncoderConfig(8, D, 192, H, layers, block=block, positions="transformer_xl")
    stack = Stack(config, layers, causal=True, shared_biases=shared_biases)
    stack.build((None, None, D))
    return stack


def test_a_memory_that_is_too_short_forgets():
    x = normal(1, 12, D)
    stack = stack_of("transformer")
    _, past = stack.mix(x[:, :6], Context(), stack.init_memory(1, 2))
    y, _ = stack.mix(x[:, 6:], Context(), past)
    np.testing.assert_allclose(numpy_of(y)[:, 0], numpy_of(stack(x[:, 4:7]))[:, -1], atol=1e-5)


@pytest.mark.parametrize("window", [4, None])
def test_reading_at_once_is_a_token_at_a_time(window):
    """Also with a bias on the scores, and where more is read than the window holds."""
    x = normal(2, 10, D)
    layer = randomized(attention(causal=True, clamp_length=6), x.shape)
    bias = RelativePositionBias(H, 4, 8, bidirectional=False, initializer="normal")
    bias.build()
    context = Context(index=window and 0, bias=bias)
    by_steps, outputs = layer.init_cache(2, 1, window), []
    read = by_steps
    for t in range(10):
        y, by_steps = layer.mix(x[:, t], context, by_steps)
        outputs.append(numpy_of(y))
    for part in (x[:, :3], x[:, 3:]):
        y, read = layer.mix(part, context, read)
    np.testing.assert_allclose(numpy_of(y), np.stack(outputs[3:], axis=1), atol=1e-5)
    for one, other in zip(read, by_steps, strict=True):
        np.testing.assert_allclose(numpy_of(one), numpy_of(other), atol=1e-5)


def test_u_and_v_are_shared_where_asked():
    def count(shared):
        return stack_of("macaron", 3, shared_biases=shared).count_params()

    assert count(False) - count(True) == 2 * 2 * D  # u and v of two more layers


def test_a_block_without_such_attention_keeps_no_memory():
    block = TransformerBlock(**SIZES, causal=True)
    block(normal(1, 3, D))
    with pytest.raises(ValueError, match="positions='transformer_xl'"):
        block.init_memory(1, 4)


def test_dropout_is_for_training_alone():
    layer, x = RelativeAttention(H, dropout=0.5), normal(2, 5, D)
    still = numpy_of(layer(x, training=False))
    np.testing.assert_array_equal(numpy_of(layer(x)), still)
    assert (numpy_of(layer(x, training=True)) != still).any()
