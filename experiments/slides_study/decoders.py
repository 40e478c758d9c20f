"""`slides decoders`: language models and sequence-to-sequence systems, block by block."""

import argparse
import functools
import json
import pathlib

from experiments.jobs import at_once
from experiments.pretraining.run import PretrainingRun
from experiments.slides_study import decoders_report, frame
from experiments.slides_study.decoder_systems import (
    CORPORA,
    ELMO,
    ELMO_SETTINGS,
    FEW_SHOT,
    MEMORIES,
    SETTINGS,
    SYSTEMS,
)
from experiments.studies import command
from macaron_tf.training.reporters import VALIDATION, read_lines


def run(options: argparse.Namespace) -> None:
    """Prepares, trains and asks what is missing, then writes the tables and the figures."""
    out = pathlib.Path(options.out)
    systems = frame.chosen(options.systems, (*SYSTEMS, ELMO))
    with_blocks = [system for system in systems if system != ELMO]
    corpora = frame.prepared(options, with_blocks, CORPORA, out / "corpora")
    runs = frame.planned(with_blocks, options.seeds)
    frame.train(options, runs, SETTINGS, corpora, out)
    remembered: dict[str, list[dict]] = {}
    asked = [
        functools.partial(_remember, run, corpora, out, remembered)
        for run in runs
        if run.system.name == "Transformer-XL"
    ]
    few_shot = [run for run in runs if run.system.name == "GPT-2" and run.seed == options.seeds[0]]
    if few_shot:
        asked.append(functools.partial(_few_shot, options, few_shot, out))
    if ELMO in systems:
        asked.append(functools.partial(_elmo, options, out))
    at_once(options.jobs, asked)
    rows = [
        {
            "system": run.system.name,
            "block": run.block,
            "seed": run.seed,
            "parameters": _parameters(out / "runs" / run.name),
            "curve": validations(out / "runs" / run.name),
            "memory": remembered.get(run.name, []),
        }
        for run in runs
    ]
    elmo = None
    if ELMO in systems:
        tagged = json.loads((out / "tagged" / "tagging.json").read_text(encoding="utf-8"))
        elmo = {"curve": validations(out / "runs" / "ELMo"), "tagged": tagged["rows"]}
    decoders_report.write(options, out, rows, elmo)


def validations(run: pathlib.Path) -> list[dict]:
    """The lines of a run's validations."""
    return [line for line in read_lines(run / "metrics.jsonl") if line["kind"] == VALIDATION]


def _parameters(run: pathlib.Path) -> int:
    return PretrainingRun.open(run).build_network().count_params()


def _remember(
    run: frame.StudyRun, corpora: dict[str, str], out: pathlib.Path, found: dict[str, list[dict]]
) -> str:
    """Scores a run with shorter and longer memories than it was trained with."""
    scores = out / "memory" / f"{run.name}.json"
    if not scores.exists():
        where = ["--corpus", corpora[run.system.corpus], "--output", str(scores)]
        lengths = ["--memory", *map(str, MEMORIES)]
        log = out / "logs" / f"memory-{run.name}.log"
        command("pretrain", "evaluate", str(out / "runs" / run.name), *where, *lengths, log=log)
    found[run.name] = json.loads(scores.read_text(encoding="utf-8"))
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
