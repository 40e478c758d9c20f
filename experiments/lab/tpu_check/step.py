"""Builds a recipe's train step as `fit` runs it, and converts the step to HLO for a compiler.

With the JAX engine, the step is converted to StableHLO. If tracing or the conversion fails, the
functions search for the line of Python that causes the error.
"""

import dataclasses
import linecache
import pathlib
import re
import sysconfig
import traceback
import types
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from experiments import registry
from experiments.elmo.run import ElmoRecipe, ElmoRun
from experiments.pretrain.run import PretrainingRecipe, PretrainingRun
from experiments.recipe import Recipe, override
from experiments.run import Run
from experiments.tcn.run import SequenceRecipe, SequenceRun
from experiments.tcn.tasks import TASKS
from experiments.translate.run import TranslationRecipe, TranslationRun
from macaron_tf.data.buckets import Buckets
from macaron_tf.data.corpus.reading import with_documents
from macaron_tf.data.corpus.rows import RecordFormat
from macaron_tf.errors import UserError, first_line
from macaron_tf.training import build_fit_model
from macaron_tf.training.trained_model import TrainedModel

Specs = dict[str, tf.TensorSpec]
ROOT = pathlib.Path(__file__).resolve().parents[3]
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


class Sources:
    """Source lines of the ops in a `tf.Graph`, including ops in loops and inner functions.

    Args:
        graph: the graph; `None` means no ops.
    """

    def __init__(self, graph=None):
        self._ops, graphs = {}, [graph] if graph else []
        for outer in graphs:
            for op in outer.get_operations():
                self._ops.setdefault(op.name, op)
            inner_graphs = [function.graph for function in outer._functions.values()]
            graphs += [inner for inner in inner_graphs if inner not in graphs]

    def of(self, name: str) -> str | None:
        """Returns the source line of an op as `file:line in function: code`, or `None` if unknown.

        Args:
            name: name of the op. The name may begin with the names of outer functions, as in the
                output of the compiler.
        """
        parts = name.split("/")
        for start in range(len(parts)):
            if op := self._ops.get("/".join(parts[start:])):
                return _innermost((f.filename, f.lineno, f.name) for f in op.traceback or [])
        return None


class Traced(NamedTuple):
    """The program of a traced step, or the problems that prevented tracing.

    Attributes:
        hlo: serialized HLO module or, for JAX, StableHLO bytecode; `None` if there are problems.
        problems: the problems, as `problem` returns them.
        sources: source lines of the step's ops; `None` if there are problems.
    """

    hlo: bytes | None
    problems: tuple[dict, ...] = ()
    sources: Sources | None = None


def problem(what: str, op: str | None = None, source: str | None = None) -> dict:
    """Returns a dict that describes why a step cannot run on a TPU.

    Args:
        what: description of the problem.
        op: name of the op that causes the problem, if known.
        source: line of code that creates the op, if known.
    """
    return {"what": what, "op": op, "source": source}


