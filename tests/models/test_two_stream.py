import keras
import numpy as np
import pytest

from macaron_tf.layers.relative_attention import Segment
from macaron_tf.models.two_stream import TwoStreamModel
from tests.harness import ids, normal, numpy_of
from tests.objectives.toy import V, tiny

L = 7


def model_of(memory_length=5, **overrides):
    keras.utils.set_random_seed(2)
    options = {"positions": "transformer_xl", "embedding_norm": False, "num_layers": 2, **overrides}
    model = TwoStreamModel(tiny(**options), memory_length)
    model.build()
    return model


def inputs_of(guessed=(1, 3, 4), seed=0):
    """Two rows whose tokens at `guessed` come in an order of each row's own."""
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


def changed_at(inputs, row, column):
    token_ids = inputs["token_ids"].copy()
    token_ids[row, column] = (token_ids[row, column] - 4 + 1) % (V - 4) + 4
    return {**inputs, "token_ids": token_ids}


@pytest.mark.parametrize("block", ["transformer", "macaron"])
def test_a_guess_sees_what_is_before_it_in_the_order_and_never_itself(block):
    model, inputs = model_of(block=block), inputs_of()
    past = model.call(inputs_of(seed=1))["memory"]
    found = model.call({**inputs, "memory": past})
    for column in range(L):
        other = model.call({**changed_at(inputs, 0, column), "memory": past})
        order, positions = inputs["order"][0], inputs["masked_positions"][0]
        moved = np.abs(numpy_of(other["query"]) - numpy_of(found["query"])).max(-1)
        np.testing.assert_array_equal(moved[1], 0)
        np.testing.assert_array_equal(moved[0] > 1e-6, order[column] < order[positions])
        moved = np.abs(numpy_of(other["content"]) - numpy_of(found["content"])).max(-1)
        np.testing.assert_array_equal(moved[0] > 1e-6, order[column] <= order)


def test_the_content_stream_of_given_tokens_is_the_encoder():
    model, inputs = model_of(), inputs_of()
    inputs["order"] = np.full((2, L), -1, "int32")
    encoded = model.encoder({name: inputs[name] for name in ("token_ids", "segment_ids")})
    outputs = model(inputs)
    assert outputs["masked_language"].shape == (2, 3, V)
    np.testing.assert_allclose(numpy_of(outputs["content"]), numpy_of(encoded), atol=1e-5)


def test_the_memory_is_seen_by_both_streams():
    model, inputs = model_of(), inputs_of()
    outputs = [
        model({**inputs_of(seed=s), "memory": model.init_memory(2)})["memory"] for s in (1, 2)
    ]
    outputs[1] = [[Segment(normal(2, 5, 16), kept.seen)] for [kept] in outputs[1]]
    one, two = (model({**inputs, "memory": past}) for past in outputs)
    assert np.abs(numpy_of(one["query"]) - numpy_of(two["query"])).max() > 1e-3
    for [kept] in one["memory"]:
        np.testing.assert_array_equal(numpy_of(kept.seen), True)


def test_what_tells_a_query_its_own_token_is_refused():
    with pytest.raises(ValueError, match="would tell a query its own token"):
        model_of(block="swish_rnn")
    with pytest.raises(ValueError, match="causal=False"):
        model_of(causal=True)
