import numpy as np
import pytest

from macaron_tf.models import Encoder, EncoderConfig, PretrainingEncoder
from tests.harness import check_saved, ids, numpy_of, symbolic

AT = np.array([[1, 4, 6], [0, 2, 2]])
SPANS = {
    "masked_positions": AT,
    "left_boundaries": np.array([[0, 3, 5], [0, 1, 1]]),
    "right_boundaries": np.array([[2, 5, 6], [1, 3, 3]]),
    "span_positions": np.array([[0, 0, 0], [0, 1, 2]]),
}


def tiny(**overrides):
    options = {"max_length": 16, "dropout": 0.0, "initializer_range": 0.5, **overrides}
    return EncoderConfig(24, 16, 32, 2, 2, **options)


def built(model):
    model.build()
    return model


def test_only_masked_positions_are_scored():
    model, tokens = built(PretrainingEncoder(tiny())), ids(2, 7)
    everywhere = numpy_of(model({"token_ids": tokens})["masked_language"])
    some = model({"token_ids": tokens, "masked_positions": AT})["masked_language"]
    expected = np.take_along_axis(everywhere, AT[..., None], axis=1)
    np.testing.assert_allclose(numpy_of(some), expected, atol=1e-5)
    with pytest.raises(ValueError, match="sentence_pair=True"):
        model.pair_logits(everywhere)
    with pytest.raises(ValueError, match="span_boundary=True"):
        model.span_boundary_logits(everywhere, everywhere, AT)


def test_spans_are_scored_from_what_is_around_them():
    model = built(PretrainingEncoder(tiny(embedding_dim=8), span_boundary=True))
    inputs = {"token_ids": ids(2, 7), **SPANS}
    outputs = model(inputs)
    hidden = numpy_of(model.encoder(inputs))
    around = [
        np.take_along_axis(hidden, SPANS[name][..., None], axis=1)
        for name in ("left_boundaries", "right_boundaries")
    ]
    expected = model.span_boundary_logits(*around, SPANS["span_positions"])
    np.testing.assert_allclose(numpy_of(outputs["span_boundary"]), numpy_of(expected), atol=1e-5)
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        name: value.shape for name, value in symbolic(model, inputs).items()
    }


@pytest.mark.parametrize(
    "options",
    [
        {"sentence_pair": True, "span_boundary": True},
        {"head_options": {"transform": False, "activation": "relu"}},
    ],
)
def test_a_saved_model_is_the_same_one(options, tmp_path):
    model = built(PretrainingEncoder(tiny(), **options))
    check_saved(model, {"token_ids": ids(2, 7), **SPANS}, tmp_path)


def test_the_table_is_counted_once_and_heads_are_as_wide_as_it():
    config = tiny(embedding_dim=8)
    encoder = built(Encoder(config)).count_params()
    # D x E and a bias, a LayerNorm of E, and V biases.
    head = (16 * 8 + 8) + 2 * 8 + 24
    assert built(PretrainingEncoder(config)).count_params() == encoder + head
    plain = {"transform": False}
    model = built(PretrainingEncoder(tiny(), head_options=plain))
    assert model.count_params() == built(Encoder(tiny())).count_params() + 24
