"""Tests of what studies share: their commands, their JSON files, and figures of papers."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from experiments import studies
from tests.toys.marks import slow
from tests.toys.processes import ROOT

COMMAND = """#!/bin/sh
trap 'sleep 0.5; touch saved-$$; exit' TERM
touch started-$$
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, *slow(signal.SIGINT)])
def test_a_killed_study_stops_its_commands_which_save(number, tmp_path):
    (tmp_path / "python").write_text(COMMAND)
    (tmp_path / "python").chmod(0o755)
    code = (
        f"import sys; from experiments import studies; sys.executable = '{tmp_path}/python'\n"
        "studies.run_tasks(2, {name: lambda: studies.command('x') for name in 'abc'})"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environment, "stderr": subprocess.DEVNULL}
    study = subprocess.Popen([sys.executable, "-c", code], **options)
    while len([*tmp_path.glob("started-*")]) < 2:
        assert study.poll() is None
        time.sleep(0.05)
    study.send_signal(number)
    assert study.wait(60) != 0
    started, saved = ([*tmp_path.glob(f"{word}-*")] for word in ("started", "saved"))
    assert len(started) == len(saved) == 2


def test_a_task_is_named_before_its_output(capsys):
    assert studies.run_tasks(1, {"a, seed 1": lambda: print("step 1"), "b": lambda: 2}) == [None, 2]
    assert capsys.readouterr().out == "[1/2] a, seed 1\nstep 1\n[2/2] b\n"


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
