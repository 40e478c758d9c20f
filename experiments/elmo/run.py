"""A run of ELMo."""

import dataclasses

from etils import epath

from experiments.elmo.recipe import ElmoRecipe
from experiments.run import Run
from macaron_tf.models import Elmo
from macaron_tf.text.words import WordVocabulary


@dataclasses.dataclass(frozen=True)
class ElmoRun(Run):
    """A finished or running training of ELMo."""

    recipe_class = ElmoRecipe

    @staticmethod
    def load_vocabulary(directory: epath.Path) -> WordVocabulary:
        return WordVocabulary.load(directory)

    def build_network(self) -> Elmo:
        config = self.recipe.model_config(self.vocabulary.size)
        network = Elmo(config, dtype=self.recipe.training.dtype_policy)
        network.build()
        return network
