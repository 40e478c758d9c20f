"""A pre-training run: network and objective of each recipe."""

import dataclasses
from collections.abc import Sequence

import keras
import tensorflow as tf

from experiments.pretrain.recipe import PretrainingRecipe
from experiments.recipe import naming
from experiments.run import Run
from macaron_tf.models import GeneratorDiscriminator, LanguageModel, PretrainingEncoder
from macaron_tf.models.electra import generator_config
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.memory import SegmentLanguageModel
from macaron_tf.models.two_stream import TwoStreamModel
from macaron_tf.objectives import (
    CausalLanguageObjective,
    DenoisingObjective,
    MaskedLanguageObjective,
    PermutationObjective,
    PretrainingObjective,
    ReplacedTokenObjective,
    SegmentLanguageObjective,
    SpanBoundaryObjective,
    SpanCorruptionObjective,
)
from macaron_tf.objectives.corruption import SENTINEL_ROWS


def pretraining_objective(
    recipe: PretrainingRecipe, static_shapes: bool = False
) -> PretrainingObjective:
    """The objective of a recipe's network; of static shapes, if either says so."""
    skip = not (recipe.static_shapes or static_shapes)
    match recipe.objective:
        case "masked_language":
            return MaskedLanguageObjective(sentence_pair=recipe.corpus.paired, skip_padding=skip)
        case "span_boundary":
            return SpanBoundaryObjective(skip_padding=skip)
        case "replaced_tokens":
            return ReplacedTokenObjective(skip, recipe.discriminator_weight)
        case "causal_language":
            return CausalLanguageObjective(skip_padding=skip)
        case "segment_language":
            return SegmentLanguageObjective(skip_padding=skip)
        case "permutation_language":
            return PermutationObjective(skip, recipe.partial_prediction)
        case "span_corruption":
            return SpanCorruptionObjective(skip, recipe.corruption)
        case "denoising":
            return DenoisingObjective(skip, recipe.denoising)


@dataclasses.dataclass(frozen=True)
class PretrainingRun(Run):
    """A finished or running pre-training."""

    recipe_class = PretrainingRecipe

    def make_network(self) -> keras.Model:
        """The recipe's model with its heads."""
        recipe = self.recipe
        sentinels = SENTINEL_ROWS if recipe.objective == "span_corruption" else 0
        config = recipe.model_config(self.vocabulary.size + sentinels)
        policy = {"dtype": recipe.training.dtype_policy}
        match recipe.objective:
            case "masked_language" | "span_boundary":
                return PretrainingEncoder(
                    config,
                    sentence_pair=recipe.corpus.paired,
                    span_boundary=recipe.objective == "span_boundary",
                    head_options=None if recipe.head_transform else {"transform": False},
                    **policy,
                )
            case "replaced_tokens":
                with naming(f"generator_width is {recipe.generator_width}"):
                    generator = generator_config(config, recipe.generator_width)
                return GeneratorDiscriminator(config, generator, **policy)
            case "causal_language":
                return LanguageModel(config, **policy)
            case "segment_language":
                cutoffs = (recipe.adaptive_cutoffs, recipe.adaptive_divisor)
                with naming("adaptive_cutoffs, adaptive_divisor"):
                    network = SegmentLanguageModel(config, recipe.memory_length, *cutoffs, **policy)
                    network.build()
                return network
            case "permutation_language":
                return TwoStreamModel(config, recipe.memory_length, **policy)
            case "span_corruption" | "denoising":
                return EncoderDecoder(config, **policy)

    def build_network(self) -> keras.Model:
        network = super().build_network()
        if self.recipe.has_memory:
            # Each replica keeps its own rows' memory, see `macaron_tf.distribution.distributed`.
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            network.keep_memory(-(-self.recipe.batch_size // replicas))
        return network

    def memory(self, network: keras.Model) -> Sequence[keras.Variable]:
        return network.memories["training"].variables if self.recipe.has_memory else ()
