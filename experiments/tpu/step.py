"""A recipe's train step as `fit` runs it, and its HLO as TensorFlow hands it to a compiler."""

import dataclasses
import types

import keras
import numpy as np
import tensorflow as tf

from experiments import recipes
from experiments.pretraining.learning import build_network as build_encoder
from experiments.pretraining.learning import pretraining_objective
from experiments.pretraining.recipe import PretrainingRecipe
from experiments.recipe import Recipe, override
from experiments.tpu.sources import Problem, Sources, of_exception, refused
from experiments.translation.recipe import TranslationRecipe
from experiments.translation.run import build_network as build_translator
from experiments.translation.run import first_stage
from macaron_tf.data.bucketing import Buckets
from macaron_tf.data.corpus_files import RecordFormat
from macaron_tf.errors import UserError
from macaron_tf.objectives import TranslationObjective
from macaron_tf.training import FitModel, build_fit_model

# What a recipe needs on a TPU, before the settings that a person gives.
_SETTINGS = {
    PretrainingRecipe: ("training.dtype_policy=mixed_bfloat16",),
    TranslationRecipe: ("training.dtype_policy=mixed_bfloat16", "data.batching.length_multiple=8"),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one core gets of a micro-batch: B rows of L tokens (translation: on each side)."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """B L; for translation those of the target, padding included."""
        return self.rows * self.length


@dataclasses.dataclass(frozen=True)
class Traced:
    """A step's HLO module, serialized, or the problems that stand in its way.

    Attributes:
        hlo: None with problems.
        sources: finds ops of the step's graph.
    """

    hlo: bytes | None
    problems: tuple[Problem, ...] = ()
    sources: Sources | None = None


def tpu_recipe(name: str, settings: list[str]) -> Recipe:
    """A catalog recipe with the settings that a TPU wants, and then a person's.

    Raises:
        UserError: no such recipe or setting, or none that is trained on a TPU.
    """
    recipe = recipes.load(name)
    if type(recipe) not in _SETTINGS:
        raise UserError(f"{name} is a recipe of kind {recipe.kind!r}: tpu_check knows none")
    return override(recipe, [*_SETTINGS[type(recipe)], *settings])


def shape_of(recipe: Recipe, batch: int | None = None) -> Shape:
    """The shape of a core's micro-batch.

    Args:
        recipe: of pre-training: rows of its length; of translation: the longest of the static
            shapes that its batching can choose, the one of the most memory.
        batch: rows of pre-training, tokens on one side of translation; None = the recipe's own.

    Raises:
        UserError: less than a row.
    """
    if isinstance(recipe, PretrainingRecipe):
        shape = Shape(batch or recipe.batch_size, recipe.corpus.sequence_length)
    else:
        batching, longest = recipe.data.batching, recipe.data.cleaning.max_tokens
        length = _rounded(longest, batching.length_multiple)
        buckets = Buckets([length], batch or batching.max_tokens, batching.row_multiple)
        shape = Shape(*buckets.shapes[0])
    return shape


def batch_specs(recipe: Recipe, shape: Shape) -> dict[str, tf.TensorSpec]:
    """What a batch of the recipe's data looks like at a shape."""
    rows, length = shape.rows, shape.length
    if isinstance(recipe, TranslationRecipe):
        shapes = {"source": (rows, length), "target": (rows, length)}
        return {name: tf.TensorSpec(each, tf.int32) for name, each in shapes.items()}
    size = recipe.vocabulary.size
    record = RecordFormat.of(
        dataclasses.replace(recipe.corpus, sequence_length=length), _rounded(size, 8)
    )
    table = tf.data.Dataset.from_tensors(np.zeros((rows, record.numbers), np.int32))
    vocabulary = types.SimpleNamespace(
        pieces=size,
        size=_rounded(size, 8),
        cls_id=2,
        sep_id=3,
        mask_id=4,
        special_ids=(0, 1, 2, 3, 4),
        word_starts=lambda: np.ones(_rounded(size, 8), bool),
        encode_lines=lambda lines: [[5]] * len(lines),
    )

    def features(numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = record.features(numbers)
        if recipe.has_memory:  # as `stream_dataset` gives them
            starts = tf.zeros([rows], tf.bool)
            batch |= {"previous_ids": batch["token_ids"], "starts": starts}
        return batch

    objective = pretraining_objective(recipe, static_shapes=True)
    # Static masks look the same, but want the rows' numbers.
    masking = dataclasses.replace(recipe.masking, duplicates=None)
    batches = objective.dataset(table.map(features), masking, vocabulary, seed=0)
    return dict(batches.element_spec)


def build_model(recipe: Recipe) -> FitModel:
    """The recipe's model, objective and optimizer, as its `train` builds them."""
    keras.utils.set_random_seed(recipe.training.seed)
    if isinstance(recipe, TranslationRecipe):
        size = _rounded(recipe.data.vocabulary_size, 8)  # as Vocabulary.size
        network = build_translator(recipe, types.SimpleNamespace(size=size))
        objective = TranslationObjective(recipe.label_smoothing, skip_padding=False)
        stage = first_stage(recipe, network)
    else:
        network = build_encoder(recipe, _rounded(recipe.vocabulary.size, 8))
        objective = pretraining_objective(recipe, static_shapes=True)
        stage = None
    model = build_fit_model(network, objective, recipe.training, first_stage=stage)
    model.prepare()
    return model


def trace(model: FitModel, specs: dict[str, tf.TensorSpec]) -> Traced:
    """A whole update from one micro-batch, as HLO.

    Args:
        model: prepared.
        specs: of a batch, all shapes static.
    """
    if getattr(model.network, "memories", None):
        model.network.keep_memory(specs["token_ids"].shape[0])
    names = list(specs)
    step = tf.function(
        lambda *tensors: model.train_step(dict(zip(names, tensors, strict=True))),
        autograph=False,
        jit_compile=True,
    )
    try:
        graph = step.get_concrete_function(*specs.values()).graph
    except Exception as error:  # whatever the model's code raises while it is traced
        text = str(error).strip().partition("\n")[0]
        return Traced(None, (Problem(f"tracing failed: {text}", None, of_exception(error)),))
    sources = Sources(graph)
    try:
        # The CPU's kernels of tf2xla: a plain TensorFlow has no TPU's, and the HLO is the same.
        hlo = step.experimental_get_compiler_ir(*specs.values())(stage="hlo_serialized")
    except (ValueError, tf.errors.OpError) as error:
        problems = (
            Problem(said, name, sources.of(name) if name else None)
            for said, name in refused(str(error))
        )
        return Traced(None, tuple(problems))
    return Traced(hlo, sources=sources)


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
