"""A recipe's train step as `fit` runs it, and its HLO as TensorFlow hands it to a compiler."""

import dataclasses
import types

import keras
import numpy as np
import tensorflow as tf

from experiments import registry
from experiments.elmo.run import ElmoRecipe
from experiments.pretrain.recipe import PretrainingRecipe
from experiments.pretrain.run import build_network as build_encoder
from experiments.pretrain.run import pretraining_objective
from experiments.recipe import Recipe, override
from experiments.tcn.recipe import SequenceRecipe
from experiments.tcn.tasks import TASKS
from experiments.tpu_check.report import Problem, Sources, of_exception, refused
from experiments.translate.recipe import TranslationRecipe
from experiments.translate.run import build_network as build_translator
from experiments.translate.run import first_stage
from macaron_tf.data.batches import Buckets
from macaron_tf.data.corpus.packing import RecordFormat
from macaron_tf.errors import UserError
from macaron_tf.models import Elmo, TemporalModel
from macaron_tf.objectives import (
    BidirectionalLanguageObjective,
    SequenceObjective,
    TranslationObjective,
)
from macaron_tf.training import FitModel, build_fit_model

Specs = dict[str, tf.TensorSpec]


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one core gets of a micro-batch: B rows of L tokens (translation: on each side)."""

    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """B L; for translation those of the target, padding included."""
        return self.rows * self.length


class Kind:
    """A kind of recipe: rows of one length, unless it says otherwise.

    Attributes:
        settings: what a recipe needs on a TPU, before those that a person gives.
    """

    settings: tuple[str, ...] = ("training.dtype_policy=mixed_bfloat16",)

    def length(self, recipe: Recipe) -> int:
        """Tokens L of a row."""
        raise NotImplementedError

    def shape(self, recipe: Recipe, batch: int | None) -> Shape:
        """Of a core's micro-batch; `batch` as in `step.shape_of`."""
        return Shape(batch or recipe.batch_size, self.length(recipe))

    def specs(self, recipe: Recipe, shape: Shape) -> Specs:
        """What a batch of the recipe's data looks like at a shape."""
        raise NotImplementedError

    def parts(self, recipe: Recipe) -> dict:
        """`network` and `objective`, as the recipe's `train` builds them; maybe `first_stage`."""
        raise NotImplementedError


class Pretraining(Kind):
    """Encoders, language models and encoder-decoders on a corpus of packed rows."""

    def length(self, recipe: PretrainingRecipe) -> int:
        return recipe.corpus.sequence_length

    def specs(self, recipe: PretrainingRecipe, shape: Shape) -> Specs:
        size = recipe.vocabulary.size
        corpus = dataclasses.replace(recipe.corpus, sequence_length=shape.length)
        record = RecordFormat.of(corpus, _rounded(size, 8))
        table = np.zeros((shape.rows, record.numbers), np.int32)
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
                starts = tf.zeros([shape.rows], tf.bool)
                batch |= {"previous_ids": batch["token_ids"], "starts": starts}
            return batch

        objective = pretraining_objective(recipe, static_shapes=True)
        # Static masks look the same, but want the rows' numbers.
        masking = dataclasses.replace(recipe.masking, duplicates=None)
        batches = tf.data.Dataset.from_tensors(table).map(features)
        return dict(objective.dataset(batches, masking, vocabulary, seed=0).element_spec)

    def parts(self, recipe: PretrainingRecipe) -> dict:
        network = build_encoder(recipe, _rounded(recipe.vocabulary.size, 8))
        return {"network": network, "objective": pretraining_objective(recipe, static_shapes=True)}


