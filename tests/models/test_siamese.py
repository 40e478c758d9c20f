import dataclasses

import keras
import numpy as np
import pytest

from macaron_tf.layers import BLOCKS
from macaron_tf.models import EncoderConfig
from macaron_tf.models.siamese import SiameseEncoder, unit_length
from tests.harness import check_saved, ids, normal, numpy_of, symbolic

CONFIG = EncoderConfig(24, 16, 48, 2, 2, max_length=16, initializer_range=0.2)
# The concatenations of the paper's table 6, in NumPy.
TABLE = {
    "u,v": lambda u, v: [u, v],
    "|u-v|": lambda u, v: [abs(u - v)],
    "u*v": lambda u, v: [u * v],
    "|u-v|,u*v": lambda u, v: [abs(u - v), u * v],
    "u,v,u*v": lambda u, v: [u, v, u * v],
    "u,v,|u-v|": lambda u, v: [u, v, abs(u - v)],
    "u,v,|u-v|,u*v": lambda u, v: [u, v, abs(u - v), u * v],
}


def built(*args, **options):
    keras.utils.set_random_seed(1)
    model = SiameseEncoder(*args, **options)
    model.build()
    return model


def pairs(count=3, length=7):
    """(B, 2, L) ids, some rows shorter."""
    tokens = ids(count, 2, length)
    tokens[0, 1, 3:] = 0
    tokens[-1, 0, 2:] = 0
    return tokens


@pytest.mark.parametrize(
    "block, pooling",
    [*((block, "mean") for block in BLOCKS), ("transformer", "max"), ("transformer", "cls")],
)
def test_a_sentence_has_one_vector_wherever_it_stands(block, pooling):
    model, tokens = built(dataclasses.replace(CONFIG, block=block), pooling), pairs()
    together = numpy_of(model({"token_ids": tokens}))
    assert together.shape == (3, 2, 16) == symbolic(model, {"token_ids": tokens}).shape
    swapped = numpy_of(model({"token_ids": tokens[:, ::-1]}))
    np.testing.assert_allclose(swapped[:, ::-1], together, atol=1e-5)
    alone = numpy_of(model({"token_ids": tokens[0, 1, None, :3]}))  # and without its padding
    np.testing.assert_allclose(alone[0], together[0, 1], atol=1e-5)
    assert np.abs(together[0, 0] - together[0, 1]).max() > 0.1


@pytest.mark.parametrize("concatenation", TABLE)
def test_the_classifier_sees_what_the_table_says(concatenation):
    model = built(CONFIG, num_classes=3, concatenation=concatenation)
    u, v = normal(4, 16), normal(4, 16, seed=1)
    found = numpy_of(model.pair_logits(u, v))
    features = np.concatenate(TABLE[concatenation](u, v), axis=1)
    kernel, bias = (numpy_of(w) for w in (model.head.dense.kernel, model.head.dense.bias))
    np.testing.assert_allclose(found, features @ kernel + bias, atol=1e-5)
    if "u," not in concatenation:
        np.testing.assert_allclose(numpy_of(model.pair_logits(v, u)), found, atol=1e-6)


def test_unit_vectors_if_asked():
    tokens = pairs()
    plain = numpy_of(built(CONFIG)({"token_ids": tokens}))
    found = numpy_of(built(CONFIG, normalize=True)({"token_ids": tokens}))
    expected = plain / np.linalg.norm(plain, axis=-1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(numpy_of(unit_length(np.zeros((2, 3), "float32"))), 0)


def test_a_saved_model_is_the_same_one(tmp_path):
    model, tokens = built(CONFIG, "max", True, 3, "|u-v|,u*v"), pairs()
    loaded = check_saved(model, {"token_ids": tokens}, tmp_path)
    v = model({"token_ids": tokens})
    logits = [numpy_of(one.pair_logits(v[:, 0], v[:, 1])) for one in (model, loaded)]
    np.testing.assert_array_equal(*logits)


def test_vectors_are_float32_under_every_policy():
    model = built(CONFIG, num_classes=2, dtype="mixed_bfloat16")
    vectors = model({"token_ids": pairs()})
    assert vectors.dtype == "float32"
    assert keras.backend.standardize_dtype(model.encoder.compute_dtype) == "bfloat16"


def test_bad_arguments_are_named():
    for text in ("u,w", "", "u,u", "u;v"):
        with pytest.raises(ValueError, match=r"concatenation='.*name each of u, v, \|u-v\|, u\*v"):
            SiameseEncoder(CONFIG, concatenation=text)
    with pytest.raises(ValueError, match="num_classes=0: it has no classifier"):
        built(CONFIG).pair_logits(normal(1, 16), normal(1, 16))
    with pytest.raises(ValueError, match="mode='sum'"):
        SiameseEncoder(CONFIG, "sum")
