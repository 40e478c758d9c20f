"""Tests of attention: plain, with T5's relative bias, and with Transformer-XL's positions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.layers import MultiHeadAttention, RelativePositionBias, SwishRNNBlock
from macaron_tf.layers.mixer import Context
from macaron_tf.layers.relative_attention import RelativeAttention, Segment, align_with_keys
from macaron_tf.models import EncoderConfig, Stack
from tests.harness import normal, numpy_of, randomized, rejects, softmax, weights_of


def reference(layer, x, memory=None, mask=None):
    """Computes equation 1 of Vaswani et al. in a loop over heads, with a mask `(T, S)`."""
    width = layer.num_heads * (layer.head_dim or x.shape[-1] // layer.num_heads)
    if layer.cross:
        q = x @ np.asarray(layer.query.kernel) + np.asarray(layer.query.bias)
        kv = memory @ np.asarray(layer.key_value.kernel) + np.asarray(layer.key_value.bias)
        k, v = kv[..., :width], kv[..., width:]
    else:
        fused = layer.query_key_value
        qkv = x @ np.asarray(fused.kernel) + np.asarray(fused.bias)
        q, k, v = np.split(qkv, 3, axis=-1)
    d = width // layer.num_heads
    heads = []
    for h in range(layer.num_heads):
        part = slice(h * d, (h + 1) * d)
        scores = q[..., part] @ k[..., part].swapaxes(-1, -2) / np.sqrt(d)
        if mask is not None:
            scores = np.where(mask, scores, -1e9)
        heads.append(softmax(scores) @ v[..., part])
    out = layer.output_projection
    return np.concatenate(heads, -1) @ np.asarray(out.kernel) + np.asarray(out.bias)


@pytest.mark.parametrize(
    "options", [{}, {"head_dim": 5}, {"num_heads": 4, "causal": True}, {"cross": True}]
)
def test_attention_is_equation_1(options):
    x, layer = normal(2, 6, 8), MultiHeadAttention(**{"num_heads": 2, **options})
    given = [normal(2, 4, 8, seed=1)] if layer.cross else []
    y, mask = np.asarray(layer(x, *given)), np.tril(np.ones((6, 6), bool)) if layer.causal else None
    np.testing.assert_allclose(y, reference(layer, x, *given, mask=mask), atol=1e-5)


def banded(window, shape=(2, 6, 8)):
    """Returns a causal sliding-window attention layer with random weights."""
    return randomized(MultiHeadAttention(2, causal=True, window=window), shape)


@pytest.mark.parametrize("padded", [0, 2])
@pytest.mark.parametrize("window", [1, 3, 5])
def test_a_window_is_a_band_below_the_diagonal(window, padded):
    x, layer = normal(2, 6, 8), banded(window)
    distance = np.arange(6)[:, None] - np.arange(6)
    band = (distance >= 0) & (distance < window)
    real = np.arange(6) < np.array([[6], [6 - padded]])
    y = numpy_of(layer(x, mask=real))
    expected = reference(layer, x, mask=band & real[:, None])
    np.testing.assert_allclose(y[real], expected[real], atol=1e-5)
    assert np.isfinite(y).all()


def test_a_window_over_the_whole_text_is_none():
    x, layer, dense = normal(2, 6, 8), banded(6), banded(0)
    np.testing.assert_array_equal(layer(x), dense(x))
    assert np.abs(numpy_of(banded(5)(x)) - numpy_of(dense(x)))[:, 5].max() > 1e-3


@pytest.mark.parametrize("room", [None, 2, 12])  # a growing cache, a short and a long one
@pytest.mark.parametrize("window", [1, 4])
def test_a_cache_of_the_window_gives_what_the_whole_text_gives(window, room):
    x = normal(2, room or 9, 8)
    length, layer = x.shape[1], banded(window)
    whole = numpy_of(layer(x))
    for parts in ([1] * length, [length], [length // 2, 1, length - length // 2 - 1]):
        cache, found, start = layer.init_cache(2, 1, room), [], 0
        for count in filter(None, parts):
            context = Context(index=start if room else None)
            y, cache = layer.mix(x[:, start : start + count], context, cache)
            found.append(numpy_of(y))
            start += count
        np.testing.assert_allclose(np.concatenate(found, axis=1), whole, atol=1e-6)
        assert cache[0].shape[3] == min(length, window)


def test_masks_of_every_rank_say_the_same():
    x, layer = normal(2, 5, 8), MultiHeadAttention(2)
    keys = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    by_rank = [
        keys,
        np.broadcast_to(keys[:, None, :], (2, 5, 5)),
        np.broadcast_to(keys[:, None, None, :], (2, 2, 5, 5)),
    ]
    outputs = [np.asarray(layer(x, attention_mask=mask)) for mask in by_rank]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])
    rejects("must have rank 2, 3 or 4", layer, x, attention_mask=keys[0])


def test_a_row_with_nothing_to_attend_stays_finite():
    layer = MultiHeadAttention(2)
    y = layer(normal(1, 4, 8), attention_mask=np.zeros((1, 4), bool))
    assert np.isfinite(np.asarray(y)).all()


def test_beams_attend_the_memory_as_queries():
    x, memory, layer = normal(2, 3, 8), normal(2, 5, 8, seed=1), MultiHeadAttention(2, cross=True)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    whole = np.asarray(layer(x, memory, attention_mask=mask))
    # `(B, K, D) -> (B K, D)`, as in decoding
    y, _ = layer.mix(x.reshape(-1, 8), Context(memory_mask=mask), layer.project_memory(memory))
    np.testing.assert_allclose(np.asarray(y).reshape(x.shape), whole, atol=1e-6)


def buckets(distance, **options):
    """Returns the layer's bucket for each distance from -`distance` to `distance`."""
    layer = RelativePositionBias(2, **options)
    layer.build()
    rows = np.arange(layer.num_buckets, dtype="float32")
    layer.set_weights([np.stack([rows, -rows], axis=1)])
    bias = numpy_of(layer(query_length=distance + 1, key_length=distance + 1))
    np.testing.assert_array_equal(bias[0, 1], -bias[0, 0])
    # The first query sees distances from 0 to `distance`, and the last from -`distance` to 0.
    return np.concatenate([bias[0, 0, -1], bias[0, 0, 0, 1:]]).astype(int)


