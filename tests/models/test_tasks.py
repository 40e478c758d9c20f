"""The task models: shapes, masks, both orders of two texts, configuration, dtypes."""

import numpy as np
import pytest

from macaron_tf.models import (
    CausalChooser,
    CausalClassifier,
    EncoderClassifier,
    EncoderConfig,
    EncoderSpanReader,
    EncoderTagger,
)
from macaron_tf.models.tasks import answer_mask, swapped
from tests.harness import check_saved, ids, numpy_of, symbolic

START, DELIMITER, EXTRACT = 2, 3, 4
CONFIG = EncoderConfig(
    24, 16, 32, 2, 2, max_length=12, causal=True, num_segments=0, norm="pre",
    embedding_norm=False, dropout=0.0, attention_dropout=0.0, initializer_range=0.3,
)  # fmt: skip
# start a delimiter b extract, of several lengths, and a row of padding.
PAIRS = [([5, 6, 7], [8]), ([5], [9, 10, 11, 12]), ([], [13]), ([14], []), None]


def row(first, second, length=10):
    ids = [START, *first, DELIMITER, *second, EXTRACT]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return [values + [0] * (length - len(ids)) for values in (ids, segments)]


def batch(pairs):
    rows = [row(*pair) if pair else [[0] * 10] * 2 for pair in pairs]
    ids, segments = (np.array(columns, "int32") for columns in zip(*rows, strict=True))
    return {"token_ids": ids, "segment_ids": segments}


def built(model):
    model.build()
    rng = np.random.default_rng(0)
    model.set_weights([w + rng.normal(0, 0.2, w.shape) for w in model.get_weights()])
    return model


def last_vectors(model, token_ids):
    """Of rows `(N, L)`, one by one and without padding."""
    found = []
    for row_ids in token_ids:
        real = row_ids[row_ids != 0][None]
        hidden = numpy_of(model.encoder({"token_ids": real})) if real.size else np.zeros((1, 1, 16))
        found.append(hidden[0, -1])
    return np.array(found)


def linear(model, vectors):
    kernel, bias = (numpy_of(weight) for weight in model.head.weights)
    return vectors @ kernel + bias


def test_two_texts_change_places():
    found = np.asarray(swapped(**batch(PAIRS)))
    other = batch([pair and pair[::-1] for pair in PAIRS])["token_ids"]
    np.testing.assert_array_equal(found, other)


def test_the_last_position_is_classified():
    model, inputs = built(CausalClassifier(CONFIG, 3, head_dropout=0.0)), batch(PAIRS[:4])
    expected = linear(model, last_vectors(model, inputs["token_ids"]))
    np.testing.assert_allclose(numpy_of(model(inputs)), expected, atol=1e-5)
    logits, token_ids, hidden = model.answers_and_hidden(inputs)
    np.testing.assert_array_equal(numpy_of(logits), numpy_of(model(inputs)))
    np.testing.assert_array_equal(np.asarray(token_ids)[:, 0], inputs["token_ids"])
    assert hidden.shape == (4, 1, 10, 16) and symbolic(model, inputs).shape == (4, 3)


def test_both_orders_are_added():
    model = built(CausalClassifier(CONFIG, 1, head_dropout=0.0, symmetric=True))
    inputs, other = batch(PAIRS[:4]), batch([pair[::-1] for pair in PAIRS[:4]])
    vectors = sum(last_vectors(model, rows["token_ids"]) for rows in (inputs, other))
    np.testing.assert_allclose(numpy_of(model(inputs)), linear(model, vectors), atol=1e-5)
    np.testing.assert_allclose(numpy_of(model(inputs)), numpy_of(model(other)), atol=1e-5)


def test_each_choice_is_scored():
    model = built(CausalChooser(CONFIG, head_dropout=0.0))
    rows = batch(PAIRS[:4])["token_ids"].reshape(2, 2, 10)
    expected = linear(model, last_vectors(model, rows.reshape(4, 10))).reshape(2, 2)
    np.testing.assert_allclose(numpy_of(model({"token_ids": rows})), expected, atol=1e-5)
    assert symbolic(model, {"token_ids": ids(5, 2, 10)}).shape == (5, 2)


ENCODER = EncoderConfig(24, 16, 32, 2, 1, max_length=12)
MAKE = {
    "spans": lambda **options: EncoderSpanReader(ENCODER, **options),
    "tags": lambda **options: EncoderTagger(ENCODER, 5, 0.2, **options),
    "classes": lambda **options: EncoderClassifier(ENCODER, 3, **options),
    "causal": lambda **options: CausalClassifier(CONFIG, 2, symmetric=True, **options),
    "choices": lambda **options: CausalChooser(CONFIG, **options),
}
SHAPES = {"spans": (3, 2, 10), "tags": (3, 10, 5), "classes": (3, 3), "causal": (3, 2)}


def inputs():
    tokens = ids(3, 10)
    segments = np.zeros_like(tokens)
    for row, (boundary, length) in enumerate(((3, 10), (2, 6), (4, 5))):
        tokens[row, length:] = 0
        segments[row, boundary:length] = 1
    return {"token_ids": tokens, "segment_ids": segments}


@pytest.mark.parametrize("name", MAKE)
def test_a_saved_model_and_one_of_bfloat16_give_the_same(name, tmp_path):
    network = MAKE[name]()
    network.build()
    assert (network.pooler is None) == (name != "classes")
    given = inputs()
    if name == "choices":
        given = {"token_ids": np.stack([given["token_ids"]] * 2, axis=1)}
    logits = numpy_of(network(given, training=False))
    assert symbolic(network, given).shape == logits.shape == SHAPES.get(name, (3, 2))
    check_saved(network, given, tmp_path)
    half = MAKE[name](dtype="mixed_bfloat16")
    half.build()
    half.set_weights(network.get_weights())
    assert all(weight.dtype == "float32" for weight in half.weights)
    np.testing.assert_allclose(numpy_of(half(given, training=False)), logits, atol=0.05, rtol=0.05)


def test_an_answer_lies_in_the_context():
    given = inputs()
    allowed = np.asarray(answer_mask(given["token_ids"], given["segment_ids"]))
    assert [np.flatnonzero(row).tolist() for row in allowed] == [
        [0, 3, 4, 5, 6, 7, 8],
        [0, 2, 3, 4],
        [0],  # an empty context: [SEP] alone
    ]
    network = MAKE["spans"]()
    network.build()
    logits = numpy_of(network(given, training=False))
    assert ((logits > -1e8) == allowed[:, None]).all()


def test_padding_changes_nothing():
    given = inputs()
    for name in ("spans", "tags"):
        network = MAKE[name]()
        network.build()
        whole = numpy_of(network(given, training=False))
        short = {key: value[1:2, :6] for key, value in given.items()}
        one = numpy_of(network(short, training=False))
        same = whole[1:2, :, :6] if whole.shape[1] == 2 else whole[1:2, :6]
        np.testing.assert_allclose(one, same, atol=1e-5)


def test_dropout_is_the_taggers_own():
    network = MAKE["tags"]()
    network.build()
    given = inputs()
    one, other = (numpy_of(network(given, training=True)) for _ in range(2))
    assert not np.allclose(one, other)
