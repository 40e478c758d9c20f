"""`finetune train`: from pre-trained weights to a fine-tuned network."""

import argparse

import keras
import tensorflow as tf
from etils import epath

from experiments.finetune.data import TRAIN, TaskData
from experiments.finetune.init import Init, read_init
from experiments.finetune.kinds import kind_of
from experiments.finetune.prediction import Predictor
from experiments.finetune.presets import preset
from experiments.finetune.recipe import FinetuningRecipe
from experiments.finetune.run import RESULT, FinetuningResult, FinetuningRun, build_network
from experiments.finetune.validation import FinetuningValidation, metric_names
from experiments.recipe import check_same, override
from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.distribution import Workers, is_tpu
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import Diverged, build_fit_model, train
from macaron_tf.training.checkpoints import CheckpointDirectory, read_manifest

# Decided by the command line's own arguments.
_GIVEN = {"task": "TASK", "init": "--init", "source": "--source"}


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
    print(f"stopped after step {result.step:,}: {result.reason}; {result.seconds:.0f} s")
    if result.best_step is not None:
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
        print(f"best on the development set at step {result.best_step:,}: {metrics}")
    submitted = bool(task.submissions)
    where = f" --data-dir {options.data_dir}" if options.data_dir else ""
    print(
        f"next: python -m experiments.finetune evaluate {path}{where}\n"
        f"      python -m experiments.finetune predict {path} --input FILE\n"
        + (f"      python -m experiments.finetune submit {path} OUT{where}\n" * submitted)
        + f"      python -m export.saved_model {path} served/{task.name}"
    )


def configure(
    recipe: FinetuningRecipe, init: Init, source: str | None, settings: list[str]
) -> FinetuningRecipe:
    """A preset's recipe for this start, with settings replaced.

    Args:
        recipe: a preset's.
        init: where the weights come from.
        source: of the examples; None = the task's own.
        settings: as for `override`.

    Raises:
        UserError: as `override`; or a setting has an argument of its own.
    """
    for setting in settings:
        name = setting.partition("=")[0]
        if name in _GIVEN:
            raise UserError(f"--set {setting}: give {_GIVEN[name]} instead")
    if source:
        recipe = override(recipe, [f"source={source}"])
    return override(init.apply(recipe), settings)


def check_recipe(recipe: FinetuningRecipe, init: Init) -> None:
    """Refuses settings that cannot be trained with, before minutes are spent on data.

    Raises:
        UserError: see `Init.check`; or `training.best_metric` is no metric of the task.
    """
    init.check(recipe)
    names = metric_names(recipe.described)
    if recipe.training.best_metric not in names:
        raise UserError(
            f"training.best_metric is {recipe.training.best_metric!r}: give one of "
            f"{', '.join(names)}"
        )


def train_recipe(
    recipe: FinetuningRecipe,
    path: epath.Path,
    data: TaskData,
    init: Init,
    strategy: tf.distribute.Strategy | None = None,
) -> FinetuningResult:
    """Fine-tunes in a run's folder; the run found there is continued.

    Args:
        recipe: every setting.
        path: the run's folder; not made where something is wrong.
        data: the examples.
        init: the weights and the vocabulary.
        strategy: the devices; None = this moment's.

    Raises:
        Diverged: too many updates in a row were NaN; what was best before is recorded.
        UserError: settings that do not fit, or a run of other data or settings in `path`.
    """
    task, vocabulary = recipe.described, init.vocabulary
    recipe = recipe.resolved(len(data.splits[TRAIN]))
    check_recipe(recipe, init)
    init.warn(recipe)
    opened = open_same(path, recipe, init)
    strategy = strategy or tf.distribute.get_strategy()
    shapes = 1 if is_tpu(strategy) else 4
    rows = ExampleBatches(
        data.encoded(TRAIN, vocabulary, recipe.limits), recipe.batch_size, shapes=shapes
    )
    print(f"{task.name}: {rows.summary()}", flush=True)
    if opened:
        opened.check_data(rows.fingerprint())
    # Head, dropout and batches all follow from the one seed.
    keras.utils.set_random_seed(recipe.training.seed)
    held_out = {
        split: ExampleBatches(
            data.encoded(split, vocabulary, recipe.limits), recipe.batch_size, shapes=shapes
        )
        for split in data.validation
    }
    with strategy.scope():
        network = build_network(recipe, vocabulary.size)
        init.copy_to(network)
        predictor = Predictor(network, vocabulary, task, recipe.limits, recipe.batch_size)
        learnt = kind_of(task).learnt(network.config, recipe.language_weight)
        model = build_fit_model(network, learnt, recipe.training)
    print(f"{recipe.model}: {network.count_params():,} parameters, from {init.given}", flush=True)
    validation = FinetuningValidation(task, predictor, held_out, data.validation)
    run = FinetuningRun(path, recipe, vocabulary)

    def start() -> None:
        (path / RESULT).unlink(missing_ok=True)
        run.write(network, rows.fingerprint(), examples=len(rows))

    try:
        trained = train(
            model,
            lambda start: rows.dataset(recipe.training.seed, start),
            recipe.training,
            path,
            validate=validation,
            vocabulary_hash=vocabulary.hash,
            on_start=start,
        )
    except Diverged:
        _write(run, _result(path, "diverged"), strategy)
        raise
    result = _result(path, trained.reason, trained.step, round(trained.elapsed_seconds, 1))
    _write(run, result, strategy)
    return result


def open_same(path: epath.Path, recipe: FinetuningRecipe, init: Init) -> FinetuningRun | None:
    """The run in a folder, if there is one, of the same recipe and vocabulary.

    Args:
        path: the folder.
        recipe: resolved.
        init: where the vocabulary comes from.

    Raises:
        UserError: it is a run of others.
    """
    if not (path / "recipe.json").exists():
        return None
    opened = FinetuningRun.open(path)
    check_same(opened.recipe, recipe, path, FinetuningRecipe.may_change)
    check_vocabulary(opened.vocabulary.hash, init.vocabulary, str(path))
    return opened


def _write(run: FinetuningRun, result: FinetuningResult, strategy: tf.distribute.Strategy) -> None:
    if Workers(strategy).chief:
        run.write_result(result)


def _result(
    path: epath.Path, reason: str, step: int | None = None, seconds: float | None = None
) -> FinetuningResult:
    directory = CheckpointDirectory(path)
    best = directory.best()
    if best is None:
        return FinetuningResult(reason, step, None, None, {}, seconds)
    metrics = read_manifest(directory.of_step(best["step"]))["metrics"]
    return FinetuningResult(reason, step, best["step"], best["score"], metrics, seconds)