# T5's buckets of the distances 0 to 512 as (first distance, bucket). The first distances have a
# bucket each; then edges are at 8 x 16^(n/8) for 8 buckets, or at 16 x 8^(n/16) for 16.
BIDIRECTIONAL = [(8, 8), (12, 9), (16, 10), (23, 11), (32, 12), (46, 13), (64, 14), (91, 15)]
CAUSAL = [
    *[(16, 16), (19, 17), (21, 18), (24, 19), (27, 20), (31, 21), (35, 22), (40, 23)],
    *[(46, 24), (52, 25), (59, 26), (67, 27), (77, 28), (87, 29), (99, 30), (113, 31)],
]


def table(edges):
    """Returns the bucket of each distance from 0 to 512.

    `edges` lists (first distance, bucket) of the buckets that hold several distances.
    """
    starts = [(n, n) for n in range(edges[0][0])] + edges
    found = np.zeros(513, int)
    for start, bucket in starts:
        found[start:] = bucket
    return found


def test_buckets_to_both_sides_are_t5s():
    found = buckets(512)
    np.testing.assert_array_equal(found[512::-1], table(BIDIRECTIONAL))
    # Keys after the query have the upper 16 buckets.
    np.testing.assert_array_equal(found[513:], 16 + table(BIDIRECTIONAL)[1:])


def test_causal_buckets_are_t5s():
    found = buckets(512, bidirectional=False)
    np.testing.assert_array_equal(found[512::-1], table(CAUSAL))
    np.testing.assert_array_equal(found[513:], 0)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (64, 256), (8, 20)])
