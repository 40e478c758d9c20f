"""A translation run."""

import dataclasses
import os

from etils import epath

from experiments.run import Run
from experiments.translation.recipe import TranslationRecipe
from macaron_tf.data.vocabulary import Vocabulary
from macaron_tf.decoding import BeamSearchConfig, LineTranslator, SamplingConfig
from macaron_tf.models import EncoderDecoder


def build_network(recipe: TranslationRecipe, vocabulary: Vocabulary) -> EncoderDecoder:
    """The recipe's model at the vocabulary's size, in the recipe's dtype policy.

    Args:
        recipe: names the model and its options.
        vocabulary: gives the number of rows of the embedding.

    Raises:
        UserError: see `TranslationRecipe.model_config`.
    """
    config = recipe.model_config(vocabulary.size)
    network = EncoderDecoder(config, dtype=recipe.training.dtype_policy)
    network.build()
    return network


@dataclasses.dataclass(frozen=True)
class TranslationRun(Run):
    """A finished or running training of a translator."""

    recipe_class = TranslationRecipe

    @staticmethod
    def load_vocabulary(directory: epath.Path) -> Vocabulary:
        return Vocabulary.load(directory)

    def build_network(self) -> EncoderDecoder:
        return build_network(self.recipe, self.vocabulary)

    def translator(
        self,
        checkpoint: os.PathLike | str | None = None,
        decoding: BeamSearchConfig | SamplingConfig | None = None,
        seed: int = 1,
    ) -> LineTranslator:
        """Lines to lines with a checkpoint's weights.

        Args:
            checkpoint: see `load_network`.
            decoding: the recipe's beam search by default.
            seed: of sampling.
        """
        return LineTranslator(
            self.load_network(checkpoint),
            self.vocabulary,
            decoding or self.recipe.decoding,
            seed=seed,
        )
