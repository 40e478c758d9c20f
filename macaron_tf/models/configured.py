"""What every model that is described by one frozen configuration has in common."""

import dataclasses
from typing import Any, ClassVar

import keras

from macaron_tf.models.encoder_config import EncoderConfig


def differing_fields(config: Any, base: Any) -> dict[str, Any]:
    """The fields of a configuration whose values are not those of another one of its class."""
    names = (field.name for field in dataclasses.fields(config))
    values = {name: getattr(config, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(base, name)}


class ConfiguredModel(keras.Model):
    """A Keras model with an attribute `config`, saved and made again with it.

    Attributes:
        config_class: of `config`.
    """

    config_class: ClassVar[type] = EncoderConfig

    def get_config(self):
        return {**super().get_config(), "config": dataclasses.asdict(self.config)}

    @classmethod
    def from_config(cls, config: dict[str, Any]):
        config = dict(config)
        return cls(cls.config_class(**config.pop("config")), **config)
