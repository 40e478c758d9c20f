"""`elmo train` and `elmo evaluate`."""

import argparse
import dataclasses
import hashlib
import json

import keras
import tensorflow as tf

from experiments import recipes
from experiments.elmo.recipe import ElmoRecipe
from experiments.elmo.run import ElmoRun
from experiments.elmo.text import Rows, read_rows
from experiments.recipe import MAY_CHANGE, check_same, override
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path, write_aside
from macaron_tf.objectives import BidirectionalLanguageObjective
from macaron_tf.training import FitModel, build_fit_model, train


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    recipe = override(recipes.load(options.recipe, ElmoRecipe), options.set)
    path = as_path(options.run)
    recipe.model_config()  # wrong settings are said before minutes are spent on the data
    known = BidirectionalLanguageObjective.metric_names
    if recipe.training.best_metric not in known:
        raise UserError(
            f"training.best_metric is {recipe.training.best_metric!r}: give one of "
            f"{', '.join(known)}"
        )
    opened = ElmoRun.open(path) if (path / "recipe.json").exists() else None
    if opened:
        check_same(opened.recipe, recipe, path, MAY_CHANGE)
    vocabulary = opened.vocabulary if opened else None
    rows, held_out, vocabulary = read_rows(recipe, vocabulary, options.data_dir, options.download)
    fingerprint = hashlib.sha256(rows.ids.tobytes()).hexdigest()
    if opened:
        opened.check_data(fingerprint)
    keras.utils.set_random_seed(recipe.training.seed)
    strategy = options.devices or tf.distribute.get_strategy()
    with strategy.scope():
        network = ElmoRun(path, recipe, vocabulary).build_network()
        objective = BidirectionalLanguageObjective(recipe.samples)
        model = build_fit_model(network, objective, recipe.training)
    print(
        f"{recipe.model}: {network.count_params():,} parameters; {rows.ids.size:,} words to learn "
        f"from, {held_out.ids.size:,} held out, {vocabulary.size:,} to predict",
        flush=True,
    )
    result = train(
        model,
        lambda start: rows.batches(recipe.batch_size, recipe.training.seed, start),
        recipe.training,
        path,
        validate=lambda model, step: scores(model, held_out, recipe.batch_size),
        vocabulary_hash=vocabulary.hash,
        on_start=lambda: ElmoRun(path, recipe, vocabulary).write(fingerprint, rows=len(rows.ids)),
    )
    print(
        f"stopped after step {result.step:,}: {result.reason}; {result.elapsed_seconds:.0f} s\n"
        f"next: {recipe.command} embed {path} --input lines.txt --output vectors.npz\n"
        f"      {recipe.command} tag {path} {path}-conll --data-dir DIR"
    )


def evaluate(options: argparse.Namespace) -> None:
    """Scores a checkpoint on the documents that its run held out; writes RUN/scores."""
    opened = ElmoRun.open(options.run)
    weights = opened.checkpoint(options.checkpoint)
    _, held_out, _ = read_rows(opened.recipe, opened.vocabulary, options.data_dir, options.download)
    network = opened.load_network(weights)
    training = dataclasses.replace(opened.recipe.training, ema_decay=None)
    model = build_fit_model(network, BidirectionalLanguageObjective(), training)
    found = {"checkpoint": weights.name, **scores(model, held_out, opened.recipe.batch_size)}
    folder = opened.path / "scores"
    folder.mkdir(parents=True, exist_ok=True)
    write_aside(folder / f"{weights.name}.json", (json.dumps(found, indent=1) + "\n").encode())
    print("\n".join(f"{name:12} {value}" for name, value in found.items()))


def scores(model: FitModel, rows: Rows, size: int) -> dict[str, float]:
    """The metrics on some rows."""
    metrics = model.evaluate(rows.batches(size), verbose=0, return_dict=True)
    return {name: metrics[name] for name in BidirectionalLanguageObjective.metric_names}