class Translation(Kind):
    """Pairs of sentences in the longest of the shapes that batching can choose."""

    settings = (*Kind.settings, "data.batching.length_multiple=8")

    def length(self, recipe: TranslationRecipe) -> int:
        return _rounded(recipe.data.cleaning.max_tokens, recipe.data.batching.length_multiple)

    def shape(self, recipe: TranslationRecipe, batch: int | None) -> Shape:
        batching = recipe.data.batching
        tokens = batch or batching.max_tokens
        return Shape(*Buckets([self.length(recipe)], tokens, batching.row_multiple).shapes[0])

    def specs(self, recipe: TranslationRecipe, shape: Shape) -> Specs:
        side = tf.TensorSpec((shape.rows, shape.length), tf.int32)
        return {"source": side, "target": side}

    def parts(self, recipe: TranslationRecipe) -> dict:
        size = _rounded(recipe.data.vocabulary_size, 8)  # as a vocabulary's size
        network = build_translator(recipe, types.SimpleNamespace(size=size))
        return {
            "network": network,
            "objective": TranslationObjective(recipe.label_smoothing, skip_padding=False),
            "first_stage": first_stage(recipe, network),
        }


class Words(Kind):
    """ELMo: rows of words, each with its characters."""

    def length(self, recipe: ElmoRecipe) -> int:
        return recipe.row_length

    def specs(self, recipe: ElmoRecipe, shape: Shape) -> Specs:
        rows = (shape.rows, shape.length)
        places = recipe.model_config(recipe.vocabulary_size).max_characters
        return {
            "characters": tf.TensorSpec((*rows, places), tf.int32),
            "words": tf.TensorSpec(rows, tf.int32),
        }

    def parts(self, recipe: ElmoRecipe) -> dict:
        config = recipe.model_config(recipe.vocabulary_size)
        network = Elmo(config, dtype=recipe.training.dtype_policy)
        network.build()
        return {"network": network, "objective": BidirectionalLanguageObjective(recipe.samples)}


class Sequences(Kind):
    """The TCN's tasks, at the length of their longest sequence."""

    def length(self, recipe: SequenceRecipe) -> int:
        return TASKS[recipe.task].length

    def specs(self, recipe: SequenceRecipe, shape: Shape) -> Specs:
        config, loss = recipe.model_config(), TASKS[recipe.task].loss
        rows = (shape.rows, shape.length)
        vectors = tf.TensorSpec((*rows, config.input_dim), tf.float32)
        answers = rows[:1] if config.last_only else rows
        numbers = tf.TensorSpec((*answers, config.output_dim), tf.float32)
        return {
            "inputs": vectors if config.input_dim else tf.TensorSpec(rows, tf.int32),
            "targets": tf.TensorSpec(answers, tf.int32) if loss == "classes" else numbers,
            "weight": tf.TensorSpec(answers, tf.float32),
        }

    def parts(self, recipe: SequenceRecipe) -> dict:
        network = TemporalModel(recipe.model_config(), dtype=recipe.training.dtype_policy)
        network.build()
        objective = SequenceObjective(TASKS[recipe.task].loss, skip_padding=False)
        return {"network": network, "objective": objective}


KINDS: dict[type[Recipe], Kind] = {
    PretrainingRecipe: Pretraining(),
    TranslationRecipe: Translation(),
    ElmoRecipe: Words(),
    SequenceRecipe: Sequences(),
}


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


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
    recipe = registry.load(name)
    if type(recipe) not in KINDS:
        raise UserError(f"{name} is a recipe of kind {recipe.kind!r}: tpu_check knows none")
    return override(recipe, [*KINDS[type(recipe)].settings, *settings])


def shape_of(recipe: Recipe, batch: int | None = None) -> Shape:
    """The shape of a core's micro-batch.

    Args:
        recipe: its own rows; of translation the longest of the static shapes that its batching can
            choose, the one of the most memory.
        batch: rows, of translation tokens on one side; None = the recipe's own.

    Raises:
        UserError: less than a row.
    """
    return KINDS[type(recipe)].shape(recipe, batch)


def batch_specs(recipe: Recipe, shape: Shape) -> dict[str, tf.TensorSpec]:
    """What a batch of the recipe's data looks like at a shape."""
    return KINDS[type(recipe)].specs(recipe, shape)


def build_model(recipe: Recipe) -> FitModel:
    """The recipe's model, objective and optimizer, as its `train` builds them."""
    keras.utils.set_random_seed(recipe.training.seed)
    model = build_fit_model(config=recipe.training, **KINDS[type(recipe)].parts(recipe))
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
