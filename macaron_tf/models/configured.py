"""What every model that is described by one frozen configuration has in common."""

import dataclasses
from typing import Any, ClassVar

import keras

from macaron_tf.models.encoder_config import EncoderConfig


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
