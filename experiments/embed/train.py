"""`embed train`: from pre-trained weights to an encoder of sentences."""

import argparse
import dataclasses

import keras
import tensorflow as tf
from etils import epath

from experiments.embed.data import TRAIN, read_sets, validation_split
from experiments.embed.recipe import EmbeddingRecipe, paper_recipe
from experiments.embed.run import EmbeddingRun, build_network
from experiments.embed.scoring import EmbeddingValidation, metric_names
from experiments.embed.sentence_encoder import SentenceEncoder, warn_cut
from experiments.embed.start import Start, read_start
from experiments.recipe import check_same, override
from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.encoding import encode_sets
from macaron_tf.data.tasks.reading import TextSets
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import TrainingResult, build_fit_model, train

# Decided by the command line's own arguments.
_GIVEN = {"task": "TASK", "init": "--init", "source": "--source", "objective": "--objective"}


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    start = read_start(options.init, options.model, options.vocabulary, options.lower_case)
    recipe = configure(options, start)
    splits = [
        read_sets(recipe.task, split, recipe.source, options.data_dir, options.download)
        for split in (TRAIN, validation_split(recipe.task))
    ]
    path = as_path(options.run)
    result = train_recipe(recipe, path, *splits, start, options.devices)
    print(f"stopped after step {result.step:,}: {result.reason}; {result.elapsed_seconds:.0f} s")
    if result.best_step is not None:
        print(
            f"best on the development set at step {result.best_step:,}: "
            f"{recipe.training.best_metric} {result.best_score:.4f}"
        )
    where = f" --data-dir {options.data_dir}" if options.data_dir else ""
    print(
        f"next: python -m experiments.embed evaluate {path}{where}\n"
        f"      python -m experiments.embed search {path} --corpus FILE\n"
        f"      python -m export.saved_model {path} served/{path.name}"
    )


def configure(options: argparse.Namespace, start: Start) -> EmbeddingRecipe:
    """The paper's recipe for a task, this start and the settings given.

    Args:
        options: `task`, `objective`, `pooling`, `source` and `set`.
        start: where the weights come from; its own pooling and length count where none is given.

    Raises:
        UserError: as `override`; a setting has an argument of its own; or a setting cannot be
            trained with.
    """
    for setting in options.set:
        name = setting.partition("=")[0]
        if name in _GIVEN:
            raise UserError(f"--set {setting}: give {_GIVEN[name]} instead")
    recipe = start.init.apply(paper_recipe(options.task, options.objective))
    recipe = dataclasses.replace(
        recipe,
        source=options.source or recipe.source,
        pooling=options.pooling or start.pooling or recipe.pooling,
        normalize=start.normalize,
        max_length=start.max_length or recipe.max_length,
    )
    recipe = override(recipe, options.set)
    start.init.check(recipe)
    names = metric_names(recipe)
    if recipe.training.best_metric not in names:
        raise UserError(
            f"training.best_metric is {recipe.training.best_metric!r}: give one of "
            f"{', '.join(names)}"
        )
    return recipe


def train_recipe(
    recipe: EmbeddingRecipe,
    path: epath.Path,
    examples: TextSets,
    held_out: TextSets,
    start: Start,
    strategy: tf.distribute.Strategy | None = None,
) -> TrainingResult:
    """Trains in a run's folder; the run found there is continued.

    Args:
        recipe: every setting.
        path: the run's folder; not made where something is wrong.
        examples: to learn from.
        held_out: to judge by.
        start: the weights and the vocabulary.
        strategy: the devices; None = this moment's.

    Raises:
        UserError: settings that do not fit, or a run of other data or settings in `path`.
    """
    vocabulary = start.init.vocabulary
    recipe = recipe.resolved(len(examples))
    start.init.warn(recipe)
    opened = _open_same(path, recipe, start)
    strategy = strategy or tf.distribute.get_strategy()
    encoded = [encode_sets(vocabulary, sets, recipe.max_length) for sets in (examples, held_out)]
    for sets in encoded:
        warn_cut(sets.cut, len(sets.rows.lengths), recipe.max_length)
    rows = ExampleBatches(encoded[0], recipe.batch_size, shapes=1 if is_tpu(strategy) else 4)
    print(f"{recipe.task}: {rows.summary()}", flush=True)
    if opened:
        opened.check_data(rows.fingerprint())
    # Head, dropout and batches all follow from the one seed.
    keras.utils.set_random_seed(recipe.training.seed)
    with strategy.scope():
        network = build_network(recipe, vocabulary.size)
        start.init.copy_to(network)
        encoder = SentenceEncoder(network, vocabulary, recipe.max_length)
        model = build_fit_model(network, recipe.make_objective(), recipe.training)
    given = start.init.given
    print(f"{recipe.model}: {network.count_params():,} parameters, from {given}", flush=True)
    run = EmbeddingRun(path, recipe, vocabulary)
    return train(
        model,
        lambda first: rows.dataset(recipe.training.seed, first),
        recipe.training,
        path,
        validate=EmbeddingValidation(recipe, encoder, encoded[1]),
        vocabulary_hash=vocabulary.hash,
        on_start=lambda: run.write(network, rows.fingerprint(), examples=len(rows)),
    )


def _open_same(path: epath.Path, recipe: EmbeddingRecipe, start: Start) -> EmbeddingRun | None:
    """The run in a folder, if there is one, of the same recipe and vocabulary."""
    if not (path / "recipe.json").exists():
        return None
    opened = EmbeddingRun.open(path)
    check_same(opened.recipe, recipe, path, recipe.may_change)
    check_vocabulary(opened.vocabulary.hash, start.init.vocabulary, str(path))
    return opened
