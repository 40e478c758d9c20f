"""The command `finetune train`, which trains a model on a task."""

import argparse
import dataclasses
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from experiments import registry
from experiments.epochs import (
    example_batches,
    init_of_run,
    read_init,
    train_examples,
    warn_start,
)
from experiments.finetune.run import (
    RESULT,
    FinetuningRecipe,
    FinetuningRun,
    measure,
    preset,
)
from experiments.run import metrics_line, write_json
from experiments.train_run import report, warn_truncated
from macaron_tf.data.example_batches import EncodedExamples
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.distribution import Workers
from macaron_tf.starts import Start
from macaron_tf.tasks import Limits, labelled
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.text import MosesPairVocabulary, PieceVocabulary
from macaron_tf.training import Diverged, FitModel, TrainingResult
from macaron_tf.training.callbacks import Callbacks
from macaron_tf.training.checkpoints import CheckpointDirectory, read_manifest

TRAIN = "train"
CHANCE_MARGIN = 0.02  # a score that is better by no more than this is at chance level


class TaskData:
    """The training and development sets of a task, which are read only once.

    Attributes:
        table: settings of the user's own table, including columns and classes that were found in
            the data.
        tfds: access to TensorFlow Datasets.
        task: the task with the columns and classes of `table`.
        labelled_task: object that encodes and scores examples of the task's type; see
            `macaron_tf.tasks.labelled`.
        splits: dict mapping "train" and the name of each development set to labelled examples.
    """

    def __init__(
        self,
        task: Task,
        source: str | None = None,
        tfds: Tfds | None = None,
        table: TableSettings | None = None,
    ):
        self.table, self.tfds = (table or TableSettings()).filled(task, source, tfds), tfds
        self.task = self.table.described(task)
        self.labelled_task = labelled(self.task)
        self.splits = self.labelled_task.read_splits(
            (TRAIN, *task.validation_splits), tfds, source, self.table
        )

    @property
    def validation(self) -> dict[str, Any]:
        """The development sets, as a dict mapping split to examples."""
        return {split: examples for split, examples in self.splits.items() if split != TRAIN}

    def chance_level(self) -> float:
        """Returns the best score of an answer that is the same for every example.

        As in a run, the score is that of the first development set.
        """
        task, examples = self.labelled_task, next(iter(self.validation.values()))
        constants = task.constants(self.splits[TRAIN], examples)
        return max(task.score(constant, examples)["score"] for constant in constants)

    def encoded(self, vocabulary: PieceVocabulary, limits: Limits) -> dict[str, EncodedExamples]:
        """Returns the tokenized examples of each split, as a dict mapping split to examples.

        If training texts may be truncated, the method warns on stderr.

        Args:
            vocabulary: vocabulary that tokenizes the examples.
            limits: length and layout of the rows.
        """
        encoded = {
            split: self.labelled_task.encoded(vocabulary, examples, limits)
            for split, examples in self.splits.items()
        }
        if self.labelled_task.truncates:
            advice = "max_length, if the weights were trained on longer rows,"
            warn_truncated(encoded[TRAIN].rows.lengths, limits.max_length, advice)
        return encoded


def run(options: argparse.Namespace) -> None:
    """Runs the command `train`: trains or resumes a run, and prints commands to try next."""
    init_arguments = options.model, options.vocabulary, options.lower_case
    if earlier := registry.resumed(options, FinetuningRun):
        init = init_of_run(earlier, *init_arguments)
        recipe = earlier.recipe.changed(source=options.source or earlier.recipe.source)
    else:
        init = read_init(options.init, *init_arguments, trust_code=options.trust_code)
        recipe = preset(options.preset, get_task(options.task, own=True))
        source = options.source or recipe.source
        recipe = recipe.changed(**init.settings, source=source, languages=init.languages)
    planned = registry.plan(options, FinetuningRun, recipe, earlier)
    recipe, task = planned.recipe, get_task(recipe.task, own=True)
    check_recipe(recipe, init)
    # A preset may also change settings that nothing reads.
    changed = {f.name for f in dataclasses.fields(recipe) if getattr(recipe, f.name) != f.default}
    unread = [path for path in recipe.unread() if path.rstrip(".") in changed]
    data = TaskData(task, recipe.source, options.tfds, recipe.table)
    if task.own:
        print(f"{recipe.source}: {data.task.summary()}", file=sys.stderr)
    planned = dataclasses.replace(planned, settings=[*planned.settings, *unread])
    result = train_task(planned, data, init, options.devices, options.callbacks)
    steps = ["{me} evaluate {run}{data}", "{me} predict {run} --input FILE"]
    if task.submissions:
        steps.append("{me} submit {run} OUT{data}")
    if not isinstance(init.vocabulary, MosesPairVocabulary):
        steps.append(f"macaron export {{run}} served/{planned.path.name}")
    metrics = result_of(planned.path, result)["metrics"]
    best = "best validation scores at step {step:,}: " + metrics_line(metrics)
    level = data.chance_level()
    if metrics and metrics["score"] <= level + CHANCE_MARGIN:
        best += f"\nat chance level: the same answer to every example has the score {level:.4f}"
        steps = [
            "train another run with more epochs or training.max_steps, another "
            "training.learning_rate, more examples or other weights (--init)"
        ]
    report(result, recipe, options, *steps, best=best)


