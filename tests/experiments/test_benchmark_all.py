import importlib.util
import json
import subprocess

import pytest

from experiments.benchmarks import __main__ as benchmarks


def row(name: str, *ratio: float) -> dict:
    return {"name": name, "ratio": list(ratio)}


def test_the_fastest_of_ours_is_set_beside_the_peer():
    rows = [
        row("peer", 1.0, 1.0, 1.0),
        row("ours", 0.8, 0.9, 1.0),
        row("ours, XLA", 0.4, 0.5, 0.6),
        row("another", 0.1, 0.1, 0.1),
    ]
    others = [row("peer", 1.0, 1.0, 1.0), row("another", 0.1, 0.1, 0.1)]
    lines = benchmarks.ratios("ours")({"settings": {"batch 1": rows, "no ours": others}})
    assert lines == [("batch 1", "ours, XLA", "peer", "0.50 of its time (0.40 to 0.60)")]


def test_exponents_are_of_time_and_of_memory_where_measured():
    def law(value: float) -> dict:
        return {"upper half": {"exponent": value}}

    laws = {
        "attention alone": {"milliseconds": law(1.9)},
        "recurrence alone": {"milliseconds": law(1.0)},
    }
    (line,) = benchmarks.exponents({"exponents": {"L": laws}})
    assert line == ("time against L", "recurrence alone", "attention alone", "L^1.00 and L^1.90")


def test_every_subject_is_a_module_and_takes_its_options():
    for subject in benchmarks.SUBJECTS.values():
        module = f"experiments.benchmarks.{subject.module}"
        assert importlib.util.find_spec(module), module
        _options = __import__(module, fromlist=["_options"]).__dict__.get("_options")
        if _options:
            _options(list(subject.options))


@pytest.fixture
def children(monkeypatch):
    """Children that do nothing but end; by module, their exit status and last line."""
    ends = {"decoding": (2, "error: the peers are not installed"), "scaling": (1, "Boom")}

    def run(command, stdout, stderr, check):
        status, words = ends.get(command[2].rpartition(".")[2], (0, "done"))
        stdout.write(f"a line\n{words}\n")
        if status == 0:
            rows = [row("peer", 1.0, 1.0, 1.0), row("SavedModel", 0.5, 0.5, 0.5)]
            with open(f"{command[-1]}/results.json", "w", encoding="utf-8") as file:
                json.dump({"settings": {"batch 1": rows}}, file)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(benchmarks.subprocess, "run", run)


def test_a_missing_peer_is_a_line_and_a_failure_a_status(children, tmp_path, capsys):
    out = str(tmp_path)
    assert benchmarks.main(["--only", "serving", "decoding", "--out", out]) == 0
    printed = capsys.readouterr().out
    assert "| serving | batch 1 | SavedModel | peer | 0.50 of its time (0.50 to 0.50) |" in printed
    assert "| decoding | not run | - | - | the peers are not installed |" in printed
    assert "| serving |" in (tmp_path / "README.md").read_text()
    assert benchmarks.main(["--only", "scaling", "--out", out]) == 1
    assert f"failed: see {tmp_path / 'scaling' / 'log.txt'}" in capsys.readouterr().out


def test_an_unknown_subject_is_one_sentence(capsys):
    assert benchmarks.main(["--only", "speed"]) == 2
    assert capsys.readouterr().err.startswith("error: --only speed: there are recurrence,")
