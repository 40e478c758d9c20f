"""Tests of ModernBERT's parts: bidirectional local attention, two rotary bases, omitted norm."""

import numpy as np
import pytest

from macaron_tf.layers import RotaryAttention
from macaron_tf.layers.packing import packing_scope
from macaron_tf.layers.rotary import frequencies
from macaron_tf.models import Encoder, PretrainingEncoder, catalog
from tests.harness import built, check_saved, ids, int8_error, numpy_of
from tests.toys.marks import slow

V = 40
SIZES = {"vocab_size": V, "hidden_dim": 16, "feed_forward_dim": 24, "num_heads": 4}
BLOCKS = ("transformer", "macaron", "swish_rnn")


def config(**options):
    return catalog.config("modern_bert_tiny", **{**SIZES, "attention_windows": (0, 4), **options})


def rows():
    given = ids(2, 9, vocab_size=V)
    given[1, 6:] = 0
    return given


@pytest.mark.parametrize("block", slow(*BLOCKS, but=("transformer",)))
def test_the_first_sub_layer_has_no_norm_and_no_weight_a_bias(block, tmp_path):
    model = built(PretrainingEncoder, config(block=block), noise=0.3)
    paths = [weight.path for weight in model.encoder.weights]
    vectors = [p for p in paths if p.endswith(("beta", "bias"))]
    # A recurrence has its own biases, whatever `use_bias` is.
    assert all("swish_rnn" in path for path in vectors)
    first, *others = model.encoder.stack.blocks
    assert [r.norm for _, r in first.sublayers] == ["none"] + ["pre"] * (len(first.sublayers) - 1)
    assert {r.norm for block in others for _, r in block.sublayers} == {"pre"}
    heads = sorted(w.path.split("/")[-2:] for w in model.masked_language.weights)
    assert heads == [["dense", "kernel"], ["masked_language", "bias"], ["norm", "gamma"]]
    x = model.encoder.embed({"token_ids": rows()}, training=False)
    step = first.sublayers[0][1]
    moved = numpy_of(x) + step.step_size * numpy_of(step.sublayer(x))
    np.testing.assert_allclose(numpy_of(step(x)), moved, atol=1e-5)
    check_saved(model, {"token_ids": rows()}, tmp_path)


def test_a_window_is_to_both_sides():
    model = built(Encoder, config(attention_windows=4, num_layers=1), noise=0.3)
    given = ids(1, 12, vocab_size=V)
    whole = numpy_of(model(given))
    for t in range(12):
        changed = given.copy()
        changed[:, t] = 4 + (changed[:, t] - 3) % (V - 4)
        differs = np.abs(numpy_of(model(changed)) - whole).max(axis=(0, 2)) > 0
        np.testing.assert_array_equal(differs, np.abs(np.arange(12) - t) <= 2)


def test_windows_have_a_rotary_base_of_their_own():
    model = Encoder(config(num_layers=4))
    turning = [block.mixers("tokens")[0] for block in model.stack.blocks]
    assert [(a.window, a.rotary_base) for a in turning] == [(0, 160_000.0), (4, 10_000.0)] * 2
    one = Encoder(config(local_rotary_base=None)).stack.blocks[1].mixers("tokens")[0]
    assert one.rotary_base == 160_000.0


@pytest.mark.parametrize("block", BLOCKS)
def test_padding_packing_and_documents_change_nothing(block):
    model, given = built(Encoder, config(block=block), noise=0.2), rows()
    expected, real = numpy_of(model(given)), given != 0
    np.testing.assert_allclose(numpy_of(model(given[1:, :6])), expected[1:, :6], atol=2e-5)
    with packing_scope():
        packed = numpy_of(model(given))
    np.testing.assert_allclose(packed[real], expected[real], atol=2e-5)
    joined = {
        "token_ids": np.concatenate([given[:1], given[1:, :6]], axis=1),
        "document_ids": np.array([[1] * 9 + [2] * 6]),
    }
    found = numpy_of(model(joined))[0]
    np.testing.assert_allclose(found, expected[real], atol=2e-5)


@pytest.mark.slow
def test_int8_answers_nearly_alike():
    model, given = built(Encoder, config(), noise=0.2), rows()
    expected, real = numpy_of(model(given)), rows() != 0
    model.quantize("int8")
    rounded = numpy_of(model(given))
    # Queries, keys, values, outputs and three of the feed-forward network; embeddings.
    bound = int8_error(model.config.num_layers * 7 + 1) * np.std(expected)
    assert 0 < np.abs(rounded - expected)[real].max() < bound


def test_layers_with_the_same_window_share_their_weights_but_for_the_first():
    model = Encoder(config(num_layers=5, sharing="all"))
    blocks = model.stack.blocks
    kinds = [[*map(id, block.mixers())] for block in blocks]
    assert kinds[1] == kinds[3] != kinds[2] == kinds[4]
    assert kinds[0] not in kinds[1:]


def test_a_part_of_a_head_turns_and_slowed_angles_are_llama_3_s():
    given = frequencies(8, 100.0)
    np.testing.assert_allclose(frequencies(8, 100.0, (4.0,)), given / 4)
    # Turns in 100 positions: 15.9, 5.0, 1.6, 0.5.
    found = frequencies(8, 100.0, (4.0, 1.0, 9.0, 100.0))
    shares = (100 * given / (2 * np.pi) - 1) / 8
    mixed = given * (shares + (1 - shares) / 4)
    np.testing.assert_allclose(found, [given[0], mixed[1], mixed[2], given[3] / 4])
    layer = RotaryAttention(2, 6, rotary_dim=4)
    layer.build((1, 5, 12))
    x = np.ones((1, 2, 5, 6), "float32")
    query, _ = layer.rotate(x, x, np.arange(5))
    np.testing.assert_array_equal(numpy_of(query)[..., 4:], 1.0)
    assert (numpy_of(query)[0, 0, 1:, :4] != 1.0).all()
