import itertools
import json
import sys

import pytest

from experiments.benchmarks import decoding, recurrence
from experiments.benchmarks.harness import compare, interleave, machine, publish
from macaron_tf.errors import UserError


def test_contenders_take_turns_after_their_warm_up():
    turns = []
    contenders = {name: lambda name=name: turns.append(name) or 5 for name in "abc"}
    rows = interleave(contenders, rounds=3, warm_up=2)
    assert "".join(turns) == "aabbcc" + "abc" + "bca" + "cab"
    assert all(len(row["seconds"]) == len(row["cpu_seconds"]) == 3 for row in rows)


def test_ratios_are_for_a_unit_and_paired_by_round():
    times = {key: [1.0, 10.0, 100.0] for key in ("seconds", "cpu_seconds")}
    rows = [{"name": "a", "units": 10, **times}, {"name": "b", "units": 20, **times}]
    a, b = compare(rows)
    assert a["ratio"] == [1.0, 1.0, 1.0]
    assert b["ratio"] == b["cpu_ratio"] == [0.5, 0.5, 0.5]
    assert b["rate"][1] == 2.0
    assert compare(rows, "b")[0]["ratio"] == [2.0, 2.0, 2.0]


def test_unequal_work_is_refused():
    units = itertools.count(1)
    with pytest.raises(UserError, match="cannot be compared"):
        interleave({"a": lambda: next(units)}, rounds=2, warm_up=1)


def test_the_report_holds_the_facts_and_every_row(tmp_path, capsys):
    rows = compare(interleave({"one": lambda: 1, "two": lambda: 1}, rounds=2, warm_up=1))
    facts = machine(2, ("numpy", "no-such-package"))
    publish(tmp_path, "Title", facts, [("batch 1", rows)], "tokens")
    assert "batch 1: one: " in (printed := capsys.readouterr().out)
    assert "1.00 times one's rate" in printed
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["machine"]["threads"] == 2
    assert set(written["machine"]["versions"]) == {"python", "numpy"}
    assert [row["name"] for row in written["settings"]["batch 1"]] == ["one", "two"]
    text = (tmp_path / "README.md").read_text()
    assert "| one |" in text and "## batch 1" in text and "2 threads each" in text
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".tmp-*"))


def test_missing_peers_are_one_sentence(monkeypatch, capsys):
    for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "2")  # what is set is set back
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert decoding.main([]) == 2
    assert capsys.readouterr().err.startswith("error: the peers are not installed")


def test_a_recurrence_that_errs_is_not_timed():
    arrays = recurrence._inputs((2, 6, 5), "float32", seed=1)
    runs = {
        name: recurrence.contender(implementation, jit, arrays, 1, "gelu")
        for name, (implementation, jit) in recurrence.CONTENDERS.items()
        if implementation != "native"
    }
    recurrence._check_agreement(runs, "float32")
    runs["xla"] = lambda: [1.01 * array for array in runs["loop"]()]
    with pytest.raises(UserError, match="xla differs from scan by 1.0e-02"):
        recurrence._check_agreement(runs, "float32")
