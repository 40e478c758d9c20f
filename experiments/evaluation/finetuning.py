"""Evaluation of fine-tuned models, and the commands `submit` and `tasks`."""

import argparse
import time

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import OWN_TASKS, TASKS
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.data.tasks.text_tasks import SUMMARIES
from macaron_tf.errors import UserError, check_packages, diverged
from macaron_tf.evaluation.glue import write_submission
from macaron_tf.io import paths as storage
from macaron_tf.runs.finetuning import TRAIN, by_split, load_labelled_task
from macaron_tf.runs.run import Run, default_splits, metrics_line, save_scores
from macaron_tf.tasks import labelled
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.training.checkpoints import read_manifest


def evaluate(run: Run, options: argparse.Namespace) -> None:
    """Scores a run on `--split`, or all validation splits; writes metrics and predictions."""
    check_packages("evaluate")
    recipe = run.recipe
    task, data = recipe.task_definition, recipe.data
    labelled_task = labelled(task)
    source = options.source or data.source
    splits = [options.split] if options.split else [*task.validation_splits]
    if source == data.source:
        held_out = labelled_task.split_names(splits, options.tfds, source) is None
        wanted = [*splits, TRAIN] if held_out else splits
        sets = labelled_task.read_splits(wanted, options.tfds, source, data.table)
        if held_out:  # a changed table holds out other examples, on which the run was trained
            limits = run.earlier.recipe.limits
            encoded = labelled_task.encoded(run.vocabulary, sets[TRAIN], limits)
            run.check_data(ExampleBatches(encoded, data.batch_size).fingerprint())
    else:
        splits = splits if options.split else default_splits(source, splits)
        origin = options.tfds, source, data.language
        sets = {split: labelled_task.read(split, *origin) for split in splits}
    examples = {split: sets[split] for split in splits}
    checkpoint = run.checkpoint(options.checkpoint)
    with options.devices.scope():
        outputs_of = SetOutputs(load_labelled_task(run, checkpoint), data.batch_size).compute
    began = time.monotonic()
    outputs = {split: outputs_of(rows) for split, rows in examples.items()}
    seconds = time.monotonic() - began
    metrics = by_split(
        {split: labelled_task.measure(outputs[split], rows) for split, rows in examples.items()}
    )
    print(metrics_line(metrics))
    count, step = sum(map(len, examples.values())), read_manifest(checkpoint)["step"]
    print(f"{count:,} examples of {', '.join(splits)} in {seconds:.1f} s, step {step:,}")
    record = {
        "task": task.name,
        "source": source,
        "splits": splits,
        "language": data.language,
        "step": step,
        "seconds": round(seconds, 2),
        "metrics": metrics,
        "predictions": {
            split: labelled_task.answers(outputs[split], rows) for split, rows in examples.items()
        },
    }
    subject = f"{source}-{'-'.join(splits)}-{checkpoint.name}"
    save_scores(options.output, run.path, subject, checkpoint.name, **record)


def submit(options: argparse.Namespace) -> None:
    """Runs the command `submit`: writes test set predictions of runs for the GLUE server."""
    runs: dict[str, Run] = {}
    for path in options.runs:
        run = Run.open(path, options.trust_code, "finetuning")
        task = run.recipe.task_definition
        if not task.submissions or task.name in runs:
            mend = "give one run for each task that the GLUE server scores"
            raise UserError(f"{path} is a run on {task.name}: {mend}")
        runs[task.name] = run
    test_sets = [
        (task, file, read_examples(task, file.split, options.tfds, file.source))
        for task in (run.recipe.task_definition for run in runs.values())
        for file in task.submissions
    ]
    models = {name: load_labelled_task(run) for name, run in runs.items()}
    answers = []
    for task, _, examples in test_sets:
        run, model = runs[task.name], models[task.name]
        outputs = SetOutputs(model, run.recipe.data.batch_size).compute(examples)
        if not model.is_finite(outputs):
            raise diverged(run.path)
        answers.append(model.decide(outputs))
    for (task, file, examples), predictions in zip(test_sets, answers, strict=True):
        path = write_submission(task, file, options.out, predictions, examples.indices)
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
