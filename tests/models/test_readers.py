"""The networks of questions and of tags: shapes, masks, configuration, dtypes."""

import keras
import numpy as np
import pytest

from macaron_tf.models import EncoderConfig, EncoderSpanReader, EncoderTagger
from macaron_tf.models.tasks import answer_mask
from tests.harness import ids, numpy_of

CONFIG = EncoderConfig(24, 16, 32, 2, 1, max_length=12)
MAKE = {
    "spans": lambda **options: EncoderSpanReader(CONFIG, **options),
    "tags": lambda **options: EncoderTagger(CONFIG, 5, 0.2, **options),
}


def inputs():
    tokens = ids(3, 10)
    segments = np.zeros_like(tokens)
    for row, (boundary, length) in enumerate(((3, 10), (2, 6), (4, 5))):
        tokens[row, length:] = 0
        segments[row, boundary:length] = 1
    return {"token_ids": tokens, "segment_ids": segments}


@pytest.mark.parametrize("name", MAKE)
def test_a_copy_gives_the_same(name):
    network = MAKE[name]()
    network.build()
    assert network.pooler is None
    given = inputs()
    logits = numpy_of(network(given, training=False))
    shapes = {key: value.shape for key, value in given.items()}
    assert network.compute_output_shape(shapes) == logits.shape
    assert logits.shape == {"spans": (3, 2, 10), "tags": (3, 10, 5)}[name]
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(network))
    assert copy.get_config() == network.get_config()
    copy.set_weights(network.get_weights())
    np.testing.assert_array_equal(numpy_of(copy(given, training=False)), logits)
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
    for make in MAKE.values():
        network = make()
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
