"""`pretrain train`: from a recipe and a corpus to a run's checkpoints."""

import argparse
import dataclasses
from collections.abc import Callable

import tensorflow as tf
from etils import epath

from experiments import recipes
from experiments.pretrain.corpus import described, prepare_corpus
from experiments.pretrain.learning import pretraining_objective
from experiments.pretrain.recipe import CAUSAL, CORRUPTING, FILLING, PretrainingRecipe
from experiments.pretrain.rows import training_rows, validation_rows
from experiments.pretrain.run import PretrainingRun
from experiments.recipe import override
from experiments.train_run import RunData, report, train_run
from macaron_tf.data.corpus.reading import PretrainingCorpus, process_seed
from macaron_tf.data.service import check_address, service_error, through_service
from macaron_tf.distribution import Workers, is_tpu
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.training import (
    FitModel,
    TrainingResult,
)


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """Where a run's batches are made; the run is the same, but with `own_shards`.

    Attributes:
        data_service: addresses of `experiments.data_service`, separated by commas; None = here.
        own_shards: each of several workers reads its own shards only. The order of the rows then
            depends on the number of workers.
    """

    data_service: str | None = None
    own_shards: bool = False


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    recipe = override(recipes.load(options.recipe, PretrainingRecipe), options.set)
    path = as_path(options.run)
    given = InputOptions(options.data_service, options.own_shards)
    # Wrong settings are said before minutes are spent on the data.
    recipe.model_config()
    metric_names(recipe)
    for address in (options.data_service or "").split(","):
        if address.strip():
            check_address(address.strip())
    if options.corpus and options.vocabulary:
        raise UserError("--vocabulary: the corpus brings its own; give it to `prepare` instead")
    if options.corpus:
        corpus = PretrainingCorpus.open(options.corpus)
    else:
        corpus = prepare_corpus(
            recipe, None, options.vocabulary, options.data_dir, options.download
        )
    result = train_recipe(recipe, path, corpus, options.devices, given)
    command = "text_to_text" if recipe.objective in CORRUPTING else "finetune"
    steps = [f"python -m experiments.{command} train sst2 {path}-sst2 --init {path}"]
    if recipe.objective in CAUSAL:
        steps.append(f'python -m experiments.generate complete {path} "The story of"')
    elif recipe.objective in FILLING:
        steps.append(f'{recipe.command} fill {path} "the [MASK] of the story"')
    steps.append(f"tensorboard --logdir {path}")
    report(result, recipe, steps)


def train_recipe(
    recipe: PretrainingRecipe,
    path: epath.Path,
    corpus: PretrainingCorpus,
    strategy: tf.distribute.Strategy | None = None,
    input_options: InputOptions | None = None,
) -> TrainingResult:
    """Trains a recipe in a run's folder; the run found there is continued.

    Args:
        recipe: every setting.
        path: the run's folder.
        corpus: prepared, with rows of the recipe's length and kind.
        strategy: the devices; None = this moment's.
        input_options: where batches are made; None = here, from all shards.

    Raises:
        UserError: bad input, or a run of other data or another model in `path`.
    """
    metric_names(recipe)
    check_corpus(recipe, corpus)
    if corpus.rows("train") < recipe.batch_size:
        raise UserError(
            f"{corpus.folder} has {corpus.rows('train')} rows to train on, less than one batch of "
            f"{recipe.batch_size}: give more text, or lower batch_size"
        )
    # The run says what it was trained on, which is the corpus's to know.
    recipe = dataclasses.replace(
        recipe, corpus=corpus.config, vocabulary=described(corpus.vocabulary)
    )
    strategy = strategy or tf.distribute.get_strategy()
    workers, options = Workers(strategy), input_options or InputOptions()
    try:
        return train_run(
            PretrainingRun(path, recipe, corpus.vocabulary),
            RunData(
                _batches(recipe, corpus, workers, options),
                corpus.fingerprint,
                {"rows": corpus.rows("train")},
                per_worker=options.own_shards and workers.several,
            ),
            pretraining_objective(recipe, is_tpu(strategy)),
            lambda network: PretrainingValidation(recipe, corpus),
            strategy,
            note=f"; {corpus.summary()}",
        )
    except tf.errors.OpError as error:
        # A shard that was damaged since it was opened is named, also one that a service reads.
        clear = corpus.shard_error(error) or service_error(error)
        if clear is None:
            raise
        raise clear from error


