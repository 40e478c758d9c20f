import keras
import numpy as np
import pytest

from macaron_tf.models.memory import SegmentLanguageModel, SegmentMemory
from tests.harness import ids, numpy_of
from tests.objectives.toy import V, tiny

XL = {"causal": True, "positions": "transformer_xl", "num_segments": 0, "embedding_norm": False}
BLOCKS = ("transformer", "macaron", "swish_rnn")


def model_of(memory_length=6, seed=1, cutoffs=(), **overrides):
    keras.utils.set_random_seed(seed)
    options = {"num_layers": 2, "rnn_step_sizes": (2,), **XL, **overrides}
    model = SegmentLanguageModel(tiny(**options), memory_length, cutoffs)
    model.build()
    return model


def segments_of(model, token_ids, length, past=None):
    """Logits of all segments, and the last past."""
    past = model.init_memory(len(token_ids)) if past is None else past
    found = []
    for start in range(0, token_ids.shape[1], length):
        segment = {"token_ids": token_ids[:, start : start + length]}
        hidden, past = model.with_memory(segment, past)
        found.append(numpy_of(model.logits(hidden)))
    return np.concatenate(found, 1), past


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_memory_that_reaches_back_to_the_start_is_the_whole_text(block, norm):
    token_ids = ids(2, 18, vocab_size=V)
    model = model_of(memory_length=18, block=block, norm=norm)
    found, _ = segments_of(model, token_ids, 6)
    np.testing.assert_allclose(found, numpy_of(model({"token_ids": token_ids})), atol=1e-4)


@pytest.mark.parametrize("cutoffs", [(), (16, 40)])
@pytest.mark.parametrize("block", BLOCKS)
def test_streaming_and_reading_are_segments_of_one_token(block, cutoffs):
    token_ids = ids(2, 9, vocab_size=V)
    model = model_of(memory_length=4, block=block, cutoffs=cutoffs)
    expected, _ = segments_of(model, token_ids, 1)
    context, cache = model.init_decode(2, 1, max_length=100)
    read = model.prefill(token_ids[:, :3], 0, context, cache)
    read = model.prefill(token_ids[:, 3:8], 3, context, read)
    for t in range(9):
        logits, cache = model.decode_step(token_ids[:, t : t + 1], t, context, cache)
        np.testing.assert_allclose(numpy_of(logits)[:, 0], expected[:, t], atol=1e-4)
    # Behind five tokens at once, more than the memory holds.
    found, read = model.decode_step(token_ids[:, 8:], 8, context, read)
    np.testing.assert_allclose(numpy_of(found), numpy_of(logits), atol=1e-4)
    for one, other in zip(keras.tree.flatten(read), keras.tree.flatten(cache), strict=True):
        np.testing.assert_allclose(numpy_of(one), numpy_of(other), atol=1e-5)
    shapes = [tuple(t.shape) for t in keras.tree.flatten(cache)]
    assert shapes == [tuple(t.shape) for t in keras.tree.flatten(model.init_decode(2, 1)[1])]


@pytest.mark.parametrize("block", BLOCKS)
def test_no_token_leaks_backwards_through_the_memory(block):
    token_ids = ids(2, 12, vocab_size=V)
    model = model_of(block=block)
    found, _ = segments_of(model, token_ids, 4)
    for t in (1, 4, 7, 8):
        changed = token_ids.copy()
        changed[:, t] = (changed[:, t] - 4 + 1) % (V - 4) + 4
        other, _ = segments_of(model, changed, 4)
        np.testing.assert_array_equal(other[:, :t], found[:, :t])
        assert np.abs(other[:, t] - found[:, t]).max() > 1e-4


def test_it_is_saved_and_loaded(tmp_path):
    model = model_of(cutoffs=(16, 40), shared_position_biases=True, clamp_length=5)
    model.keep_memory(2)
    token_ids = ids(2, 6, vocab_size=V)
    expected, _ = segments_of(model, token_ids, 3)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(segments_of(loaded, token_ids, 3)[0], expected)
    assert len(loaded.weights) == len(model.weights)


def test_memories_are_no_weights():
    model = model_of()
    before = len(model.variables)
    model.keep_memory(3)
    assert len(model.variables) == before
    assert set(model.memories) == {"training", "evaluation"}


def test_a_memory_is_kept_but_where_a_text_begins():
    model = model_of()
    memory = SegmentMemory(model.init_memory(2))
    _, past = model.with_memory({"token_ids": ids(2, 5, vocab_size=V)}, memory.read())
    memory.write(past)
    for held, new in zip(keras.tree.flatten(memory.read()), keras.tree.flatten(past), strict=True):
        np.testing.assert_array_equal(numpy_of(held), numpy_of(new))
    for held in keras.tree.flatten(memory.read(np.array([True, False]))):
        assert not numpy_of(held)[0].any() and numpy_of(held)[1].any()


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="positions='transformer_xl'"):
        SegmentLanguageModel(tiny(causal=True), 4)
    with pytest.raises(ValueError, match="memory_length=0"):
        SegmentLanguageModel(tiny(**XL), 0)
    with pytest.raises(ValueError, match="not gmlp"):
        tiny(block="gmlp", **XL)
