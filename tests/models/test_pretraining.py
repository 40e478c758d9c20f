"""Tests of pre-training models: heads on an encoder, and ELECTRA."""

import dataclasses

import numpy as np
import pytest

from macaron_tf import models
from tests.harness import built, ids, numpy_of, rejects

AT = np.array([[1, 4, 6], [0, 2, 2]])
SPANS = {
    "masked_positions": AT,
    "left_boundaries": np.array([[0, 3, 5], [0, 1, 1]]),
    "right_boundaries": np.array([[2, 5, 6], [1, 3, 3]]),
    "span_positions": np.array([[0, 0, 0], [0, 1, 2]]),
}


def tiny(**overrides):
    options = {"max_length": 16, "dropout": 0.0, "initializer_range": 0.5, **overrides}
    return models.EncoderConfig(24, 16, 32, 2, 2, **options)


def test_only_masked_positions_are_scored():
    model, tokens = built(models.PretrainingEncoder, tiny()), ids(2, 7)
    everywhere = numpy_of(model({"token_ids": tokens})["masked_language"])
    some = model({"token_ids": tokens, "masked_positions": AT})["masked_language"]
    expected = np.take_along_axis(everywhere, AT[..., None], axis=1)
    np.testing.assert_allclose(numpy_of(some), expected, atol=1e-5)


def test_spans_are_scored_from_what_is_around_them():
    model = built(models.PretrainingEncoder, tiny(embedding_dim=8), span_boundary=True)
    inputs = {"token_ids": ids(2, 7), **SPANS}
    hidden = numpy_of(model.encoder(inputs["token_ids"]))
    around = [
        np.take_along_axis(hidden, SPANS[name][..., None], axis=1)
        for name in ("left_boundaries", "right_boundaries")
    ]
    expected = model.span_boundary_logits(*around, SPANS["span_positions"])
    found = model(inputs)["span_boundary"]
    np.testing.assert_allclose(numpy_of(found), numpy_of(expected), atol=1e-5)


def test_the_table_is_counted_once_and_heads_are_as_wide_as_it():
    config = tiny(embedding_dim=8)
    encoder = built(models.Encoder, config).count_params()
    # D x E and a bias, a LayerNorm of E, and V biases.
    head = (16 * 8 + 8) + 2 * 8 + 24
    assert built(models.PretrainingEncoder, config).count_params() == encoder + head
    plain = {"transform": False}
    model = built(models.PretrainingEncoder, tiny(), head_options=plain)
    assert model.count_params() == built(models.Encoder, tiny()).count_params() + 24


ELECTRA = models.EncoderConfig(24, 32, 64, 4, 2, max_length=16, embedding_dim=16)


def electra() -> models.GeneratorDiscriminator:
    return built(models.GeneratorDiscriminator, ELECTRA, models.generator_config(ELECTRA, 0.5))


@pytest.mark.parametrize(
    ("width", "inner", "heads", "fraction", "expected"),
    # ELECTRA small, base and large: table 6 of the paper.
    [
        (256, 1024, 4, 1 / 4, (64, 256, 1)),
        (768, 3072, 12, 1 / 3, (256, 1024, 4)),
        (1024, 4096, 16, 1 / 4, (256, 1024, 4)),
    ],
)
def test_a_generator_is_as_narrow_as_the_papers(width, inner, heads, fraction, expected):
    config = models.EncoderConfig(30_522, width, inner, heads, 12)
    narrow = models.generator_config(config, fraction)
    assert (narrow.hidden_dim, narrow.feed_forward_dim, narrow.num_heads) == expected
    assert (narrow.num_layers, narrow.embedding_width) == (12, width)


def test_embeddings_are_shared_and_every_weight_counted_once():
    model = electra()
    assert model.generator.encoder.embeddings is model.encoder.embeddings
    assert model.pooler is None
    assert len({id(weight) for weight in model.weights}) == len(model.weights)
    paths = [weight.path for weight in model.weights]
    assert len(set(paths)) == len(paths)
    alone = [built(models.PretrainingEncoder, model.generator_config)]
    alone += [built(models.Encoder, model.config)]
    head = 32 * 32 + 32 + 32 + 1
    twice = model.encoder.embeddings.count_params()
    assert model.count_params() == sum(one.count_params() for one in alone) - twice + head
    # Each model projects the shared embeddings to its width.
    shapes = [
        one.projection and one.projection.kernel.shape
        for one in (model.encoder, model.generator.encoder)
    ]
    assert shapes == [(16, 32), None]


def test_outputs_are_those_of_the_two_parts():
    model, inputs = electra(), {"token_ids": ids(2, 7), "masked_positions": np.array([[1, 4]] * 2)}
    outputs = model(inputs)
    shapes = {name: tuple(value.shape) for name, value in outputs.items()}
    assert shapes == {"masked_language": (2, 2, 24), "replaced_token": (2, 7)}
    hidden = model.encoder(inputs["token_ids"])
    np.testing.assert_array_equal(
        numpy_of(outputs["replaced_token"]), numpy_of(model.replaced_token(hidden))
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab_size", 32), ("embedding_dim", 8), ("max_length", 8), ("num_segments", 0)],
)
def test_embeddings_that_differ_are_refused(field, value):
    other = dataclasses.replace(models.generator_config(ELECTRA, 0.5), **{field: value})
    rejects(f"{field}=.* must be the generator", models.GeneratorDiscriminator, ELECTRA, other)