def _batches(
    recipe: PretrainingRecipe, corpus: PretrainingCorpus, workers: Workers, options: InputOptions
) -> Callable[[int], tf.data.Dataset]:
    """Batches to learn from, from a micro-batch on."""
    size, seed, mask_seed = recipe.batch_size, recipe.training.seed, recipe.training.seed
    if recipe.has_memory:
        _check_in_order(recipe, workers, options)
    if options.own_shards and workers.several:
        if size % workers.count:
            raise UserError(
                f"batch_size is {size}, not a multiple of the {workers.count} workers, which "
                "--own-shards wants: --set batch_size=..."
            )
        corpus, size = corpus.shard(workers.number, workers.count), size // workers.count
        if recipe.masking.duplicates is None:  # a static mask is the row's own, whoever reads it
            mask_seed = process_seed(seed, workers.number)

    objective = pretraining_objective(recipe)

    def batches(start: int) -> tf.data.Dataset:
        rows = training_rows(recipe, corpus, size, start)
        made = objective.dataset(rows, recipe.masking, corpus.vocabulary, mask_seed, start)
        if options.data_service:
            return through_service(made, options.data_service, workers.number)
        return made.prefetch(tf.data.AUTOTUNE)

    return batches


def _check_in_order(recipe: PretrainingRecipe, workers: Workers, options: InputOptions) -> None:
    """Refuses what would part a text from its memory."""
    if options.data_service or options.own_shards:
        raise UserError(
            f"objective {recipe.objective!r} reads its texts in order: leave out --data-service "
            "and --own-shards"
        )
    if workers.several:
        raise UserError(
            f"objective {recipe.objective!r} keeps a memory of its texts, and a checkpoint has "
            "that of one process: train with one, on one or more devices"
        )


class PretrainingValidation:
    """Loss and accuracy on the rows held out, under masks that stay the same.

    Args:
        recipe: batch size, masking and how many batches.
        corpus: its validation rows.
    """

    def __init__(self, recipe: PretrainingRecipe, corpus: PretrainingCorpus):
        self.names = metric_names(recipe)
        objective = pretraining_objective(recipe)
        rows = validation_rows(recipe, corpus)
        batches = objective.dataset(rows, recipe.masking, corpus.vocabulary, seed=0)
        self.dataset = batches.take(recipe.validation_batches or -1)

    def __call__(self, model: FitModel, step: int) -> dict:
        """The metrics by name, as `train` asks of a validation."""
        metrics = model.evaluate(self.dataset, verbose=0, return_dict=True)
        return {name: metrics[name] for name in self.names}


def metric_names(recipe: PretrainingRecipe) -> tuple[str, ...]:
    """What a validation measures.

    Raises:
        UserError: the recipe's `best_metric` is none of it.
    """
    known = pretraining_objective(recipe).metric_names
    recipe.check_metric(known)
    return known


def check_corpus(recipe: PretrainingRecipe, corpus: PretrainingCorpus, same: str = "pairs") -> None:
    """Refuses a corpus whose rows are of another length or kind than the recipe's.

    Args:
        recipe, corpus: to compare.
        same: `"pairs"`, or `"paired"` where rows of the other kind of pairs will do.

    Raises:
        UserError: they are; the sentence names the setting.
    """
    for name in ("sequence_length", same):
        mine, theirs = getattr(recipe.corpus, name), getattr(corpus.config, name)
        if mine != theirs:
            raise UserError(
                f"{corpus.folder} was prepared with {name}={theirs!r}, the recipe wants "
                f"{mine!r}: prepare another corpus, or --set corpus.{name}={theirs!r}"
            )
