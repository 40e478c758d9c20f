import pytest

from macaron_tf.decoding import BeamSearchConfig, GenerationConfig, SamplingConfig
from macaron_tf.errors import UserError


@pytest.mark.parametrize(
    "field",
    [
        {"beam_size": 0},
        {"beam_size": 2.5},
        {"length_penalty": -0.1},
        {"length_penalty_name": "google"},
        {"max_length_ratio": -1.0},
        {"max_length_offset": 0.5},
        {"max_length": 0},
        {"min_length": 256},
        {"n_best": 5},
        {"stopping": "never"},
    ],
)
def test_a_bad_beam_search_field_is_named(field):
    with pytest.raises(UserError, match=next(iter(field))):
        BeamSearchConfig(**field)


@pytest.mark.parametrize(
    "field",
    [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"num_samples": 0}],
)
def test_a_bad_sampling_field_is_named(field):
    with pytest.raises(UserError, match=next(iter(field))):
        SamplingConfig(**field)


@pytest.mark.parametrize(
    "field", [{"temperature": -1.0}, {"top_p": 0.0}, {"max_tokens": 0}, {"min_tokens": 129}]
)
def test_a_bad_generation_field_is_named(field):
    with pytest.raises(UserError, match=next(iter(field))):
        GenerationConfig(**field)
