"""Evaluation of fine-tuned models, and the commands `submit` and `tasks`."""

import argparse
import itertools
import time
from typing import Any

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import OWN_TASKS, TASKS
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.data.tasks.text_tasks import SUMMARIES
from macaron_tf.errors import UserError, check_packages, diverged
from macaron_tf.evaluation.glue import write_submission
from macaron_tf.io import paths as storage
from macaron_tf.runs.finetuning import TRAIN, by_split, load_labelled_task
from macaron_tf.runs.run import (
    Run,
    default_splits,
    metrics_line,
    save_scores,
    scores_name,
)
from macaron_tf.tasks import labelled
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.training.checkpoints import read_manifest


def evaluate(run: Run, options: argparse.Namespace) -> None:
    """Scores a run, and writes the metrics and the predictions.

    The split is that of `--split`, or all validation splits of the task.
    """
    check_packages("evaluate")
    task = run.recipe.task_definition
    labelled_task = labelled(task)
    source = options.source or run.recipe.data.source
    splits = [options.split] if options.split else [*task.validation_splits]
    is_run_source = source == run.recipe.data.source
    if not is_run_source and not options.split:
        splits = default_splits(source, splits)
    languages = dict.fromkeys(options.languages or ())
    if languages and "language" not in labelled_task.takes:
        raise UserError(f"--languages applies only to classification tasks, not to {task.name}")
    for language in languages:
        # Raises for a language that the model does not know.
        run.recipe.changed(data=dict(language=language))
    # Two dicts from the name of a set of examples to the set and to its language.
    examples, language_of = {}, {}
    origin, table = (options.tfds, source), run.recipe.data.table
    for language in languages or (None,):
        if is_run_source:
            held_out = not language and labelled_task.split_names(splits, *origin) is None
            wanted = [*splits, TRAIN] if held_out else splits
            sets = labelled_task.read_splits(wanted, *origin, table, language)
            if held_out:
                check_trained(run, sets[TRAIN])
        else:
            sets = {split: labelled_task.read(split, *origin, language) for split in splits}
        for split in splits:
            split_examples = sets[split]
            name = (language if len(splits) == 1 else f"{language}_{split}") if language else split
            examples[name], language_of[name] = split_examples, language
    for (name, first), (other_name, second) in itertools.combinations(examples.items(), 2):
        if language_of[name] != language_of[other_name] and first.texts == second.texts:
            raise UserError(
                f"{source} has identical texts for the languages {language_of[name]} and "
                f"{language_of[other_name]}: give a single CODE in --languages"
            )
    checkpoint = run.checkpoint(options.checkpoint)
    manifest = read_manifest(checkpoint)
    with options.devices.scope():
        outputs_of = SetOutputs(
            load_labelled_task(run, checkpoint), run.recipe.data.batch_size
        ).compute
    began = time.monotonic()
    outputs = {name: outputs_of(rows, language_of[name]) for name, rows in examples.items()}
    seconds = time.monotonic() - began
    metrics = {name: labelled_task.measure(outputs[name], rows) for name, rows in examples.items()}
    for name, values in metrics.items() if languages else ():
        print(f"{name:8} {metrics_line(values)}")
    if not languages:
        metrics = by_split(metrics)
        print(metrics_line(metrics))
    count, step = sum(map(len, examples.values())), manifest["step"]
    print(f"{count:,} examples of {', '.join(splits)} in {seconds:.1f} s, step {step:,}")
    record = {
        "task": task.name,
        "source": source,
        "splits": splits,
        "languages": [*languages],
        "step": step,
        "seconds": round(seconds, 2),
        "metrics": metrics,
        "predictions": {
            name: labelled_task.answers(outputs[name], rows) for name, rows in examples.items()
        },
    }
    identity = [manifest["files"], {name: vars(rows) for name, rows in examples.items()}]
    settings = "-".join([checkpoint.name, *languages, ""])
    name = scores_name(f"{source}-{'-'.join(splits)}", settings, identity)
    save_scores(options.output, run.path, name, checkpoint.name, **record)


def check_trained(run: Run, train: Any) -> None:
    """Raises a `UserError` if the user's table has changed since the run was trained.

    Another part is then held out, and the run was trained on much of it, so the score would be too
    high.
    """
    recipe = run.recipe
    task = labelled(recipe.task_definition)
    encoded = task.encoded(run.vocabulary, train, recipe.limits)
    run.check_data(
        ExampleBatches(encoded, recipe.data.batch_size).fingerprint(),
        "restore the table, because a changed table holds out other examples, or give other "
        "examples by --source",
    )


def submit(options: argparse.Namespace) -> None:
    """Runs the command `submit`: writes test set predictions of runs for the GLUE server."""
    runs: dict[str, Run] = {}
    for path in options.runs:
        run = Run.open(path, options.trust_code, "finetuning")
        task = run.recipe.task_definition
        if not task.submissions:
            raise UserError(
                f"{path} is a run on {task.name}, which the GLUE server does not score: leave it "
                "out"
            )
        if task.name in runs:
            raise UserError(
                f"{runs[task.name].path} and {path} share {task.name}: give one run per task"
            )
        runs[task.name] = run
    test_sets = [
        (task, file, read_examples(task, file.split, options.tfds, file.source))
        for task in (run.recipe.task_definition for run in runs.values())
        for file in task.submissions
    ]
    models = {name: load_labelled_task(run, options.checkpoint) for name, run in runs.items()}
    answers = []
    for task, _, examples in test_sets:
        run, model = runs[task.name], models[task.name]
        outputs = SetOutputs(model, run.recipe.data.batch_size).compute(examples)
        if not model.is_finite(outputs):
            raise diverged(run.path)
        answers.append(model.decide(outputs))
    for (task, file, examples), predictions in zip(test_sets, answers, strict=True):
        places = examples.indices, examples.groups
        path = write_submission(task, file, options.out, predictions, *places)
        print(f"{path}: {len(examples):,} predictions of {runs[task.name].path}")
    out = storage.as_path(options.out)  # removes a trailing slash
    print(f"next: zip -j {out}.zip {out}/*   # then upload {out}.zip")


def print_tasks(options: argparse.Namespace) -> None:
    """Runs the command `tasks`: prints the columns, classes and metrics of each task."""
    print(f"{'task':13} {'columns of a table, with `label`':46} {'classes':40} metrics")
    for task in TASKS.values():
        columns = " ".join((*task.first, *task.question, *task.second))
        print(f"{task.name:13} {columns:46} {labelled(task).answer:40} {' '.join(task.metrics)}")
    for task in OWN_TASKS.values():
        columns, answers = "found in the header, or table.text", "classes of your table"
        print(f"{task.name:13} {columns:46} {answers:40} {' '.join(task.metrics)}")
    texts = {**SUMMARIES, "translation": ("", ("source", "target"))}
    for name, (_, fields) in texts.items():
        metrics = "rouge1 rouge2 rougeL rougeLsum" if name in SUMMARIES else "bleu chrf"
        print(f"{name:13} {' '.join(fields):46} {'a text, by text_to_text only':40} {metrics}")
