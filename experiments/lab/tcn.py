"""Compares a temporal convolutional network (TCN) with recurrent networks of equal size.

    python -m experiments.lab.tcn jsb out/jsb --data music/JSB_Chorales.mat
    python -m experiments.lab.tcn adding out/adding
    python -m experiments.lab.tcn ptb_words out/words --data ptb
    python -m experiments.lab.tcn wikitext out/wikitext --data-dir DIR

The recurrent networks are the LSTM, GRU and RNN layers of Keras, with nearly as many parameters as
the TCN. The command writes OUT/TASK.md, OUT/TASK.json and OUT/TASK.png, and a folder OUT/MODEL-SEED
for each run. Complete runs are not trained again. To resume an interrupted command, give the same
command again. The recipe of TASK is `tcn_TASK`, which `macaron train` trains alone.
"""

import argparse
import statistics

import keras
from etils import epath

from experiments import command_line as cli
from experiments import registry, studies
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.io.plug_ins import is_import_path
from macaron_tf.runs.recipe import refuse_argument_settings
from macaron_tf.runs.sequences.data import TaskData
from macaron_tf.runs.sequences.run import (
    MODELS,
    TASKS,
    SequenceRecipe,
    SequenceRun,
    Task,
    task_metrics,
)
from macaron_tf.runs.trainer import fit
from macaron_tf.training import build_fit_model


def run(options: argparse.Namespace) -> None:
    """Trains the models of a task, and writes OUT/TASK.md, OUT/TASK.json and OUT/TASK.png."""
    refuse_argument_settings(
        options.set,
        {"training.seed": "--seeds", "task": "TASK", "model.mixer": "--models", "data": "--data"},
    )
    name = options.task
    prefix = "" if is_import_path(name) or name.startswith("tcn_") else "tcn_"
    base = registry.load(prefix + name, SequenceRecipe)
    task, out = TASKS[base.task], as_path(options.out)
    base = base.changed(data=options.data or base.data)
    recipes = [base.of_mixer(mixer, options.set) for mixer in options.models]
    # These checks raise errors before the training, which takes minutes or hours.
    recipes[0].check_metric([task.metric])
    rows = []
    for seed in options.seeds:
        settings = [*options.set, f"training.seed={seed}"]
        for mixer in options.models:
            data = task.read_data(base.of_mixer(mixer, settings), options.tfds)
            recipe = base.of_mixer(mixer, settings, data.vocab_size)
            rows.append(_train(recipe, task, data, out / f"{mixer}-{seed}", options))
    lines = [
        f"Metric: {task.unit}. The best checkpoint is chosen by validation.",
        "",
        *table(task, rows),
    ]
    if all(row["test"] is None for row in rows):
        lines += ["", "The data have no test split."]
    small = [{key: row[key] for key in row if key != "run"} for row in rows]
    studies.write(out, base.task, options, task.title, lines, rows=small)
    curves = studies.curves(rows, "model", "step", task.metric)
    figure = out / f"{base.task}.png"
    studies.mean_curves({task.title: curves}, figure, "updates", f"validation: {task.unit}")


def _train(
    recipe: SequenceRecipe,
    task: Task,
    data: TaskData,
    path: epath.Path,
    options: argparse.Namespace,
) -> dict:
    """Trains or resumes a run unless it is complete, and evaluates its best checkpoint.

    Returns the results of the run. The value "test" is the test score, or `None` without a test
    split.
    """
    keras.backend.clear_session()
    config = recipe.model_config(data.vocab_size)
    context = {"data_dir": options.data_dir, "settings": options.set}
    run = SequenceRun(path, recipe, None, data.vocab_size, **context)
    print(f"{path}: {config.mixer} with widths {config.widths}", flush=True)
    result = fit(run.plan_of(data), callbacks=options.callbacks)
    if result.best_checkpoint is None:
        raise UserError(
            f"{path} stopped before its first validation: lower training.validate_every"
        )
    test = None
    if data.test is not None:
        model = build_fit_model(run.load_network("best"), recipe.make_objective(), recipe.training)
        test = task_metrics(model, data.test)[task.metric]
    return {
        "model": config.mixer,
        "seed": recipe.training.seed,
        "parameters": config.parameters,
        "widths": list(config.widths),
        "validation": result.best_score,
        "best_step": result.best_step,
        "updates": result.step,
        "minutes": result.elapsed_seconds / 60,
        "reason": result.reason,
        "test": test,
        "run": str(path),
    }


def table(task: Task, rows: list[dict]) -> list[str]:
    """Formats a Markdown table with a row for each model.

    Scores, update counts and training times are means over the seeds. Scores of several seeds also
    have a standard deviation.
    """
    slide = dict(zip(MODELS, task.slide, strict=True))
    head = ("model", "parameters", "widths", "validation", "test", "slide", "updates", "minutes")
    lines = []
    for model, model_rows in studies.grouped(rows, "model").items():
        widths = model_rows[0]["widths"]
        uniform_widths = f"{widths[0]} x {len(widths)}" if len(set(widths)) == 1 else None
        cells = (
            model,
            f"{model_rows[0]['parameters']:,}",
            uniform_widths or ", ".join(map(str, widths)),
            _cell(task, studies.values(model_rows, "validation")),
            _cell(task, studies.values(model_rows, "test")),
            "-" if slide[model] is None else f"{slide[model]:g}",
            f"{statistics.mean(row['updates'] for row in model_rows):,.0f}",
            f"{statistics.mean(row['minutes'] for row in model_rows):.1f}",
        )
        lines.append(cells)
    return studies.table(head, lines)


def _cell(task: Task, values: list[float]) -> str:
    """Formats the mean and standard deviation of a metric over seeds, accuracies in percent."""
    if not values:
        return "-"
    scale = 100 if task.metric == "accuracy" else 1
    mean = scale * statistics.mean(values)
    text = f"{mean:.3g}" if abs(mean) < 0.1 else f"{mean:.2f}"
    return text + (f" ± {scale * statistics.stdev(values):.2g}" if len(values) > 1 else "")


main = cli.single_program(
    "python -m experiments.lab.tcn",
    __doc__,
    "experiments.lab.tcn:run",
    cli.extra("train"),
    cli.local_path_argument(
        "task",
        "name of a task: adding, copy_memory, jsb, nottingham, ptb_words, ptb_characters, "
        "wikitext, lambada, mnist or permuted_mnist; or your own function that returns a "
        "recipe, as FILE.py[:NAME]",
    ),
    cli.path_argument("out", "output folder for the training runs and the report"),
    cli.argument(
        "--models",
        "models to train (default: all)",
        nargs="+",
        choices=("tcn", "lstm", "gru", "rnn"),
        default=["tcn", "lstm", "gru", "rnn"],
        action=cli.Distinct,
    ),
    cli.seeds([1], "random seeds; the command trains each model with every seed"),
    cli.local_path_argument(
        "--data PATH",
        "a .mat file with music for jsb and nottingham; a folder with train.txt, valid.txt and "
        "test.txt for ptb_words and ptb_characters, or with dev.txt and test.txt for lambada, "
        "which may be compressed (.txt.gz)",
    ),
    cli.TFDS,
    cli.settings("training.max_steps=500 or batch_size=8, for all models"),
    cli.CALLBACKS,
)

if __name__ == "__main__":
    raise SystemExit(main())
