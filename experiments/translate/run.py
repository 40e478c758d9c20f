"""A translation run."""

import dataclasses
import os

from experiments.run import Run
from experiments.translate.recipe import TranslationRecipe
from macaron_tf.decoding import BeamSearchConfig, LineTranslator, SamplingConfig
from macaron_tf.models import EncoderDecoder
from macaron_tf.models.encoder_decoder import first_stage_variables
from macaron_tf.text import PairVocabulary
from macaron_tf.training.updates import FirstStage

_MAX_SOURCE = 256  # pieces of the longest line that is read


def source_limit(network: EncoderDecoder) -> int:
    """Greatest number of pieces of a source line, EOS not counted."""
    longest = network.config.longest
    return _MAX_SOURCE if longest is None else min(_MAX_SOURCE, longest - 1)


@dataclasses.dataclass(frozen=True)
class TranslationRun(Run):
    """A finished or running training of a translator."""

    recipe_class = TranslationRecipe

    def make_network(self) -> EncoderDecoder:
        sizes = [self.vocabulary.size]
        if isinstance(self.vocabulary, PairVocabulary):
            sizes = [self.vocabulary.target.size, self.vocabulary.source.size]
        config = self.recipe.model_config(*sizes)
        return EncoderDecoder(config, dtype=self.recipe.training.dtype_policy)

    def first_stage(self, network: EncoderDecoder) -> FirstStage | None:
        if not self.recipe.first_stage_steps:
            return None
        return FirstStage(self.recipe.first_stage_steps, first_stage_variables(network))

    def translator(
        self,
        checkpoint: os.PathLike | str | None = None,
        decoding: BeamSearchConfig | SamplingConfig | None = None,
        seed: int = 1,
    ) -> LineTranslator:
        """A translator of lines with a checkpoint's weights, by the recipe's beam search."""
        return self.writer(self.load_network(checkpoint), decoding or self.recipe.decoding, seed)

    def writer(
        self, network: EncoderDecoder, decoding: BeamSearchConfig | SamplingConfig, seed: int = 1
    ) -> LineTranslator:
        """A translator of lines with a network's weights."""
        longest = source_limit(network)
        return LineTranslator(
            network, self.vocabulary, decoding, max_source_length=longest, seed=seed
        )
