"""A run of ELMo."""

import dataclasses

from etils import epath

from experiments.run import Run
from experiments.word_models.recipe import ElmoRecipe
from macaron_tf.data.word_text import WordVocabulary
from macaron_tf.models import Elmo


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
