"""A run of Sentence-BERT."""

import dataclasses

from etils import epath

from experiments.embed.recipe import EmbeddingRecipe
from experiments.run import Run
from macaron_tf.models.siamese import SiameseEncoder
from macaron_tf.text import PieceVocabulary, load_encoder_vocabulary


def build_network(recipe: EmbeddingRecipe, vocab_size: int) -> SiameseEncoder:
    """The recipe's model, in the recipe's dtype policy.

    Args:
        recipe: names the model, its options, the pooling and the classes.
        vocab_size: rows of the embedding.

    Raises:
        UserError: see `EmbeddingRecipe.model_config`.
    """
    network = SiameseEncoder(
        recipe.model_config(vocab_size),
        recipe.pooling,
        recipe.normalize,
        recipe.num_classes,
        recipe.concatenation,
        dtype=recipe.training.dtype_policy,
    )
    network.build()
    return network


@dataclasses.dataclass(frozen=True)
class EmbeddingRun(Run):
    """A finished or running training of a sentence encoder."""

    recipe_class = EmbeddingRecipe

    @staticmethod
    def load_vocabulary(directory: epath.Path) -> PieceVocabulary:
        return load_encoder_vocabulary(directory)

    def build_network(self) -> SiameseEncoder:
        return build_network(self.recipe, self.vocabulary.size)
