import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models.memory import SegmentLanguageModel
from macaron_tf.objectives import MaskingConfig, SegmentLanguageObjective
from macaron_tf.training.fit_model import FitModel
from tests.harness import numpy_of
from tests.objectives.toy import CLS, SEP, VOCABULARY, floats, nll_of, tiny

BATCH, LENGTH, SEGMENT = 4, 10, 8


def network_of(block="transformer", memory_length=8, rows=BATCH, **overrides):
    keras.utils.set_random_seed(1)
    options = {
        "causal": True,
        "positions": "transformer_xl",
        "num_segments": 0,
        "num_layers": 2,
        "block": block,
        **overrides,
    }
    network = SegmentLanguageModel(tiny(**options), memory_length)
    network.build()
    network.keep_memory(rows)
    return network


def streams(count=6, padded=False) -> tf.data.Dataset:
    """Rows of texts that go on, like `stream_dataset`'s; the pieces 5 to 59 are said in turn,
    twice each: where in its pair a row begins only the row before tells."""
    text = 5 + np.arange(BATCH)[:, None] * 7 + np.arange(count * SEGMENT) // 2
    text = 5 + (text - 5) % 55
    rows = np.zeros((count, BATCH, LENGTH), "int32")
    rows[:, :, 0], rows[:, :, -1] = CLS, SEP
    rows[:, :, 1:-1] = text.reshape(BATCH, count, SEGMENT).transpose(1, 0, 2)
    if padded:
        rows[1, :, 4:] = 0
        rows[1, :, 4] = SEP
    previous = np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])
    starts = np.arange(count)[:, None] == np.zeros(BATCH, int)
    slices = {"token_ids": rows, "previous_ids": previous, "starts": starts}
    return tf.data.Dataset.from_tensor_slices(slices)


def segments(count=6, padded=False) -> tf.data.Dataset:
    rows = streams(count, padded)
    return SegmentLanguageObjective().dataset(rows, MaskingConfig(), VOCABULARY, seed=0)


def test_segments_are_the_text_and_the_token_before_each():
    rows = list(streams(4, padded=True).as_numpy_iterator())
    found = list(segments(4, padded=True).as_numpy_iterator())
    for row, batch in zip(rows, found, strict=True):
        np.testing.assert_array_equal(batch["labels"], row["token_ids"][:, 1:-1])
        np.testing.assert_array_equal(batch["token_ids"][:, 1:], batch["labels"][:, :-1])
    np.testing.assert_array_equal(found[0]["token_ids"][:, 0], CLS)
    np.testing.assert_array_equal(found[1]["token_ids"][:, 0], found[0]["labels"][:, -1])
    np.testing.assert_array_equal(found[2]["token_ids"][:, 0], SEP)  # behind padding


@pytest.mark.parametrize("skip", [True, False])
def test_sums_are_those_of_one_long_text(skip):
    network = network_of(memory_length=64)
    objective = SegmentLanguageObjective(skip_padding=skip)
    batches = list(segments(3))
    whole = np.concatenate([batch["token_ids"] for batch in batches], 1)
    labels = np.concatenate([batch["labels"] for batch in batches], 1)
    logits = numpy_of(network({"token_ids": whole}))
    for t, batch in enumerate(batches):
        part = slice(t * SEGMENT, (t + 1) * SEGMENT)
        found = floats(objective(network, batch, training=False))
        nll = nll_of(logits[:, part], labels[:, part]).sum()
        assert found["nll_sum"] == pytest.approx(nll, rel=1e-4)
        assert found["weight"] == BATCH * SEGMENT


def test_evaluation_leaves_the_memory_of_training_alone():
    network, objective = network_of(), SegmentLanguageObjective()
    first, second = segments(2)
    objective(network, first, training=True)
    kept = [numpy_of(v) for v in network.memories["training"].variables]
    assert any(value.any() for value in kept)
    for batch in (first, second):
        objective(network, batch, training=False)
    for before, after in zip(kept, network.memories["training"].variables, strict=True):
        np.testing.assert_array_equal(before, numpy_of(after))
    again = floats(objective(network, first, training=False))
    fresh = floats(objective(network_of(), first, training=False))
    assert again["loss_sum"] == fresh["loss_sum"]  # a text that begins has no memory


@pytest.mark.parametrize(
    "block",
    ["swish_rnn", *(pytest.param(b, marks=pytest.mark.slow) for b in ("transformer", "macaron"))],
)
def test_it_trains_compiled_and_uses_its_memory(block):
    network = network_of(block, rnn_step_sizes=(2,), num_layers=1)
    objective = SegmentLanguageObjective(skip_padding=False)
    model = FitModel(network, objective)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=True)
    data = segments(12).repeat()
    losses = model.fit(data, steps_per_epoch=24, epochs=3, verbose=0).history["nll"]
    assert model.traces["train"] == 1
    assert losses[-1] < 0.5 * losses[0]
    first = list(segments(2))[1]
    with_memory = [floats(objective(network, b, training=False)) for b in segments(2)][1]
    alone = floats(objective(network, {**first, "starts": tf.fill([BATCH], True)}, training=False))
    assert with_memory["nll_sum"] != alone["nll_sum"]
