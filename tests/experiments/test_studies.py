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
