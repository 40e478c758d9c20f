"""Tests of what studies share: their commands, their JSON files, and figures of papers."""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from experiments import studies
from experiments.compare.commands import main as compare
from experiments.compare.trainers import Pretraining
from tests.toys.marks import slow
from tests.toys.pretraining import flags
from tests.toys.studies import is_figure


@pytest.mark.parametrize("number", [signal.SIGTERM, *slow(signal.SIGINT)])
def test_a_killed_study_stops_its_commands(number, tmp_path):
    (tmp_path / "python").write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\nexec sleep 100\n")
    (tmp_path / "python").chmod(0o755)
    code = (
        f"import sys; from experiments import studies; sys.executable = '{tmp_path}/python'\n"
        "studies.run_tasks(2, {name: lambda: studies.command('x') for name in 'abc'})"
    )
    study = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    started = tmp_path / "started"
    while not started.exists() or len(started.read_text().split()) < 2:
        assert study.poll() is None
        time.sleep(0.05)
    study.send_signal(number)
    assert study.wait(60) != 0
    processes = started.read_text().split()
    assert len(processes) == 2 and not any(map(os.path.exists, map("/proc/{}".format, processes)))


def test_a_record_is_small_and_has_a_line_for_each_item_of_a_list(tmp_path):
    rows = [{"arm": "a", "loss": 1 / 3, "curve": {"step": [1, 2]}}, {"arm": "ä", "loss": math.nan}]
    record = {"command": "compare OUT", "rows": rows, "tuning": [], "guessing": None}
    studies.write_record(tmp_path / "a.json", record)
    lines = (tmp_path / "a.json").read_text().splitlines()
    assert lines[2:5] == [
        '"rows": [',
        '{"arm": "a", "loss": 0.3333333, "curve": {"step": [1, 2]}},',
        '{"arm": "ä", "loss": null}',
    ]
    expected = {"command": "compare OUT", "guessing": None}
    found = json.loads((tmp_path / "a.json").read_text())
    assert found.pop("rows")[1] == {"arm": "ä", "loss": None} and found == expected


@pytest.mark.slow
def test_pretraining_is_scored_on_tasks_and_not_repeated(calls, study, study_corpus, tmp_path):
    settings, task = study
    out, rates = tmp_path / "steps", ["--learning-rates", "1e-3", "1e-2"]
    arms = ["bert_rab_tiny", "k1-2=swish_rnn_tiny:model.rnn_step_sizes=(1, 2)"]
    arguments = [str(out), *arms, "--corpus", study_corpus, "--seeds", "1", "--jobs", "1", *rates]
    arguments += [*task, *flags(settings)]
    assert compare(arguments) == 0

    def trained():
        return [call[2] for call in calls if call[1] in ("bert_rab_tiny", "swish_rnn_tiny")]

    before = trained()
    assert compare(arguments) == 0
    assert trained() == before and len(before) == 2
    for row in json.loads((out / "compare.json").read_text())["rows"]:
        files = (out / f"{row['arm']}-1" / "tuned").glob("*.json")
        scores = [json.loads(file.read_text())["scores"]["score"] for file in files]
        assert row["sst2"] == pytest.approx(max(scores)) and len(scores) == 2
    assert "| sst2 | - bert_rab_tiny |" in (out / "compare.md").read_text()
    assert is_figure(out / "compare.png")


def test_the_tables_have_the_metrics_of_a_task_beside_its_score(monkeypatch, tmp_path):
    cola = {1e-3: {"score": 0.4, "accuracy": 0.7}, 1e-2: {"score": 0.2, "accuracy": 0.9}}

    def fine_tuned(recipe, run, settings, flags, log):
        rate = float(settings[-1].removeprefix("training.learning_rate="))
        return cola[rate] if recipe.endswith(":cola") else {"score": {1e-3: 0.5, 1e-2: 0.6}[rate]}

    monkeypatch.setattr("experiments.compare.trainers.fine_tuned", fine_tuned)
    options = {"tasks": ["cola", "rte"], "learning_rates": [1e-3, 1e-2], "download": False}
    options |= {"data_dir": None, "finetune_set": [], "trust_code": False}
    monkeypatch.setattr(Pretraining, "trust_flags", lambda self, run: [])
    scores = Pretraining(argparse.Namespace(**options))._finetuning_scores(tmp_path, None)
    assert scores == {"cola": 0.4, "rte": 0.6, "cola accuracy": 0.7}
