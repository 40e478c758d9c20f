"""Training of encoders on the examples of a task, with lengths given in epochs."""

import dataclasses
import os
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Annotated

import keras
import tensorflow as tf
from annotated_types import Gt, Lt

from experiments.recipe import MAY_CHANGE, Recipe
from experiments.run import Run
from experiments.train_run import RunData, train_run
from macaron_tf.data.batches import EncodedExamples, ExampleBatches
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.models import ElmoConfig, EncoderConfig, EncoderDecoderConfig, catalog
from macaron_tf.places import load
from macaron_tf.settings import Count, Dropout
from macaron_tf.starts import Start, start_of
from macaron_tf.text import load_encoder_vocabulary
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import TrainingResult
from macaron_tf.training.callbacks import Callbacks
from macaron_tf.training.session import Validate

NOTHING = "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecipe(Recipe):
    """A recipe of an encoder with lengths in epochs, which are passes over the training set.

    When the number of training examples is known, settings in epochs or fractions become numbers of
    updates in `training`; the run's recipe.json holds both. Setting `training.max_steps`,
    `training.warmup_steps` or `training.validate_every` explicitly turns its counterpart here off.

    Attributes:
        task: name of a task, see `macaron_tf.data.tasks.definitions`.
        source: source of the examples, see `macaron_tf.data.tasks.examples`.
        init: the weights to start from, see `read_init`.
        batch_size: examples in a micro-batch.
        epochs: passes over the training set; None: as many updates as `training.max_steps`.
        warmup_fraction: fraction of the updates that is warm-up; None: `training.warmup_steps`
            updates.
        validate_epochs: epochs between validations; None: `training.validate_every` updates.
        max_length: greatest length of a row, with special tokens.
    """

    # These may differ when a run is resumed; the numbers of updates that follow are compared.
    may_change: typing.ClassVar[tuple[str, ...]] = (
        *MAY_CHANGE,
        "epochs",
        "warmup_fraction",
        "validate_epochs",
    )

    by_argument: typing.ClassVar = {"task": "TASK", "init": "--init", "source": "--source"}
    configs: typing.ClassVar[tuple[type, ...]] = (EncoderConfig,)  # of supported models

    task: str
    source: str | None
    init: str = "none"
    batch_size: Count = 32
    epochs: Annotated[float, Gt(0), Lt(1e6)] | None = 3.0
    warmup_fraction: Dropout | None = 0.1
    validate_epochs: Annotated[float, Gt(0), Lt(1e6)] | None = 1.0
    max_length: Count = 128

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        config = super().model_config(vocab_size)
        if not isinstance(config, self.configs):
            self.expect_model(config, EncoderConfig, "is no encoder")
        self.expect_positions(config, "max_length", self.max_length)
        return config

    def usage(self) -> dict:
        return {**super().usage(), "trained_length": self.max_length}

    def follow(self, path: str) -> "EpochRecipe":
        """Turns off the setting in epochs that the setting `path`, in updates, replaces."""
        computed = {
            "training.max_steps": "epochs",
            "training.warmup_steps": "warmup_fraction",
            "training.validate_every": "validate_epochs",
        }
        return self.changed(**{computed[path]: None}) if path in computed else self

    def resolved(self, examples: int) -> "EpochRecipe":
        """Returns the recipe with its numbers of updates for a training set of `examples`."""
        training = self.training
        updates = -(-examples // self.batch_size) / training.accumulation_steps  # per epoch
        changes = {"max_steps": training.max_steps}
        if self.epochs is not None:
            changes["max_steps"] = max(round(self.epochs * updates), 1)
        last = changes["max_steps"]
        if self.warmup_fraction is not None:
            changes["warmup_steps"] = min(round(self.warmup_fraction * last), last - 1)
        if self.validate_epochs is not None:
            changes["validate_every"] = min(max(round(self.validate_epochs * updates), 1), last)
        return self.changed(training=changes)


def read_init(
    given: str,
    model: str | None = None,
    vocabulary: str | os.PathLike | None = None,
    lower_case: bool | None = None,
    kinds: Sequence[str] = ("encoder", "reader", "words"),
    pooling: bool = False,
) -> Start:
    """Reads the network, or its configuration, to start from, which `--init` names.

    Args:
        given: a place that `macaron_tf.load` reads, or `none` for random weights.
        model: name in the model catalog; only with `none`.
        vocabulary: folder of the vocabulary. With `none` it is required; otherwise it must equal
            the vocabulary of `given`.
        lower_case, pooling: see `macaron_tf.load`.
        kinds: accepted kinds of networks, see `macaron_tf.starts.KINDS`.
    """
    if given == NOTHING:
        if not model or not vocabulary:
            raise UserError("--init none needs --model NAME and --vocabulary DIR")
        if isinstance(catalog.CONFIGS.get(model), ElmoConfig):
            raise UserError(f"--model {model} needs pre-trained weights: give --init RUN")
        return Start(given, load_encoder_vocabulary(vocabulary), model)
    if model:
        raise UserError(
            f"--model {model} goes with --init none, because {given} has its own model: leave "
            "--model out"
        )
    init = start_of(given, load(given, lower_case, pooling), kinds)
    if vocabulary:
        check_vocabulary(init.vocabulary.hash, load_encoder_vocabulary(vocabulary).hash, given)
    return init


def init_of_run(
    run: Run,
    model: str | None = None,
    vocabulary: str | os.PathLike | None = None,
    lower_case: bool | None = None,
) -> Start:
    """The start of an `EpochRecipe`'s run that is resumed; see `read_init`."""
    recipe = run.recipe
    if recipe.init != NOTHING:
        return read_init(recipe.init, model, vocabulary, lower_case)
    if model or vocabulary:
        raise UserError("--resume: leave out --model and --vocabulary, which the run has saved")
    return Start(NOTHING, run.vocabulary, recipe.model, recipe.model_options)


def warn_start(
    init: Start, recipe: EpochRecipe, language: str | None = None, mend: str = ""
) -> None:
    """Warns on stderr if no language is named, or if rows exceed the length trained before.

    Args:
        init: the model that the training starts from.
        recipe: the recipe of the training.
        language: language of the texts; None: not named, so the first one of the model is used.
        mend: end of the warning about languages; `{}` stands for the model's other languages.
    """
    if len(init.languages) > 1 and not language:
        first, *others = init.languages
        print(
            f"warning: texts are read as {first}, the first language of {init.given}"
            + mend.format(", ".join(others)),
            file=sys.stderr,
        )
    if init.trained_length is not None and recipe.max_length > init.trained_length:
        print(
            f"warning: {init.given} was trained on rows of at most {init.trained_length} tokens: "
            f"set max_length={init.trained_length}, or expect worse results beyond that",
            file=sys.stderr,
        )


def example_batches(
    encoded: EncodedExamples, batch_size: int, strategy: tf.distribute.Strategy
) -> ExampleBatches:
    """Batches of 4 different row lengths; of one on a TPU, which compiles each shape."""
    return ExampleBatches(encoded, batch_size, shapes=1 if is_tpu(strategy) else 4)


def train_examples(
    run: Run,
    examples: EncodedExamples,
    validation: Callable[[keras.Model], Validate],
    init: Start,
    strategy: tf.distribute.Strategy,
    callbacks: Callbacks | None = None,
) -> TrainingResult:
    """Trains a run on tokenized examples; its recipe is `EpochRecipe.resolved`. See `train_run`."""
    recipe = run.recipe
    rows = example_batches(examples, recipe.batch_size, strategy)
    print(f"{recipe.task}: {rows.summary()}", flush=True)
    data = RunData(
        lambda start: rows.dataset(recipe.training.seed, start),
        rows.fingerprint(),
        {"examples": len(rows)},
    )
    note = f", from {init.given}"
    start = {"initialize": init.copy_to, "note": note, "callbacks": callbacks}
    return train_run(run, data, validation, strategy, **start)
