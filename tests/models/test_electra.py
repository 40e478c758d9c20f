import dataclasses

import numpy as np
import pytest

from macaron_tf.models import (
    Encoder,
    EncoderConfig,
    GeneratorDiscriminator,
    PretrainingEncoder,
    generator_config,
)
from tests.harness import check_saved, ids, numpy_of, symbolic


def tiny():
    return EncoderConfig(24, 32, 64, 4, 2, max_length=16, embedding_dim=16)


def network(config=None, **options):
    config = config or tiny()
    model = GeneratorDiscriminator(config, generator_config(config, 0.5), **options)
    model.build()
    return model


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
    config = EncoderConfig(30_522, width, inner, heads, 12)
    narrow = generator_config(config, fraction)
    assert (narrow.hidden_dim, narrow.feed_forward_dim, narrow.num_heads) == expected
    assert (narrow.num_layers, narrow.embedding_width) == (12, width)


def test_embeddings_are_shared_and_every_weight_counted_once():
    model = network()
    assert model.generator.encoder.embeddings is model.encoder.embeddings
    assert model.pooler is None
    assert len({id(weight) for weight in model.weights}) == len(model.weights)
    paths = [weight.path for weight in model.weights]
    assert len(set(paths)) == len(paths)
    embeddings = model.encoder.embeddings.count_params()
    alone = PretrainingEncoder(model.generator_config)
    encoder = Encoder(model.config)
    alone.build(), encoder.build()
    head = 32 * 32 + 32 + 32 + 1
    assert model.count_params() == (
        encoder.count_params() + alone.count_params() - embeddings + head
    )
    # A matrix of its own brings the embeddings to each width.
    shapes = [
        one.projection and one.projection.kernel.shape
        for one in (model.encoder, model.generator.encoder)
    ]
    assert shapes == [(16, 32), None]


def test_outputs_are_those_of_the_two_parts():
    model, inputs = network(), {"token_ids": ids(2, 7), "masked_positions": np.array([[1, 4]] * 2)}
    outputs = model(inputs)
    shapes = {name: tuple(value.shape) for name, value in outputs.items()}
    assert shapes == {"masked_language": (2, 2, 24), "replaced_token": (2, 7)}
    assert shapes == {name: value.shape for name, value in symbolic(model, inputs).items()}
    hidden = model.encoder(inputs)
    np.testing.assert_array_equal(
        numpy_of(outputs["replaced_token"]), numpy_of(model.replaced_token(hidden))
    )


def test_a_saved_model_is_the_same_one_and_shares_still(tmp_path):
    loaded = check_saved(network(), {"token_ids": ids(2, 7)}, tmp_path)
    assert loaded.generator.encoder.embeddings is loaded.encoder.embeddings


@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab_size", 32), ("embedding_dim", 8), ("max_length", 8), ("num_segments", 0)],
)
def test_embeddings_that_differ_are_refused(field, value):
    other = dataclasses.replace(generator_config(tiny(), 0.5), **{field: value})
    with pytest.raises(ValueError, match="share their embeddings"):
        GeneratorDiscriminator(tiny(), other)