def check_recipe(recipe: FinetuningRecipe, init: Start) -> None:
    """Raises a `UserError` if a setting does not fit the pre-trained model, or the best metric."""
    task = recipe.task_definition
    init.check(recipe.model_config(init.vocabulary.size))
    recipe.check_metric(("score", *task.metrics, *task.more_metrics, "loss"))


def train_task(
    run: FinetuningRun,
    data: TaskData,
    init: Start,
    strategy: tf.distribute.Strategy,
    callbacks: Callbacks | None = None,
) -> TrainingResult:
    """Trains a fine-tuning run, or resumes the run in its folder.

    Args:
        run: the run; its vocabulary is replaced by that of `init`.
        data: data of the task.
        init: model, vocabulary and weights to start from.
        strategy: distribution strategy.
        callbacks: additional callbacks that the user chose.

    Raises:
        UserError: the recipe does not fit the data or `init`, or the folder has another run.
        Diverged: too many consecutive updates were skipped, for example because of a NaN or
            infinite loss or gradient. result.json then has the metrics of the best checkpoint.
    """
    vocabulary = init.vocabulary
    # The recipe that the run saves has the columns, the classes and the update counts.
    recipe = run.recipe.changed(table=data.table).resolved(len(data.splits[TRAIN]))
    path = run.path
    check_recipe(recipe, init)
    mend = "; to classify texts in {} give --set language=CODE"
    warn_start(init, recipe, recipe.language, mend)
    # Raises for a run of other settings before tokenization, which takes minutes.
    run = dataclasses.replace(run, recipe=recipe, vocabulary=vocabulary).continued()
    encoded = data.encoded(vocabulary, recipe.limits)

    def validation(network: keras.Model):
        """Makes a validation function, which returns the loss and the metrics.

        The loss is computed on the first development set. The metrics are computed on all
        development sets.
        """
        task = labelled(data.task, recipe.limits, network, vocabulary)
        outputs_of = SetOutputs(task, recipe.batch_size)
        sets = {
            split: example_batches(encoded[split], recipe.batch_size, strategy)
            for split in data.validation
        }

        def validate(model: FitModel, step: int) -> dict[str, float]:
            logits = {split: outputs_of.logits(rows) for split, rows in sets.items()}
            outputs = {
                split: task.outputs(logits[split], rows.encoded, data.splits[split], task.limits)
                for split, rows in sets.items()
            }
            first = next(iter(sets))
            rows = sets[first]
            batch = {
                "token_ids": tf.ones((len(rows), 1), tf.int32),
                "label": tf.constant(rows.labels(np.arange(len(rows)), rows.lengths[-1])),
                "weight": tf.ones(len(rows)),
            }
            objective = data.labelled_task.objective
            sums = objective.sums(tf.constant(logits[first]), batch, training=False)
            loss = float(sums["loss_sum"] / sums["weight"])
            return {"loss": loss, **measure(data.task, outputs, data.validation)}

        return validate

    def write_result(result: TrainingResult | None) -> None:
        if Workers(strategy).chief:
            write_json(path / RESULT, result_of(path, result))

    try:
        result = train_examples(run, encoded[TRAIN], validation, init, strategy, callbacks)
    except Diverged:
        write_result(None)
        raise
    write_result(result)
    return result


def result_of(path: epath.Path, trained: TrainingResult | None) -> dict[str, Any]:
    """Returns the contents of result.json in the folder `path` of a run.

    The keys are `reason` (why the run ended, such as "max_steps"), `step` (number of updates),
    `best_step`, `best_score` and `metrics` (of the best checkpoint; `None` or empty if there is
    none, for example because all scores were NaN) and `seconds`. If training diverged, `trained` is
    `None`, and so are `step` and `seconds`.
    """
    directory = CheckpointDirectory(path)
    best = directory.best() or {}
    return {
        "reason": trained.reason if trained else "diverged",
        "step": trained and trained.step,
        "best_step": best.get("step"),
        "best_score": best.get("score"),
        "metrics": read_manifest(directory.of_step(best["step"]))["metrics"] if best else {},
        "seconds": trained and round(trained.elapsed_seconds, 1),
    }
