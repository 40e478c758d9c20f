import dataclasses
import json
from typing import Annotated, Literal

import keras
import pytest
from annotated_types import Gt, Le

from macaron_tf.decoding import BeamSearchConfig, GenerationConfig
from macaron_tf.errors import UserError
from macaron_tf.settings import Count, Dropout, OneOf, SettingError, Settings, describe
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
        share: share of the rows.
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
    share: Annotated[float, Le(1)] = 1.0
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
        ({"width": 13}, "width=13 is unlucky"),
        ({"rate": 1.0}, "rate=1.0 must be a number of at least 0 and below 1"),
        ({"rate": float("nan")}, "rate=nan must be"),
        ({"kind": "z"}, "kind='z' must be one of 'x', 'y'"),
        ({"norm": "prae"}, "norm='prae' must be one of 'pre', 'post'; perhaps you meant 'pre'"),
        ({"clip": 0}, "clip=0 must be a number above 0 or None"),
        ({"share": 1.5}, "share=1.5 must be a number at most 1"),
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


# Values that another field forbids, or that a check of their own class does.
FORBIDDEN = [
    (BeamSearchConfig, {"min_length": 256}),
    (BeamSearchConfig, {"n_best": 5}),
    (GenerationConfig, {"min_tokens": 129}),
]


@pytest.mark.parametrize(("settings_class", "value"), FORBIDDEN)
def test_a_value_that_other_settings_forbid_names_its_field(settings_class, value):
    [(field, number)] = value.items()
    refuses(f"{field}={number} (must|is|needs)", settings_class, **value)
