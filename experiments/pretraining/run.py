"""A pre-training run."""

import dataclasses

from etils import epath

from experiments.pretraining.recipe import PretrainingRecipe
from experiments.run import Run
from macaron_tf.data.encoder_vocabulary import load_encoder_vocabulary
from macaron_tf.models import PretrainingEncoder


def build_network(recipe: PretrainingRecipe, vocab_size: int) -> PretrainingEncoder:
    """The recipe's encoder and its heads, in the recipe's dtype policy.

    Args:
        recipe: names the model and its options.
        vocab_size: rows of the embedding.

    Raises:
        UserError: see `PretrainingRecipe.model_config`.
    """
    network = PretrainingEncoder(
        recipe.model_config(vocab_size),
        next_sentence=recipe.corpus.next_sentence,
        dtype=recipe.training.dtype_policy,
    )
    network.build()
    return network


@dataclasses.dataclass(frozen=True)
class PretrainingRun(Run):
    """A finished or running pre-training of an encoder."""

    recipe_class = PretrainingRecipe

    @staticmethod
    def load_vocabulary(directory: epath.Path):
        return load_encoder_vocabulary(directory)

    def build_network(self) -> PretrainingEncoder:
        return build_network(self.recipe, self.vocabulary.size)
