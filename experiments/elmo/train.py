"""`elmo train` and `elmo evaluate`."""

import argparse
import dataclasses
import hashlib

from experiments import registry
from experiments.elmo.run import ElmoRecipe, ElmoRun
from experiments.elmo.text import Rows, read_rows
from experiments.recipe import override
from experiments.run import write_json
from experiments.train_run import RunData, report, train_run
from macaron_tf.io.paths import as_path
from macaron_tf.objectives import BidirectionalLanguageObjective
from macaron_tf.training import FitModel, build_fit_model


def run(options: argparse.Namespace) -> None:
    """Trains, or resumes, and says what to do next."""
    recipe = override(registry.load(options.recipe, ElmoRecipe), options.set)
    path = as_path(options.run)
    recipe.model_config()  # wrong settings are said before minutes are spent on the data
    recipe.check_metric(BidirectionalLanguageObjective.metric_names)
    opened = ElmoRun.resume(path, recipe)
    rows, held_out, vocabulary = read_rows(
        recipe, opened and opened.vocabulary, options.data_dir, options.download
    )
    size = recipe.batch_size
    result = train_run(
        ElmoRun(path, recipe, vocabulary),
        RunData(
            lambda start: rows.batches(size, recipe.training.seed, start),
            hashlib.sha256(rows.ids.tobytes()).hexdigest(),
            {"rows": len(rows.ids)},
        ),
        BidirectionalLanguageObjective(recipe.samples),
        lambda network: lambda model, step: scores(model, held_out, size),
        options.devices,
        note=f"; {rows.ids.size:,} words to learn from, {held_out.ids.size:,} held out, "
        f"{vocabulary.size:,} to predict",
    )
    next_commands = [
        f"{recipe.command} embed {path} --input lines.txt --output vectors.npz",
        f"{recipe.command} tag {path} {path}-conll --data-dir DIR",
    ]
    report(result, recipe, next_commands)


def evaluate(options: argparse.Namespace) -> None:
    """Scores a checkpoint on the documents that its run held out; writes RUN/scores."""
    opened = ElmoRun.open(options.run)
    weights = opened.checkpoint(options.checkpoint)
    _, held_out, _ = read_rows(opened.recipe, opened.vocabulary, options.data_dir, options.download)
    network = opened.load_network(weights)
    training = dataclasses.replace(opened.recipe.training, ema_decay=None)
    model = build_fit_model(network, BidirectionalLanguageObjective(), training)
    found = {"checkpoint": weights.name, **scores(model, held_out, opened.recipe.batch_size)}
    write_json(opened.path / "scores" / f"{weights.name}.json", found)
    print("\n".join(f"{name:12} {value}" for name, value in found.items()))


def scores(model: FitModel, rows: Rows, size: int) -> dict[str, float]:
    """The objective's metrics on some rows."""
    metrics = model.evaluate(rows.batches(size), verbose=0, return_dict=True)
    return {name: metrics[name] for name in BidirectionalLanguageObjective.metric_names}
