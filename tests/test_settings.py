import dataclasses
import json
from typing import Annotated, Literal

import keras
import pytest
from annotated_types import Gt

from macaron_tf.data.translation import BatchingConfig, BpeDropoutConfig, CleaningConfig
from macaron_tf.decoding import BeamSearchConfig, GenerationConfig, SamplingConfig
from macaron_tf.errors import UserError
from macaron_tf.objectives import MaskingConfig
from macaron_tf.objectives.corruption import SpanCorruptionConfig
from macaron_tf.objectives.denoising import DenoisingConfig
from macaron_tf.settings import Count, Dropout, OneOf, SettingError, Settings, describe
from macaron_tf.training.config import TrainingConfig
from tests.harness import refuses


@dataclasses.dataclass(frozen=True)
class Inner(Settings):
    """Settings nested in other settings.

    Attributes:
        seed: seed of random draws.
    """

    section = "inner"
    seed: int = 1


@dataclasses.dataclass(frozen=True)
class Example(Settings):
    """Settings with every supported field type.

    Attributes:
        width: width of the layer.
        steps: step sizes of successive layers.
        names: block names.
        rate: dropout rate.
        norm: position of the normalization.
        clip: maximum norm; `None` means no limit.
        kind: type of the block.
        flag: whether the option is on.
        inner: nested settings.
        inners: several nested settings.
    """

    width: Count
    steps: tuple[Count, ...] = (1,)
    names: str | tuple[str, ...] = "a"
    rate: Dropout = 0.0
    norm: Literal["pre", "post"] = "pre"
    clip: Annotated[float, Gt(0)] | None = None
    kind: Annotated[str, OneOf(("x", "y"))] = "x"
    flag: bool = False
    inner: Inner = dataclasses.field(default_factory=Inner)
    inners: tuple[Inner, ...] = ()

    def check(self):
        if self.width == 13:
            raise self.error("width=13 is unlucky")


def test_values_are_brought_to_their_types():
    example = Example(3, steps=[1, 2], names=["a", "b"], rate=0, clip=2)
    assert example == Example(3, steps=(1, 2), names=("a", "b"), rate=0.0, clip=2.0)
    assert type(example.rate) is float and type(example.clip) is float
    assert Example(3, steps=4).steps == (4,)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"width": 0}, "width=0 must be a whole number of at least 1"),
        ({"width": True}, "width=True must be a whole number of at least 1"),
        ({"width": 2.0}, "width=2.0 must be"),
        ({"width": 13}, "width=13 is unlucky"),
        ({"rate": 1.0}, "rate=1.0 must be a number of at least 0 and below 1"),
        ({"rate": "much"}, "rate='much' must be"),
        ({"rate": float("nan")}, "rate=nan must be"),
        ({"rate": -1e39}, r"below 1, between -3.4e\+38 and 3.4e\+38$"),
        ({"rate": 2**31}, "rate=2147483648 must be a number of at least 0 and below 1$"),
        ({"clip": float("inf")}, r"clip=inf must be .* or None, between -3.4e\+38 and 3.4e\+38$"),
        ({"steps": (1, 2**31)}, r"a whole number of at least 1 and below 2147483648$"),
        ({"norm": "both"}, "norm='both' must be one of 'pre', 'post'"),
        ({"kind": "z"}, "kind='z' must be one of 'x', 'y'"),
        ({"norm": "prae"}, "norm='prae' must be one of 'pre', 'post'; perhaps you meant 'pre'"),
        ({"clip": 0}, "clip=0 must be a number above 0 or None"),
        ({"clip": "abc"}, "clip='abc' must be a number above 0 or None"),
        ({"steps": (1, 0)}, r"steps=\(1, 0\) must be one or several of: a whole number"),
        ({"flag": 1}, "flag=1 must be True or False"),
        ({"inner": 3}, "inner=3 must be Inner"),
    ],
)
def test_a_wrong_value_is_one_sentence(settings, sentence):
    with pytest.raises(SettingError, match=sentence) as caught:
        Example(**{"width": 1, **settings})
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, UserError)


def test_a_section_stands_before_the_name():
    with pytest.raises(SettingError, match="^inner.seed='x' must be a whole number$"):
        Inner(seed="x")


def test_settings_are_serialized_by_keras():
    example = Example(3, steps=(1, 2), inner=Inner(5), inners=(Inner(6), Inner(7)))
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(example)))
    assert keras.saving.deserialize_keras_object(saved) == example


def test_settings_describe_themselves():
    described = {item.name: item for item in describe(Example)}
    assert described["rate"].range == "a number of at least 0 and below 1"
    assert described["rate"].default == "0.0"
    assert described["clip"].text == "maximum norm; `None` means no limit."
    assert described["width"].default == ""


# Out-of-range values of each field.
BEYOND = {
    TrainingConfig: {
        "max_steps": (0, 1.5),
        "seed": (-1,),
        "warmup_steps": (-1,),
        "learning_rate": (0.0, float("nan")),
        "warmup_start": (-1e-7,),
        "beta_2": (1.0,),
        "ema_decay": (1.5,),
        "clip_norm": (0,),
        "accumulation_steps": (0, True),
        "schedule": ("exponential",),
        "dtype_policy": ("float16",),
        "best_mode": ("best",),
        "save_every_minutes": (0,),
        "early_stopping_patience": (0,),
        "max_minutes": ("15",),
    },
    BeamSearchConfig: {
        "beam_size": (0, 2.5),
        "length_penalty": (-0.1,),
        "length_penalty_name": ("google",),
        "max_length_ratio": (-1.0,),
        "max_length_offset": (0.5,),
        "max_length": (0,),
        "min_length": (256,),
        "n_best": (5,),
        "stopping": ("never",),
    },
    SamplingConfig: {
        "temperature": (-1.0,),
        "top_k": (-1,),
        "top_p": (0.0, 1.5),
        "num_samples": (0,),
    },
    GenerationConfig: {
        "temperature": (-1.0,),
        "top_p": (0.0,),
        "max_tokens": (0,),
        "min_tokens": (129,),
    },
    CleaningConfig: {"min_length": (0,), "max_ratio": (0.5,), "max_tokens": (1,)},
    BatchingConfig: {"max_tokens": (0,)},
    BpeDropoutConfig: {"copies": (3,)},
    MaskingConfig: {"rate": (0.0,)},
    SpanCorruptionConfig: {"rate": (1.0,), "mean_span": (0.5,)},
    DenoisingConfig: {"rotation": (2,)},
}


@pytest.mark.parametrize(
    ("settings_class", "field", "value"),
    [
        (settings_class, field, value)
        for settings_class, fields in BEYOND.items()
        for field, values in fields.items()
        for value in values
    ],
)
def test_a_value_out_of_range_names_its_field(settings_class, field, value):
    prefix = f"{settings_class.section}." if settings_class.section else ""
    refuses(f"{prefix}{field}={value!r} (must|is|needs)", settings_class, **{field: value})
