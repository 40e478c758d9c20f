"""The command `slides sentences`, which reproduces table 6 of the Sentence-BERT paper."""

import argparse
import functools
import pathlib

from experiments import studies
from macaron_tf.models.tasks import FEATURES

POOLINGS = ("mean", "max", "cls")
_BEST = "u,v,|u-v|"
CONCATENATIONS = ("u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", _BEST, "u,v,|u-v|,u*v")
_LETTERS = dict(zip(FEATURES, "uvdp", strict=True))  # for folder names; d means |u-v|, p means u*v


def run(options: argparse.Namespace) -> None:
    """Runs the command `slides sentences`: trains and scores missing runs, and writes a table."""
    out, classes = pathlib.Path(options.out), options.task
    # Pooling and concatenation of each row. The rows "mean" and "u,v,|u-v|" share their runs.
    arms = {pooling: (pooling, _BEST) for pooling in POOLINGS}
    arms |= {concatenation: ("mean", concatenation) for concatenation in CONCATENATIONS}
    wanted = [(classes, *arm) for arm in arms.values()]
    wanted += [(task, pooling, _BEST) for task in ("", "stsb") for pooling in POOLINGS]
    tasks = {}
    for seed in options.seeds:
        for task, pooling, concatenation in dict.fromkeys(wanted):
            letters = "".join(_LETTERS[part] for part in concatenation.split(","))
            name = f"{task or 'untrained'}-{pooling}-{letters}-{seed}"
            arguments = (options, out, name, task, pooling, concatenation, seed)
            tasks[name] = functools.partial(_train_and_score, *arguments)
    rows = studies.run_tasks(options.jobs, tasks)

    def cells(pooling: str, concatenation: str, *trained: str) -> list[str]:
        arm_rows = [row for row in rows if row["arm"] == [pooling, concatenation]]
        rows_of_tasks = (studies.grouped(arm_rows, "task").get(task, []) for task in trained)
        scores = [studies.mean_of(task_rows, "spearman", 2, 100) for task_rows in rows_of_tasks]
        class_rows = [row for row in arm_rows if row["task"] == classes]
        return [*scores, studies.mean_of(class_rows, "accuracy", 1, 100)]

    trained = (classes, "stsb", "")
    lines = [(name, *cells(*arm, *trained)) for name, arm in arms.items()]
    lines = [tuple(cell.replace("|", "\\|") for cell in line) for line in lines]
    head = ("", f"{classes}, then STS-B", "trained on STS-B", "untrained", f"{classes} accuracy")
    title = "Pooling and concatenation in Sentence-BERT"
    text = "Spearman correlation (times 100) of cosine similarity with the STS-B development scores"
    lines = [f"{text}. Number of seeds: {len(options.seeds)}.", "", *studies.table(head, lines)]
    studies.write(out, "sentences", options, title, lines, figure=False, rows=rows)


def _train_and_score(
    options: argparse.Namespace,
    out: pathlib.Path,
    name: str,
    task: str,
    pooling: str,
    concatenation: str,
    seed: int,
) -> dict:
    """Trains Sentence-BERT, evaluates it on STS-B, and returns a row with the scores.

    If the file `out`/rows/`name`.json already exists, the function only reads the row from this
    file. As in the paper, the classifier gets vectors that are not normalized to unit length.

    Args:
        options: parsed options of the command.
        out: folder of the study.
        name: name of the run.
        task: task to train on; an empty string means that the encoder is not trained.
        pooling: pooling of the encoder's outputs.
        concatenation: features of a pair for the classifier, such as "u,v,|u-v|"; training on STS-B
            does not use them.
        seed: random seed.

    Returns:
        A dict with "arm" (list of pooling and concatenation), "task", "seed", "spearman" and, for a
        classification task, "accuracy" (best validation accuracy).

    Raises:
        UserError: a command failed, or the file was made with another `--init` or `--set`.
    """
    run, scores, log = out / "runs" / name, out / "scores" / name, out / "logs" / f"{name}.log"
    data = studies.shared_flags(options)

    def scored() -> dict:
        if task:
            # Training on STS-B uses the cosine similarity instead of a concatenation.
            own_settings = [f"concatenation={concatenation}"] if task == options.task else []
            settings = ("normalize=False", *own_settings, *options.set)
            arguments = [task, str(run), "--init", options.init, "--pooling", pooling, *data]
            arguments += studies.flags("--set", *settings, f"training.seed={seed}")
            studies.command("embed", "train", *arguments, log=log)
        arguments = [str(run) if task else options.init, "--task", "stsb", "--pooling", pooling]
        studies.command("embed", "evaluate", *arguments, "--output", str(scores), *data, log=log)
        file = max(scores.glob("*.json"), key=lambda path: path.stat().st_mtime)
        row = {"arm": [pooling, concatenation], "task": task, "seed": seed}
        row["spearman"] = studies.read_json(file, metrics=dict)["metrics"]["spearman"]
        accuracies = studies.values(studies.validations(run), "accuracy") if task else []
        return row | ({"accuracy": max(accuracies)} if accuracies else {})

    options_of_run = {"--init": options.init, "--set": options.set if task else []}
    return studies.read_or_compute(out / "rows" / f"{name}.json", options_of_run, scored)
