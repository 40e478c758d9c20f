"""A recipe's train step as `fit` runs it, and its HLO as TensorFlow hands it to a compiler."""

import dataclasses

import keras
import tensorflow as tf

from experiments import registry
from experiments.recipe import Recipe, override
from experiments.tpu_check.kinds import KINDS, Shape
from experiments.tpu_check.sources import Problem, Sources, of_exception, refused
from macaron_tf.errors import UserError
from macaron_tf.training import FitModel, build_fit_model


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
