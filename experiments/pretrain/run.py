"""A pre-training run."""

import dataclasses

import keras
from etils import epath

from experiments.pretrain.learning import build_network
from experiments.pretrain.recipe import PretrainingRecipe
from experiments.run import Run
from macaron_tf.text import load_encoder_vocabulary


@dataclasses.dataclass(frozen=True)
class PretrainingRun(Run):
    """A finished or running pre-training of an encoder."""

    recipe_class = PretrainingRecipe

    @staticmethod
    def load_vocabulary(directory: epath.Path):
        return load_encoder_vocabulary(directory)

    def build_network(self) -> keras.Model:
        return build_network(self.recipe, self.vocabulary.size)