def of_exception(error: BaseException) -> str | None:
    """Returns the innermost traceback line outside libraries, or `None` if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost((frame.filename, frame.lineno, frame.name) for frame in frames)


def _innermost(frames) -> str | None:
    """Formats the innermost traceback frame outside libraries, or returns `None` if there is none.

    Args:
        frames: triples of a file, a line number and a function, outermost first.
    """
    own_frames = [
        frame
        for frame in frames
        if "site-packages" not in frame[0] and not frame[0].startswith(("<", *_LIBRARIES))
    ]
    if not own_frames:
        return None
    file, line, function = own_frames[-1]
    path = pathlib.Path(file)
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{shown}:{line} in {function}: {linecache.getline(file, line).strip()}"


def refused(message: str) -> list[tuple[str, str | None]]:
    """Extracts the problems and the affected ops from an error message of the TF XLA bridge.

    Returns:
        A list of pairs: a description of the problem, and the name of the op, or `None` if the
        message names no op.
    """
    missing_kernels = re.findall(
        r"(\w+) \(No registered '\w+' OpKernel[^{]*\{\{node ([^}]+)\}\}", message
    )
    if missing_kernels:
        return [
            (f"{op_type} cannot be compiled by XLA", op)
            for op_type, op in dict.fromkeys(missing_kernels)
        ]
    reason = message.removeprefix("Failed getting HLO text: '").strip().partition("\n")[0]
    op = re.search(r"\{\{node ([^}]+)\}\}", message)
    return [(reason, op[1] if op else None)]


class Shape(NamedTuple):
    """Shape of a core's micro-batch: number of rows, and number of tokens in a row.

    For translation, source and target both have this length.
    """

    rows: int
    length: int


class Step:
    """Train step of a recipe, as `fit` runs it.

    There is a subclass for each supported class of recipes.

    Attributes:
        settings: settings for a TPU, which are applied before the settings of `--set`.
        run_class: class of the run that builds the network.
        recipe: the recipe with all settings applied.
        length: number of tokens in a row.
        vocab_size: vocabulary size; `None` means no vocabulary, or the size in the catalog.
    """

    settings: tuple[str, ...] = ("training.dtype_policy=mixed_bfloat16",)
    run_class: type[Run]

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.length, self.vocab_size = self.sizes(recipe)

    @staticmethod
    def sizes(recipe: Recipe) -> tuple[int, int | None]:
        """Returns the values of the attributes `length` and `vocab_size` for a recipe."""
        raise NotImplementedError

    def shape(self, batch: int | None = None) -> Shape:
        """Returns the shape of a core's micro-batch.

        Args:
            batch: number of rows or, for translation, number of tokens on each side; `None` means
                the batch size in the recipe.
        """
        return Shape(batch or self.recipe.batch_size, self.length)

    def specs(self, shape: Shape) -> Specs:
        """Returns the specs of the tensors in a batch. All shapes are static."""
        raise NotImplementedError

    def build(self) -> TrainedModel:
        """Builds the model as the command `train` does, but with static shapes in the objective."""
        training = self.recipe.training
        keras.utils.set_random_seed(training.seed)
        vocabulary = self.vocab_size and types.SimpleNamespace(size=self.vocab_size)
        run = self.run_class(None, self.recipe, vocabulary)
        network = run.make_network()  # `trace` adds the memory of a Transformer-XL
        if not network.built:
            network.build()
        stage = run.first_stage(network)
        objective = self.recipe.make_objective(static_shapes=True)
        if keras.backend.backend() == "jax":
            from macaron_tf.training.jax_model import build_jax_model  # needs JAX

            model = build_jax_model(network, objective, training, stage)
        else:
            model = build_fit_model(network, objective, training, first_stage=stage)
        model.prepare()
        return model

    def trace(self, model: TrainedModel, shape: Shape) -> Traced:
        """Traces an optimizer update that reads one micro-batch.

        Args:
            model: output of `build`.
            shape: shape of the micro-batch.
        """
        if keras.backend.backend() == "jax":
            return self._lower(model, shape)
        specs = self.specs(shape)

        def update(*tensors):
            batch = dict(zip(specs, tensors, strict=True))
            return model.updates.apply(*model.updates.micro_step(batch))

        step = tf.function(update, autograph=False, jit_compile=True)
        try:
            graph = step.get_concrete_function(*specs.values()).graph
        except Exception as error:  # the model's code may raise any exception
            return _failed(error)
        sources = Sources(graph)
        try:
            # This uses tf2xla's CPU kernels, because this build of TensorFlow has no TPU kernels.
            # The HLO is the same.
            hlo = step.experimental_get_compiler_ir(*specs.values())(stage="hlo_serialized")
        except (ValueError, tf.errors.OpError) as error:
            problems = refused(str(error))
            return Traced(
                None, tuple(problem(what, op, op and sources.of(op)) for what, op in problems)
            )
        return Traced(hlo, sources=sources)

    def _lower(self, model: TrainedModel, shape: Shape) -> Traced:
        """Lowers an update of the JAX engine to StableHLO.

        The update reads one micro-batch for each index along the mesh axis `data`.
        """
        import jax
        from jax._src.interpreters import mlir

        mesh = keras.distribution.distribution()
        replicas = mesh.num_model_replicas if mesh else 1
        batch = {
            name: jax.ShapeDtypeStruct(
                spec.shape,
                spec.dtype.as_numpy_dtype,
                sharding=mesh and mesh.get_data_layout(spec.shape).backend_layout,
            )
            for name, spec in self.specs(shape._replace(rows=shape.rows * replicas)).items()
        }
        try:
            lowered = model.lower(batch)
        except Exception as error:  # the model's code may raise any exception
            return _failed(error)
        return Traced(mlir.module_to_bytecode(lowered.compiler_ir()), sources=Sources())


def _failed(error: Exception) -> Traced:
    return Traced(
        None, (problem(f"tracing failed: {first_line(error)}", None, of_exception(error)),)
    )


class Pretraining(Step):
    """Train step of a pre-training recipe, on batches that its objective makes from a corpus."""

    run_class = PretrainingRun

    @staticmethod
    def sizes(recipe: PretrainingRecipe) -> tuple[int, int]:
        return recipe.corpus.sequence_length, _rounded(recipe.vocabulary.size, 8)

    def specs(self, shape: Shape) -> Specs:
        recipe, size = self.recipe, self.vocab_size
        corpus = dataclasses.replace(recipe.corpus, sequence_length=shape.length)
        record_format = RecordFormat.of(corpus, size)
        table = np.zeros((shape.rows, record_format.integer_count), np.int32)
        vocabulary = types.SimpleNamespace(
            pieces=recipe.vocabulary.size,
            size=size,
            cls_id=2,
            sep_id=3,
            mask_id=4,
            special_ids=(0, 1, 2, 3, 4),
            word_starts=lambda: np.ones(size, bool),
            encode_lines=lambda lines: [[5]] * len(lines),
        )

        def features(records: tf.Tensor) -> dict[str, tf.Tensor]:
            batch = record_format.features(records)
            if recipe.builtin_objective.has_memory:  # see `stream_dataset`
                starts = tf.zeros([shape.rows], tf.bool)
                batch |= {"previous_ids": batch["token_ids"], "starts": starts}
            if recipe.bidirectional:
                batch["backward"] = starts
            return batch

        # Static masks have the same shapes as dynamic masks, but need row numbers.
        masking = dataclasses.replace(recipe.masking, duplicates=None)
        batches = tf.data.Dataset.from_tensors(table).map(features)
        if recipe.isolate_documents:
            batches = with_documents(batches, vocabulary.sep_id)
        objective = recipe.make_objective(static_shapes=True)
        return dict(objective.dataset(batches, masking, vocabulary, seed=0).element_spec)

    def trace(self, model: TrainedModel, shape: Shape) -> Traced:
        if self.recipe.builtin_objective.has_memory:
            model.network.create_memory(shape.rows)
        return super().trace(model, shape)


class Translation(Step):
    """Train step of a translation recipe, with rows of the maximum length.

    Training batches have several shapes. This step uses the shape with the longest rows, which
    needs the most memory.
    """

    settings = (*Step.settings, "data.batching.length_multiple=8")
    run_class = TranslationRun

    @staticmethod
    def sizes(recipe: TranslationRecipe) -> tuple[int, int]:
        length = _rounded(recipe.data.cleaning.max_tokens, recipe.data.batching.length_multiple)
        return length, _rounded(recipe.data.vocabulary_size, 8)

    def shape(self, batch: int | None = None) -> Shape:
        batching = self.recipe.data.batching
        tokens = batch or batching.max_tokens
        return Shape(*Buckets([self.length], tokens, batching.row_multiple).shapes[0])

    def specs(self, shape: Shape) -> Specs:
        return dict.fromkeys(("source", "target"), tf.TensorSpec(shape, tf.int32))


class Words(Step):
    """Train step of an ELMo recipe, on rows of words with their characters."""

    run_class = ElmoRun

    @staticmethod
    def sizes(recipe: ElmoRecipe) -> tuple[int, int]:
        return recipe.row_length, recipe.vocabulary_size

    def specs(self, shape: Shape) -> Specs:
        characters = self.recipe.model_config(self.vocab_size).max_characters
        return {
            "characters": tf.TensorSpec((*shape, characters), tf.int32),
            "words": tf.TensorSpec(shape, tf.int32),
        }


class Sequences(Step):
    """Train step of a TCN recipe, with sequences of the maximum length."""

    run_class = SequenceRun

    @staticmethod
    def sizes(recipe: SequenceRecipe) -> tuple[int, None]:
        return TASKS[recipe.task].length, None

    def specs(self, shape: Shape) -> Specs:
        config, loss = self.recipe.model_config(), TASKS[self.recipe.task].loss
        input_spec = tf.TensorSpec((*shape, config.input_dim), tf.float32)
        target_shape = shape[:1] if config.last_only else shape
        target_spec = tf.TensorSpec((*target_shape, config.output_dim), tf.float32)
        return {
            "inputs": input_spec if config.input_dim else tf.TensorSpec(shape, tf.int32),
            "targets": tf.TensorSpec(target_shape, tf.int32) if loss == "classes" else target_spec,
            "weight": tf.TensorSpec(target_shape, tf.float32),
        }


_STEPS: dict[type[Recipe], type[Step]] = {
    PretrainingRecipe: Pretraining,
    TranslationRecipe: Translation,
    ElmoRecipe: Words,
    SequenceRecipe: Sequences,
}


def step_of(name: str, settings: list[str] = ()) -> Step:
    """Makes the train step of the recipe `name`.

    The settings for a TPU are applied first, followed by `settings`.

    Raises:
        UserError: there is no such recipe, a setting is not valid, or the recipe is for another
            kind of task.
    """
    recipe = registry.load(name)
    if type(recipe) not in _STEPS:
        raise UserError(
            f"{name} is a recipe of kind {recipe.kind!r}, which tpu_check cannot check: choose a "
            "recipe for pre-training, translation, ELMo or TCN"
        )
    step_class = _STEPS[type(recipe)]
    return step_class(override(recipe, [*step_class.settings, *settings]))


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
