"""`slides encoders`: every encoder of the slides, pre-trained and fine-tuned alike."""

import argparse
import concurrent.futures
import functools
import itertools
import json
import os
import pathlib
import queue
import re
import statistics
import time
from collections.abc import Callable

from experiments.slides_study import encoders_report, sentences
from experiments.slides_study.systems import (
    CORPORA,
    FINETUNING,
    SETTINGS,
    SYSTEMS,
    System,
)
from experiments.studies import command, grid, pretrained
from macaron_tf.errors import UserError


def run(options: argparse.Namespace) -> None:
    """Prepares, trains and fine-tunes what is missing, then writes the table and the figure."""
    out = pathlib.Path(options.out)
    systems = _chosen(options.systems)
    corpora = _corpora(options, systems, out / "corpora")
    runs = [
        (system, seed)
        for system in systems
        for seed in (options.seeds if system.compared else options.seeds[:1])
    ]
    _train(options, runs, corpora, out)
    scores = _finetune(options, [folder(*run) for run in runs], out)
    further = {}

    def score(system: System, seed: int) -> str:
        name = folder(system, seed)
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

    _at_once(options.jobs, [functools.partial(score, *run) for run in runs])
    rows = [
        encoders_report.row(system.name, seed, out / "runs" / name, further[name])
        for system, seed, name in ((*run, folder(*run)) for run in runs)
    ]
    encoders_report.write(options, out, rows)


def folder(system: System, seed: int) -> str:
    """A run's name: letters, digits and dashes."""
    return f"{re.sub('[^A-Za-z]+', '-', system.name)}-{seed}"


def _chosen(names: list[str] | None) -> list[System]:
    known = {system.name: system for system in SYSTEMS}
    for name in names or ():
        if name not in known:
            raise UserError(f"--systems {name!r}: there are {'; '.join(known)}")
    return [known[name] for name in names or known]


def _corpora(
    options: argparse.Namespace, systems: list[System], out: pathlib.Path
) -> dict[str, str]:
    """Folders of the corpora, by name; those that lack are prepared."""
    wanted = {system.corpus for system in systems}
    wanted |= {CORPORA[name].vocabulary for name in wanted} - {None}
    for name, corpus in CORPORA.items():
        if name not in wanted:
            continue
        words = ["prepare", corpus.recipe, str(out / name), *_settings(corpus.settings)]
        if corpus.vocabulary:
            words += ["--vocabulary", str(out / corpus.vocabulary)]
        if options.data_dir:
            words += ["--data-dir", options.data_dir]
        command("pretrain", *words)
    return {name: str(out / name) for name in wanted}


def _settings(settings: tuple[str, ...]) -> list[str]:
    return list(itertools.chain.from_iterable(("--set", setting) for setting in settings))


def _at_once(jobs: int, tasks: list[Callable[[], str]]) -> None:
    """Calls all, `jobs` at once, each with its share of the CPUs; says what is done and left."""
    shares = queue.SimpleQueue()
    for number in range(jobs):
        shares.put(number)

    def take_share() -> None:
        if hasattr(os, "sched_setaffinity"):  # Linux
            cpus = sorted(os.sched_getaffinity(0))
            # Of this thread alone; the processes that it starts inherit it.
            os.sched_setaffinity(0, cpus[shares.get() :: jobs] or cpus)

    def timed(task: Callable[[], str]) -> tuple[str, float]:
        began = time.monotonic()
        return task(), (time.monotonic() - began) / 60

    spent = []  # minutes of each; what was complete takes none
    with concurrent.futures.ThreadPoolExecutor(jobs, initializer=take_share) as pool:
        waiting = [pool.submit(timed, task) for task in tasks]
        try:
            for done, finished in enumerate(concurrent.futures.as_completed(waiting), 1):
                what, minutes = finished.result()
                spent += [minutes] if minutes > 0.1 else []
                left = (len(tasks) - done) / jobs * statistics.mean(spent or [0])
                print(f"[{done}/{len(tasks)}] {what}; {left:.0f} min left", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _train(options: argparse.Namespace, runs: list, corpora: dict, out: pathlib.Path) -> None:
    """Pre-trains what is not complete."""

    def one(system: System, seed: int) -> str:
        name = folder(system, seed)
        settings = [*SETTINGS, *system.settings, *options.set, f"training.seed={seed}"]
        log = out / "logs" / f"{name}.log"
        pretrained(system.recipe, out / "runs" / name, corpora[system.corpus], settings, log)
        return f"{name}: pre-trained"

    (out / "logs").mkdir(parents=True, exist_ok=True)
    _at_once(options.jobs, [functools.partial(one, *run) for run in runs])


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
    _at_once(options.jobs, [functools.partial(one, *task) for task in tasks])
    return scores


def _evaluated(name: str, corpus: str, corpora: dict[str, str], out: pathlib.Path) -> dict:
    """A run's metrics on the validation rows of a corpus."""
    scores = out / "crossed" / f"{name}-{corpus}.json"
    if not scores.exists():
        where = ["--corpus", corpora[corpus], "--output", str(scores)]
        command("pretrain", "evaluate", str(out / "runs" / name), *where)
    return json.loads(scores.read_text(encoding="utf-8"))
