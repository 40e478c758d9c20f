"""The cloud scripts, with stand-ins for `gcloud` and `ssh`; the guide's table of costs."""

import json
import os
import pathlib
import subprocess

import pytest

from experiments import registry
from experiments.cloud import cost
from tests.harness import refuses

CLOUD = pathlib.Path(cost.__file__).parent

# A TPU that is a file. What is run on it ends as the next line of `statuses` says; a minus sign
# before the number: the machine is taken.
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
    """A folder of stand-ins, first on the path."""
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
    # Each machine: its set-up, then the command; two are taken, one of them after a save (143).
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
    # One write a worker: `print` of an unbuffered Python makes two, and another's may part them.
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


ROW = {
    "ok": True, "recipe": "swish_rnn_base", "topology": "v4:2x2x1", "rows": 32, "length": 512,
    "milliseconds": 600.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("swish_rnn_base", 1024 * 512),
        ("swish_rnn_large", 4096 * 512),
        ("macaron_bert_base", 128 * 1024),
        ("wmt14_macaron_base", 32_768),
        ("wmt14_macaron_big", 262_144),
    ],
)
def test_an_update_has_the_papers_tokens(name, tokens):
    assert cost.tokens_of_update(registry.load(name)) == tokens


def test_chip_hours_are_updates_times_steps_times_chips():
    # 1,024 rows in shares of 32 are 32 cores, 16 chips, as in the paper; 300,000 x 0.6 s are 50 h.
    line = cost.table([ROW]).splitlines()[-1]
    assert line.endswith("| 600.0 | 16 | 50.0 | 800 |")
    # One core a chip: twice the chips.
    assert "| 32 | 50.0 | 1,600 |" in cost.table([ROW | {"topology": "v5e:2x2"}])
    assert len(cost.table([ROW | {"ok": False}]).splitlines()) == 2


def test_the_table_goes_between_the_marks(tmp_path, capsys):
    results, guide = tmp_path / "r.json", tmp_path / "README.md"
    results.write_text(json.dumps({"rows": [ROW]}))
    guide.write_text(f"before\n{cost.MARKS[0]}\nold\n{cost.MARKS[1]}\nafter\n")
    for _ in range(2):
        assert cost.main([str(results), "--readme", str(guide)]) == 0
    text = guide.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "old" not in text and text.count("| swish_rnn_base |") == 1
    refuses("lacks the lines", cost.with_table, "no marks", "", "README.md")
    assert cost.main([str(guide)]) == 2
    assert (
        "is damaged (Expecting value: line 1 column 1 (char 0)): give what"
        in capsys.readouterr().err
    )


def test_the_guides_table_is_what_the_results_say():
    results = json.loads((CLOUD.parent / "results" / "tpu_check.json").read_text())
    assert cost.table(results["rows"]) in (CLOUD / "README.md").read_text()
