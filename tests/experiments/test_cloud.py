"""Tests of the cloud scripts with fake `gcloud` and `ssh` commands."""

import json
import os
import pathlib
import subprocess

import pytest

from experiments import cloud

pytestmark = pytest.mark.quick

CLOUD = pathlib.Path(cloud.__file__).parent

# A TPU is a file. A command on the TPU exits with the next line of `statuses`; a minus sign before
# the status means that the machine is preempted.
GCLOUD = """#!/bin/bash
cd "$FAKE"; echo "$*" >> calls
case "$*" in
*describe*) [ -e machine ] && echo ACTIVE ;;
*create*) touch machine ;;
*delete*) rm -f machine ;;
*ssh*) line=$(head -1 statuses); sed -i 1d statuses
  case "$line" in -*) rm machine ;; esac
  exit "${line#-}" ;;
esac
"""

SSH = """#!/bin/bash
shift; host=$1; shift; exec bash -c "$*"
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a folder with fake `gcloud` and `ssh` commands first on PATH; returns the folder."""
    for name, text in (("gcloud", GCLOUD), ("ssh", SSH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setenv("POLL_SECONDS", "0")
    return tmp_path


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    command = ["bash", str(CLOUD / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def spot(fake, statuses: str) -> tuple[subprocess.CompletedProcess, list[str]]:
    (fake / "statuses").write_text(statuses)
    done = run("run_on_spot_tpu.sh", "bert", "zone-b", "v4-8", "VERSION", "train it")
    return done, (fake / "calls").read_text().splitlines()


def test_a_machine_that_is_taken_is_replaced_until_the_command_is_done(fake):
    # Each machine runs its set-up, then the command. Two machines are preempted, one of them after
    # a save (143).
    done, calls = spot(fake, "0\n-255\n0\n-143\n0\n0\n")
    assert done.returncode == 0, done.stderr
    assert sum(" create " in f" {call} " for call in calls) == 3
    assert sum("train it" in call for call in calls) == 3
    assert all("--spot" in call for call in calls if "queued-resources create" in call)
    assert "delete" in calls[-1] and not (fake / "machine").exists()


def test_a_command_that_fails_by_itself_is_not_tried_again(fake):
    done, calls = spot(fake, "0\n2\n")
    assert done.returncode == 2 and "failed on bert with status 2" in done.stderr
    assert sum("train it" in call for call in calls) == 1
    assert (fake / "machine").exists()


def test_workers_are_told_of_all(fake):
    # One write per worker, because `print` of an unbuffered Python makes two, which could
    # interleave.
    code = 'python3 -c \'import os; os.write(1, (os.environ["TF_CONFIG"] + "\\n").encode())\''
    done = run("launch_multi_worker.sh", "a b", code)
    assert done.returncode == 0, done.stderr
    told = sorted((json.loads(line) for line in done.stdout.splitlines()), key=str)
    cluster = {"worker": ["a:12345", "b:12345"]}
    tasks = [{"type": "worker", "index": index} for index in (0, 1)]
    assert told == [{"cluster": cluster, "task": task} for task in tasks]


def test_a_worker_that_fails_ends_all(fake):
    command = 'case "$TF_CONFIG" in *\'"index": 1\'*) exit 7 ;; esac; exec sleep 60'
    done = run("launch_multi_worker.sh", "a b", command)
    assert done.returncode == 7 and "a worker ended with status 7" in done.stderr


@pytest.mark.parametrize("script", ["run_on_spot_tpu.sh", "launch_multi_worker.sh"])
def test_wrong_usage_says_how(script):
    done = run(script)
    assert done.returncode == 2 and f"bash experiments/cloud/{script}" in done.stderr
