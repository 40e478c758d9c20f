"""`finetune train`: from pre-trained weights to a fine-tuned network."""

import argparse
import functools
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from experiments.epochs import example_batches, refuse_given, train_examples
from experiments.finetune.init import Init, read_init
from experiments.finetune.kinds import Limits, kind_of
from experiments.finetune.recipe import FinetuningRecipe, preset
from experiments.finetune.run import FinetuningResult, FinetuningRun, Predictor, measure
from experiments.recipe import override
from experiments.scores import metrics_line
from experiments.train_run import report
from macaron_tf.data.batches import EncodedExamples, ExampleBatches
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.distribution import Workers
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.io.progress import track
from macaron_tf.text import PieceVocabulary
from macaron_tf.training import Diverged, FitModel, TrainingResult
from macaron_tf.training.checkpoints import CheckpointDirectory, read_manifest

# Settings that the command line has arguments for.
_GIVEN = {"task": "TASK", "init": "--init", "source": "--source"}
TRAIN = "train"


class TaskData:
    """A task's training and development sets, read once and tokenized once.

    Args:
        splits: "train" and the development sets, with labels.
    """

    def __init__(self, task: Task, splits: dict[str, Any]):
        self.task = task
        self.splits = splits
        self._key: tuple | None = None
        self._encoded: dict[str, EncodedExamples] = {}

    @classmethod
    def read(
        cls,
        task: Task,
        source: str | None = None,
        data_dir: str | os.PathLike | None = None,
        download: bool = False,
    ) -> "TaskData":
        """Reads the training set and the task's development sets.

        Args:
            task, source, data_dir, download: as for `read_examples`.

        Raises:
            UserError: as `read_examples`; or a set's labels are secret.
        """
        kind, splits = kind_of(task), {}
        for split in (TRAIN, *task.validation_splits):
            splits[split] = kind.read(split, data_dir, download, source)
            if splits[split].labels is None:
                raise UserError(
                    f"the labels of split {split!r} of {source or task.source} are secret: "
                    "fine-tuning needs a training and a development set with labels"
                )
        return cls(task, splits)

    @property
    def validation(self) -> dict[str, Any]:
        """The development sets."""
        return {split: examples for split, examples in self.splits.items() if split != TRAIN}

    def encoded(self, split: str, vocabulary: PieceVocabulary, limits: Limits) -> EncodedExamples:
        """A split's rows, see `TaskKind.encode`; the last vocabulary's are kept."""
        key = (vocabulary.hash, limits)
        if key != self._key:
            self._key, self._encoded = key, {}
        if split not in self._encoded:
            tracked = functools.partial(
                track, what=f"tokenizing {self.task.name} {split}", unit="examples"
            )
            self._encoded[split] = kind_of(self.task).encode(
                vocabulary, self.splits[split], limits, tracked
            )
        return self._encoded[split]


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    task = get_task(options.task)
    recipe = preset(options.preset, task)
    init = read_init(options.init, options.model, options.vocabulary, options.lower_case)
    recipe = configure(recipe, init, options.source, options.set)
    check_recipe(recipe, init)
    data = TaskData.read(task, recipe.source, options.data_dir, options.download)
    path = as_path(options.run)
    result = train_recipe(recipe, path, data, init, options.devices)
    where = f" --data-dir {options.data_dir}" if options.data_dir else ""
    steps = [
        f"{recipe.command} evaluate {path}{where}",
        f"{recipe.command} predict {path} --input FILE",
    ]
    if task.submissions:
        steps.append(f"{recipe.command} submit {path} OUT{where}")
    steps.append(f"python -m export.saved_model {path} served/{task.name}")
    best = "best on the development set at step {step:,}: "
    report(result, recipe, steps, best + metrics_line(result_of(path, result).metrics))


def configure(
    recipe: FinetuningRecipe, init: Init, source: str | None, settings: list[str]
) -> FinetuningRecipe:
    """A preset's recipe for this start, with settings replaced.

    Args:
        source: of the examples; None = the task's own.
        settings: as for `override`.

    Raises:
        UserError: as `override`; or a setting has an argument of its own.
    """
    refuse_given(settings, _GIVEN)
    if source:
        recipe = override(recipe, [f"source={source}"])
    return override(init.apply(recipe), settings)


