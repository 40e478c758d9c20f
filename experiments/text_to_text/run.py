"""A text-to-text run."""

import dataclasses
import os

from etils import epath

from experiments.run import Run
from experiments.text_to_text.recipe import TextRecipe
from macaron_tf.decoding import BeamSearchConfig, LineTranslator
from macaron_tf.models import EncoderDecoder
from macaron_tf.text import TextVocabulary, load_encoder_vocabulary


@dataclasses.dataclass(frozen=True)
class TextRun(Run):
    """A finished or running fine-tuning of an encoder-decoder."""

    recipe_class = TextRecipe

    @staticmethod
    def load_vocabulary(directory: epath.Path):
        return load_encoder_vocabulary(directory)

    @property
    def texts(self) -> TextVocabulary:
        """The vocabulary as lines are cut with it."""
        recipe = self.recipe
        return TextVocabulary(self.vocabulary, recipe.max_source, recipe.max_target, recipe.starts)

    def build_network(self) -> EncoderDecoder:
        recipe = self.recipe
        config = recipe.model_config(self.vocabulary.size)
        network = EncoderDecoder(config, dtype=recipe.training.dtype_policy)
        network.build()
        return network

    def writer(
        self, network: EncoderDecoder, decoding: BeamSearchConfig | None = None
    ) -> LineTranslator:
        """Writes answers, a line for a line.

        Args:
            network: with trained weights.
            decoding: the recipe's by default.
        """
        recipe = self.recipe
        # A target may be as long as training's were, however short the source is; a BOS that
        # begins it is none of what is searched.
        longest = recipe.max_target - len(recipe.before)
        decoding = dataclasses.replace(
            decoding or recipe.decoding,
            max_length_ratio=0.0,
            max_length_offset=longest,
            max_length=longest,
        )
        return LineTranslator(
            network,
            self.texts,
            decoding,
            max_source_length=recipe.max_source,
            prefix=recipe.before,
        )


def open_checkpoint(
    path: str | os.PathLike, checkpoint: str | None
) -> tuple[TextRun, EncoderDecoder]:
    """A run and its network with a checkpoint's weights."""
    opened = TextRun.open(path)
    return opened, opened.load_network(checkpoint)
