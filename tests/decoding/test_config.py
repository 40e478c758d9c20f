import pytest

from macaron_tf.decoding import BeamSearchConfig, GenerationConfig, SamplingConfig
from tests.harness import refuses

BEAM = {
    "beam_size": (0, 2.5),
    "length_penalty": (-0.1,),
    "length_penalty_name": ("google",),
    "max_length_ratio": (-1.0,),
    "max_length_offset": (0.5,),
    "max_length": (0,),
    "min_length": (256,),
    "n_best": (5,),
    "stopping": ("never",),
}
DRAW = {"temperature": (-1.0,), "top_k": (-1,), "top_p": (0.0, 1.5), "num_samples": (0,)}
TEXT = {"temperature": (-1.0,), "top_p": (0.0,), "max_tokens": (0,), "min_tokens": (129,)}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (kind, field, value)
        for kind, bad in (
            (BeamSearchConfig, BEAM),
            (SamplingConfig, DRAW),
            (GenerationConfig, TEXT),
        )
        for field, values in bad.items()
        for value in values
    ],
)
def test_a_bad_field_is_named(kind, field, value):
    refuses(field, kind, **{field: value})
