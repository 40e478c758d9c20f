"""`slides decoders`: language models and sequence-to-sequence systems, block by block."""

import argparse
import functools
import json
import pathlib

from experiments.jobs import at_once
from experiments.pretrain.run import PretrainingRun
from experiments.slides import decoders_report, frame
from experiments.slides.decoder_systems import (
    CORPORA,
    ELMO,
    ELMO_SETTINGS,
    FEW_SHOT,
    MEMORIES,
    SETTINGS,
    SYSTEMS,
)
from experiments.studies import command, is_complete
from macaron_tf.training.progress import VALIDATION, read_lines


def run(options: argparse.Namespace) -> None:
    """Trains what is missing, unless a report is wanted; writes the tables and the figures."""
    out = pathlib.Path(options.out)
    systems = frame.chosen(options.systems, (*SYSTEMS, ELMO))
    runs = frame.planned([system for system in systems if system != ELMO], options.seeds)
    if options.report:
        runs = [run for run in runs if is_complete(out / "runs" / run.name)]
    else:
        _train(options, runs, systems, out)
    rows = [
        {
            "system": run.system.name,
            "block": run.block,
            "seed": run.seed,
            "parameters": _parameters(out / "runs" / run.name),
            "curve": validations(out / "runs" / run.name),
            "memory": _remembered(run, out),
        }
        for run in runs
    ]
    elmo, tagging = None, out / "tagged" / "tagging.json"
    if ELMO in systems and tagging.exists():
        tagged = json.loads(tagging.read_text(encoding="utf-8"))
        elmo = {"curve": validations(out / "runs" / "ELMo"), "tagged": tagged["rows"]}
    decoders_report.write(options, out, rows, elmo)


def _train(
    options: argparse.Namespace,
    runs: list[frame.StudyRun],
    systems: list[frame.System],
    out: pathlib.Path,
) -> None:
    """Prepares, trains and asks what is missing."""
    with_blocks = [system for system in systems if system != ELMO]
    corpora = frame.prepared(options, with_blocks, CORPORA, out / "corpora")
    frame.train(options, runs, SETTINGS, corpora, out)
    asked = [
        functools.partial(_remember, run, corpora, out)
        for run in runs
        if run.system.name == "Transformer-XL"
    ]
    few_shot = [run for run in runs if run.system.name == "GPT-2" and run.seed == options.seeds[0]]
    if few_shot:
        asked.append(functools.partial(_few_shot, options, few_shot, out))
    if ELMO in systems:
        asked.append(functools.partial(_elmo, options, out))
    at_once(options.jobs, asked)


def validations(run: pathlib.Path) -> list[dict]:
    """The lines of a run's validations."""
    return [line for line in read_lines(run / "metrics.jsonl") if line["kind"] == VALIDATION]


def _parameters(run: pathlib.Path) -> int:
    return PretrainingRun.open(run).build_network().count_params()


def _remembered(run: frame.StudyRun, out: pathlib.Path) -> list[dict]:
    """What `_remember` wrote of a run; nothing of one that has no memory."""
    scores = out / "memory" / f"{run.name}.json"
    return json.loads(scores.read_text(encoding="utf-8")) if scores.exists() else []


def _remember(run: frame.StudyRun, corpora: dict[str, str], out: pathlib.Path) -> str:
    """Scores a run with shorter and longer memories than it was trained with."""
    scores = out / "memory" / f"{run.name}.json"
    if not scores.exists():
        where = ["--corpus", corpora[run.system.corpus], "--output", str(scores)]
        lengths = ["--memory", *map(str, MEMORIES)]
        log = out / "logs" / f"memory-{run.name}.log"
        command("pretrain", "evaluate", str(out / "runs" / run.name), *where, *lengths, log=log)
    return f"{run.name}: scored with {len(MEMORIES)} memories"


def _few_shot(options: argparse.Namespace, runs: list[frame.StudyRun], out: pathlib.Path) -> str:
    """Asks the models tasks that they were not trained on; writes OUT/few_shot."""
    if not (out / "few_shot" / "few_shot.json").exists():
        data = ["--data-dir", options.data_dir] if options.data_dir else []
        words = [*(str(out / "runs" / run.name) for run in runs), *FEW_SHOT]
        log = out / "logs" / "few_shot.log"
        command("few_shot", *words, "--out", str(out / "few_shot"), *data, log=log)
    return f"{', '.join(run.name for run in runs)}: asked"


def _elmo(options: argparse.Namespace, out: pathlib.Path) -> str:
    """ELMo's language model, and taggers with it and without it."""
    run, log = str(out / "runs" / "ELMo"), out / "logs" / "ELMo.log"
    data = ["--data-dir", options.data_dir] if options.data_dir else []
    settings = frame.set_flags([*ELMO_SETTINGS, *options.elmo_set])
    command("elmo", "train", ELMO.recipe, run, *settings, *data, log=log)
    seeds = ["--seeds", *map(str, options.seeds)]
    source = ["--source", options.source] if options.source else []
    tags = ["tag", run, str(out / "tagged"), *seeds, *source, *data]
    command("elmo", *tags, log=out / "logs" / "ELMo-tags.log")
    return "ELMo: trained, and taggers with and without it"
