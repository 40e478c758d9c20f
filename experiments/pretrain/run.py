"""A pre-training run: network and objective of each recipe."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import keras
import tensorflow as tf

from experiments.pretrain.recipe import PretrainingRecipe
from experiments.run import Run
from macaron_tf.errors import UserError
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


class Learning(NamedTuple):
    """An objective and the network for it.

    Attributes:
        network: `network(recipe, vocab_size)`, not yet built.
        objective: `objective(recipe, skip_padding)`, see `MaskedLanguageObjective`.
    """

    network: Callable[[PretrainingRecipe, int], keras.Model]
    objective: Callable[[PretrainingRecipe, bool], PretrainingObjective]


def _encoder(recipe: PretrainingRecipe, vocab_size: int, **heads) -> PretrainingEncoder:
    return PretrainingEncoder(
        recipe.model_config(vocab_size),
        sentence_pair=recipe.corpus.paired,
        head_options=None if recipe.head_transform else {"transform": False},
        dtype=recipe.training.dtype_policy,
        **heads,
    )


def _electra(recipe: PretrainingRecipe, vocab_size: int) -> GeneratorDiscriminator:
    config = recipe.model_config(vocab_size)
    try:
        generator = generator_config(config, recipe.generator_width)
    except ValueError as error:
        raise UserError(f"generator_width is {recipe.generator_width}: {error}") from error
    return GeneratorDiscriminator(config, generator, dtype=recipe.training.dtype_policy)


def _segments(recipe: PretrainingRecipe, vocab_size: int) -> SegmentLanguageModel:
    config = recipe.model_config(vocab_size)
    try:
        network = SegmentLanguageModel(
            config,
            recipe.memory_length,
            recipe.adaptive_cutoffs,
            recipe.adaptive_divisor,
            dtype=recipe.training.dtype_policy,
        )
        network.build()
    except ValueError as error:
        raise UserError(f"adaptive_cutoffs, adaptive_divisor: {error}") from error
    return network


def _sequences(recipe: PretrainingRecipe, vocab_size: int) -> EncoderDecoder:
    return EncoderDecoder(recipe.model_config(vocab_size), dtype=recipe.training.dtype_policy)


_LEARNING = {
    "masked_language": Learning(
        _encoder,
        lambda recipe, skip: MaskedLanguageObjective(
            sentence_pair=recipe.corpus.paired, skip_padding=skip
        ),
    ),
    "span_boundary": Learning(
        lambda recipe, vocab_size: _encoder(recipe, vocab_size, span_boundary=True),
        lambda recipe, skip: SpanBoundaryObjective(skip_padding=skip),
    ),
    "span_corruption": Learning(
        lambda recipe, vocab_size: _sequences(recipe, vocab_size + SENTINEL_ROWS),
        lambda recipe, skip: SpanCorruptionObjective(skip, recipe.corruption),
    ),
    "denoising": Learning(
        _sequences, lambda recipe, skip: DenoisingObjective(skip, recipe.denoising)
    ),
    "replaced_tokens": Learning(
        _electra,
        lambda recipe, skip: ReplacedTokenObjective(skip, recipe.discriminator_weight),
    ),
    "causal_language": Learning(
        lambda recipe, vocab_size: LanguageModel(
            recipe.model_config(vocab_size), dtype=recipe.training.dtype_policy
        ),
        lambda recipe, skip: CausalLanguageObjective(skip_padding=skip),
    ),
    "segment_language": Learning(
        _segments, lambda recipe, skip: SegmentLanguageObjective(skip_padding=skip)
    ),
    "permutation_language": Learning(
        lambda recipe, vocab_size: TwoStreamModel(
            recipe.model_config(vocab_size),
            recipe.memory_length,
            dtype=recipe.training.dtype_policy,
        ),
        lambda recipe, skip: PermutationObjective(skip, recipe.partial_prediction),
    ),
}


def build_network(recipe: PretrainingRecipe, vocab_size: int) -> keras.Model:
    """The recipe's model and its heads, in the recipe's dtype policy, built.

    Raises:
        UserError: see `PretrainingRecipe.model_config`.
    """
    network = _LEARNING[recipe.objective].network(recipe, vocab_size)
    if not network.built:
        network.build()
    if recipe.has_memory:
        # Each replica keeps the memory of its own rows, see `macaron_tf.distribution.distributed`.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        network.keep_memory(-(-recipe.batch_size // replicas))
    return network


def pretraining_objective(
    recipe: PretrainingRecipe, static_shapes: bool = False
) -> PretrainingObjective:
    """The objective of a recipe's network.

    Args:
        static_shapes: static shapes, whatever the recipe's setting.
    """
    skip_padding = not (recipe.static_shapes or static_shapes)
    return _LEARNING[recipe.objective].objective(recipe, skip_padding)


@dataclasses.dataclass(frozen=True)
class PretrainingRun(Run):
    """A finished or running pre-training."""

    recipe_class = PretrainingRecipe

    def build_network(self) -> keras.Model:
        return build_network(self.recipe, self.vocabulary.size)