def test_buckets_are_hugging_faces(bidirectional, num_buckets, max_distance):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    options = {"num_buckets": num_buckets, "max_distance": max_distance}
    options["bidirectional"] = bidirectional
    expected = t5.T5Attention._relative_position_bucket(torch.arange(-512, 513), **options)
    np.testing.assert_array_equal(buckets(512, **options), expected.numpy())


def test_fewer_queries_are_the_last_positions():
    layer = RelativePositionBias(3, initializer="random_normal")
    layer.build()
    whole = numpy_of(layer(query_length=9, key_length=9))
    assert whole.shape == (1, 3, 9, 9)
    np.testing.assert_array_equal(layer(query_length=2, key_length=9), whole[:, :, -2:])
    lengths = {"query_length": tf.constant(2), "key_length": tf.constant(9)}
    found = tf.function(lambda: layer(**lengths))()
    np.testing.assert_array_equal(found, whole[:, :, -2:])


def test_a_row_of_the_table_learns_from_its_distances_alone():
    layer = RelativePositionBias(1)
    layer.build()
    weights = normal(5, 5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(query_length=5, key_length=5)[0, 0] * weights)
    gradient = numpy_of(tape.gradient(loss, layer.table.value))[:, 0]
    expected = np.zeros(32)
    for distance in range(-4, 5):
        row = -distance if distance <= 0 else 16 + distance
        expected[row] = np.trace(weights, offset=distance)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_it_starts_at_0_in_float32_and_is_made_again_from_its_config():
    layer = RelativePositionBias(2, 16, 40, bidirectional=False, dtype="mixed_bfloat16")
    layer.build()
    bias = layer(query_length=3, key_length=3)
    assert keras.backend.standardize_dtype(bias.dtype) == layer.table.dtype == "float32"
    np.testing.assert_array_equal(bias, 0)
    config = layer.get_config()
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert copy.get_config() == config
    for name in set(config) - {"name", "trainable", "dtype"}:
        assert hasattr(layer, name)


@pytest.mark.parametrize("relative_bias", ["shared", "per_layer"])
@pytest.mark.parametrize("block", ["transformer", "macaron", "swish_rnn"])
def test_it_reaches_the_scores_in_float32_under_bfloat16(block, relative_bias, monkeypatch):
    config = EncoderConfig(8, 6, 12, 2, 2, block=block, relative_bias=relative_bias)
    stack = Stack(config, 2, dtype="mixed_bfloat16")
    x = normal(2, 5, 6)
    stack.build(x.shape)
    for layer in stack.biases:
        layer.set_weights([1 + 2.0**-20 * np.arange(64, dtype="float32").reshape(32, 2)])
    expected = numpy_of(stack.biases[-1](query_length=5, key_length=5))
    assert len(np.unique(expected)) > 8  # equal in bfloat16
    added, attend = [], MultiHeadAttention._attend

    def seen(self, query, key, value, mask, bias, *rest):
        assert query.dtype == key.dtype == value.dtype == tf.bfloat16
        added.append(numpy_of(bias))
        return attend(self, query, key, value, mask, bias, *rest)

    monkeypatch.setattr(MultiHeadAttention, "_attend", seen)
    y = stack(x)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert len(added) == 2
    for bias in added:
        assert bias.dtype == np.float32
        np.testing.assert_array_equal(bias, expected)


H, D = 2, 8
SIZES = {"num_heads": H, "feed_forward_dim": 192}


def by_the_equations(layer, x, past=None, seen=None, segment_ids=None, hidden=None):
    """Computes section 3.3 of Dai et al. 2019 with loops over heads, queries and keys in float64.

    `hidden`, `(B, L, L)`, is True where a query may attend to a key of x.
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
    distances = np.arange(total, -length, -1)  # of both directions
    scores = np.broadcast_to(distances, (1, 1, length, len(distances))).astype("float32")
    expected = held + np.arange(length)[:, None] - np.arange(total)
    np.testing.assert_array_equal(numpy_of(align_with_keys(scores, total))[0, 0], expected)


def test_no_gradient_flows_into_the_past():
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
    """Prefill equals token-by-token decoding.

    The text is longer than the window of the cache, and a relative bias is used with a window.
    """
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
