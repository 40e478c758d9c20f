"""Tests of models with memory of earlier segments: Transformer-XL and XLNet's two streams."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp

from macaron_tf.models import SegmentLanguageModel, TwoStreamModel
from macaron_tf.models.segment_memory import SegmentMemory
from macaron_tf.objectives import CausalLanguageObjective
from tests.harness import built, ids, numpy_of, rejects
from tests.toys.marks import slow, thorough
from tests.toys.objectives import V, tiny

XL = {"causal": True, "positions": "transformer_xl", "num_segments": 0, "embedding_norm": False}
BLOCKS = ("transformer", "macaron", "swish_rnn")


def language_model(memory_length=6, **overrides):
    config = tiny(**{"num_layers": 2, "rnn_step_sizes": (2,), **XL, **overrides})
    return built(SegmentLanguageModel, config, memory_length)


ADAPTIVE = {"adaptive_cutoffs": (16, 40), "adaptive_divisor": 2}
SOFTMAXES = [{}, ADAPTIVE, {**ADAPTIVE, "adaptive_divisor": 1}, {**ADAPTIVE, "tied": False}]


def other_token(token_ids, row, column):
    """Returns a copy of the ids with other tokens at the given rows and columns."""
    changed = token_ids.copy()
    changed[row, column] = (changed[row, column] - 4 + 1) % (V - 4) + 4
    return changed


def segments_of(model, token_ids, length, past=None):
    """Processes token ids in segments of `length`; returns all logits and the last memory."""
    past = model.init_memory(len(token_ids)) if past is None else past
    found = []
    for start in range(0, token_ids.shape[1], length):
        segment = {"token_ids": token_ids[:, start : start + length]}
        hidden, past = model.with_memory(segment, past)
        found.append(numpy_of(model.logits(hidden)))
    return np.concatenate(found, 1), past


SPLIT = {"scheme": "channels/2, tokens/2 by heun, channels/2 again, tokens/2"}


@pytest.mark.parametrize(
    "options",
    [
        *({"block": block, "norm": norm} for block in BLOCKS for norm in ("pre", "post")),
        *thorough({"block": "transformer", **SPLIT}, {"block": "swish_rnn", **SPLIT}),
    ],
)
def test_a_memory_that_reaches_back_to_the_start_is_the_whole_text(options):
    token_ids = ids(2, 18, vocab_size=V)
    model = language_model(memory_length=18, **options)
    found, _ = segments_of(model, token_ids, 6)
    np.testing.assert_allclose(found, numpy_of(model({"token_ids": token_ids})), atol=1e-4)


@pytest.mark.parametrize(
    ("block", "softmax"),
    [
        *((block, {}) for block in ("transformer", "swish_rnn")),
        ("transformer", ADAPTIVE),
        *slow(("macaron", {}), *(("transformer", options) for options in SOFTMAXES[2:])),
    ],
)
def test_streaming_and_reading_are_segments_of_one_token(block, softmax):
    token_ids = ids(2, 9, vocab_size=V)
    model = language_model(memory_length=4, block=block, **softmax)
    expected, _ = segments_of(model, token_ids, 1)
    context, cache = model.init_decode(2, 1, max_length=100)
    read = model.prefill(token_ids[:, :3], 0, context, cache)
    read = model.prefill(token_ids[:, 3:8], 3, context, read)
    for t in range(9):
        logits, cache = model.decode_step(token_ids[:, t : t + 1], t, context, cache)
        np.testing.assert_allclose(numpy_of(logits)[:, 0], expected[:, t], atol=1e-4)
    # After a chunk of five tokens, which is longer than the memory.
    found, read = model.decode_step(token_ids[:, 8:], 8, context, read)
    np.testing.assert_allclose(numpy_of(found), numpy_of(logits), atol=1e-4)
    for one, other in zip(keras.tree.flatten(read), keras.tree.flatten(cache), strict=True):
        np.testing.assert_allclose(numpy_of(one), numpy_of(other), atol=1e-5)
    shapes = [tuple(t.shape) for t in keras.tree.flatten(cache)]
    assert shapes == [tuple(t.shape) for t in keras.tree.flatten(model.init_decode(2, 1)[1])]


@pytest.mark.parametrize("softmax", SOFTMAXES[1:])
def test_an_adaptive_softmax_learns_writes_and_is_as_tied_as_said(softmax):
    """An adaptive softmax gives normalized log-probabilities, and the loss is the cross-entropy.

    Every row of a tied embedding table has a gradient.
    """
    token_ids = ids(2, 9, vocab_size=V)
    model = language_model(memory_length=4, **softmax)
    rows = {"token_ids": tf.constant(token_ids)}
    with tf.GradientTape() as tape:
        sums = CausalLanguageObjective()(model, rows, training=True)
    logits, labels = numpy_of(model(rows))[:, :-1], token_ids[:, 1:]
    np.testing.assert_allclose(logsumexp(logits, axis=-1), 0.0, atol=1e-5)
    nll = -np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(numpy_of(sums["loss_sum"]), nll[labels != 0].sum(), rtol=1e-5)
    variables = model.trainable_variables
    gradients = tape.gradient(sums["loss_sum"], [v.value for v in variables])
    assert not [v.path for v, g in zip(variables, gradients, strict=True) if g is None]
    # Every row of a tied table has a gradient, whether or not the text contains its token.
    rows_of = [
        tf.reduce_any(tf.convert_to_tensor(g) != 0, axis=-1)
        for v, g in zip(variables, gradients, strict=True)
        if "/tokens/" in v.path and v.path.endswith("table")
    ]
    assert bool(tf.reduce_all(tf.concat(rows_of, 0))) == model.config.tied
    assert sum(len(found) for found in rows_of) == V


def test_all_attentions_of_split_layers_share_one_pair_of_biases():
    options = {"positions": "transformer_xl", "scheme": "2 x (tokens/2, channels/2)"}
    for shared, pairs in ((True, 1), (False, 4)):
        config = tiny(causal=True, num_layers=2, shared_position_biases=shared, **options)
        model = built(SegmentLanguageModel, config, memory_length=3)
        assert sum("content_bias" in weight.path for weight in model.weights) == pairs


def test_a_memory_is_kept_but_where_a_text_begins():
    model = language_model()
    memory = SegmentMemory(model.init_memory(2))
    _, past = model.with_memory({"token_ids": ids(2, 5, vocab_size=V)}, memory.read())
    memory.write(past)
    for held, new in zip(keras.tree.flatten(memory.read()), keras.tree.flatten(past), strict=True):
        np.testing.assert_array_equal(numpy_of(held), numpy_of(new))
    for held in keras.tree.flatten(memory.read(np.array([True, False]))):
        assert not numpy_of(held)[0].any() and numpy_of(held)[1].any()


L = 7


def two_streams(**overrides):
    options = {"positions": "transformer_xl", "embedding_norm": False, "num_layers": 2}
    return built(TwoStreamModel, tiny(**options, **overrides), 5)


def inputs_of(guessed=(1, 3, 4), seed=0):
    """Returns two rows whose tokens at `guessed` are predicted, in a random order for each row."""
    order = np.full((2, L), -1, "int32")
    rng = np.random.default_rng(seed)
    for row in order:
        row[list(guessed)] = rng.permutation(len(guessed))
    return {
        "token_ids": ids(2, L, vocab_size=V),
        "segment_ids": np.array([[0, 0, 0, 0, 1, 1, 1]] * 2, "int32"),
        "order": order,
        "masked_positions": np.array([guessed] * 2, "int32"),
    }


@pytest.mark.parametrize(
    "options",
    [
        {"block": "transformer"},
        *slow({"scheme": "tokens/2 by heun, channels, tokens/2 again"}, {"block": "macaron"}),
    ],
)
def test_a_guess_sees_what_is_before_it_in_the_order_and_never_itself(options):
    model, inputs = two_streams(**options), inputs_of()
    past = model.call(inputs_of(seed=1))["memory"]
    found = model.call({**inputs, "memory": past})
    for column in range(L):
        token_ids = other_token(inputs["token_ids"], 0, column)
        other = model.call({**inputs, "token_ids": token_ids, "memory": past})
        order, positions = inputs["order"][0], inputs["masked_positions"][0]
        moved = np.abs(numpy_of(other["query"]) - numpy_of(found["query"])).max(-1)
        np.testing.assert_array_equal(moved[1], 0)
        np.testing.assert_array_equal(moved[0] > 1e-6, order[column] < order[positions])
        moved = np.abs(numpy_of(other["content"]) - numpy_of(found["content"])).max(-1)
        np.testing.assert_array_equal(moved[0] > 1e-6, order[column] <= order)


def test_padding_adds_nothing_to_a_guess_of_the_first_token():
    model, inputs = two_streams(), inputs_of((0, 3))
    padded = {**inputs, "masked_positions": np.array([(0, 3, -1, -1)] * 2, "int32")}
    found, expected = (numpy_of(model(rows)["query"]) for rows in (padded, inputs))
    np.testing.assert_allclose(found[:, :2], expected, atol=1e-6)


def test_what_tells_a_query_its_own_token_is_refused():
    rejects("two streams need block", two_streams, block="swish_rnn")
    rejects("two streams need", two_streams, causal=True)