def check_recipe(recipe: FinetuningRecipe, init: Init) -> None:
    """Refuses settings that cannot be trained with, before minutes are spent on data.

    Raises:
        UserError: see `Init.check`; or `training.best_metric` is no metric of the task.
    """
    init.check(recipe)
    recipe.check_metric(metric_names(recipe.described))


def train_recipe(
    recipe: FinetuningRecipe,
    path: epath.Path,
    data: TaskData,
    init: Init,
    strategy: tf.distribute.Strategy,
) -> TrainingResult:
    """Fine-tunes in a run's folder; the run found there is continued.

    Raises:
        Diverged: too many updates in a row were NaN; the best validation before is recorded.
        UserError: settings that do not fit, or a run of other data or settings in `path`.
    """
    task, vocabulary = recipe.described, init.vocabulary
    recipe = recipe.resolved(len(data.splits[TRAIN]))
    check_recipe(recipe, init)
    init.warn(recipe)
    FinetuningRun.resume(path, recipe)  # refused before minutes of tokenizing
    run = FinetuningRun(path, recipe, vocabulary)
    encoded = {split: data.encoded(split, vocabulary, recipe.limits) for split in data.splits}
    held_out = {
        split: example_batches(encoded[split], recipe.batch_size, strategy)
        for split in data.validation
    }

    def validation(network: keras.Model) -> FinetuningValidation:
        predictor = Predictor(network, vocabulary, task, recipe.limits, recipe.batch_size)
        return FinetuningValidation(task, predictor, held_out, data.validation)

    config = recipe.model_config(vocabulary.size)
    objective = kind_of(task).learnt(config, recipe.language_weight)
    chief = Workers(strategy).chief
    try:
        result = train_examples(run, encoded[TRAIN], objective, validation, init, strategy)
    except Diverged:
        if chief:
            run.write_result(result_of(path, None))
        raise
    if chief:
        run.write_result(result_of(path, result))
    return result


def result_of(path: epath.Path, trained: TrainingResult | None) -> FinetuningResult:
    """How a training in a run's folder ended; None = it diverged."""
    ended = ("diverged", None) if trained is None else (trained.reason, trained.step)
    seconds = None if trained is None else round(trained.elapsed_seconds, 1)
    directory = CheckpointDirectory(path)
    best = directory.best()
    if best is None:
        return FinetuningResult(*ended, None, None, {}, seconds)
    metrics = read_manifest(directory.of_step(best["step"]))["metrics"]
    return FinetuningResult(*ended, best["step"], best["score"], metrics, seconds)


def metric_names(task: Task) -> tuple[str, ...]:
    """The metrics of a validation."""
    return ("score", *task.metrics, *task.more_metrics, "loss")


class FinetuningValidation:
    """Loss and metrics of the development sets.

    Args:
        predictor: of the network that is being trained.
        data: rows of each development set; the first one decides.
        examples: the same, with labels.
    """

    def __init__(
        self,
        task: Task,
        predictor: Predictor,
        data: dict[str, ExampleBatches],
        examples: dict[str, Any],
    ):
        self.task = task
        self.predictor = predictor
        self.data = data
        self.examples = examples

    def __call__(self, model: FitModel, step: int) -> dict[str, float]:
        """The metrics by name."""
        logits = {split: self.predictor.logits(data) for split, data in self.data.items()}
        first = next(iter(logits))
        outputs = {
            split: self.predictor.outputs(self.data[split], self.examples[split], found)
            for split, found in logits.items()
        }
        loss = self._loss(logits[first], self.data[first])
        return {"loss": loss, **measure(self.task, outputs, self.examples)}

    def _loss(self, logits: np.ndarray, data: ExampleBatches) -> float:
        rows = np.arange(len(data))
        batch = {
            "token_ids": tf.ones((len(data), 1), tf.int32),
            "label": tf.constant(data.labels(rows, data.lengths[-1])),
            "weight": tf.ones(len(data)),
        }
        # The outputs are there already: a network that returns them.
        sums = self.predictor.kind.objective(
            lambda inputs, training: tf.constant(logits), batch, training=False
        )
        return float(sums["loss_sum"] / sums["weight"])
