import keras
import numpy as np
import pytest

from macaron_tf.models import CausalChooser, CausalClassifier, EncoderConfig
from macaron_tf.models.tasks import swapped
from tests.harness import numpy_of

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
    for ids in token_ids:
        real = ids[ids != 0][None]
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
    assert hidden.shape == (4, 1, 10, 16) and model.compute_output_shape(
        {"token_ids": (4, 10)}
    ) == (4, 3)


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
    assert model.compute_output_shape({"token_ids": (5, 2, 10)}) == (5, 2)


@pytest.mark.parametrize("kind", ["classifier", "chooser"])
def test_saved_model_equals_the_one_in_memory(kind, tmp_path):
    inputs = batch(PAIRS[:4])
    model = CausalClassifier(CONFIG, 2, symmetric=True) if kind == "classifier" else None
    if model is None:
        model = CausalChooser(CONFIG)
        inputs = {"token_ids": inputs["token_ids"].reshape(2, 2, 10)}
    built(model).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    np.testing.assert_array_equal(numpy_of(loaded(inputs)), numpy_of(model(inputs)))
