"""`slides encoders`: every encoder of the slides, pre-trained and fine-tuned alike."""

import argparse
import functools
import itertools
import json
import pathlib

from experiments.jobs import at_once
from experiments.slides import encoders_report, frame, sentences
from experiments.slides.encoder_systems import CORPORA, FINETUNING, SETTINGS, SYSTEMS
from experiments.studies import command, grid


def run(options: argparse.Namespace) -> None:
    """Prepares, trains and fine-tunes what is missing, then writes the table and the figure."""
    out = pathlib.Path(options.out)
    systems = frame.chosen(options.systems, SYSTEMS)
    corpora = frame.prepared(options, systems, CORPORA, out / "corpora")
    runs = frame.planned(systems, options.seeds)
    frame.train(options, runs, SETTINGS, corpora, out)
    scores = _finetune(options, [run.name for run in runs], out)
    further = {}

    def score(run: frame.StudyRun) -> str:
        name, system = run.name, run.system
        more = {task: scores.get((name, task)) for task in options.tasks}
        if system.corpus in encoders_report.CROSSED:
            # What a model of pairs knows of both kinds of pairs.
            for kind in encoders_report.CROSSED.keys() & corpora.keys():
                more[kind] = _evaluated(name, kind, corpora, out)["pair_accuracy"]
        judged_on = CORPORA[system.corpus].judged_on
        if judged_on in corpora:
            found = _evaluated(name, judged_on, corpora, out)
            more |= {metric: found[metric] for metric in ("nll", "accuracy")}
        if options.sentences:
            place = out / "sentences" / name
            train = system.sentences
            more |= sentences.scores(out / "runs" / name, place, train, options.data_dir)
        further[name] = more
        return f"{name}: scored"

    at_once(options.jobs, [functools.partial(score, run) for run in runs])
    rows = [
        encoders_report.row(run.system.name, run.seed, out / "runs" / run.name, further[run.name])
        for run in runs
    ]
    encoders_report.write(options, out, rows)


def _finetune(options: argparse.Namespace, names: list[str], out: pathlib.Path) -> dict:
    """Fine-tunes what is not complete; scores by name and task."""
    scores = {}

    def one(task: str, part: int) -> str:
        inits = [f"{name}={out / 'runs' / name}" for name in names[part :: options.jobs]]
        label = f"{task}-{part}"
        found = grid(
            argparse.Namespace(**{**vars(options), "tasks": [task]}),
            out / "finetuned" / label,
            *("--init", *inits, *FINETUNING),
            log=out / "logs" / f"finetune-{label}.log",
        )
        scores.update({(cell["model"], task): cell["mean"] for cell in found})
        return f"{task}: {len(inits)} fine-tuned"

    parts = range(min(options.jobs, len(names)))
    tasks = itertools.product(options.tasks, parts)
    at_once(options.jobs, [functools.partial(one, *task) for task in tasks])
    return scores


def _evaluated(name: str, corpus: str, corpora: dict[str, str], out: pathlib.Path) -> dict:
    """A run's metrics on the validation rows of a corpus."""
    scores = out / "crossed" / f"{name}-{corpus}.json"
    if not scores.exists():
        where = ["--corpus", corpora[corpus], "--output", str(scores)]
        command("pretrain", "evaluate", str(out / "runs" / name), *where)
    return json.loads(scores.read_text(encoding="utf-8"))
