import argparse
import importlib
import itertools
import pathlib
import pkgutil
import re
import threading
import time

import numpy as np
import pytest

from experiments.lab.benchmarks import input_pipeline, serving
from experiments.lab.benchmarks.harness import compare, interleave, made_up_texts, publish
from macaron_tf.text import WordPieceVocabulary
from tests.harness import refuses


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


def test_make_bench_gives_options_that_there_are(monkeypatch):
    monkeypatch.setattr(pkgutil, "resolve_name", lambda name: lambda options: None)
    makefile = pathlib.Path(__file__).parents[2].joinpath("Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"\$\(BENCH\)\.(\w+) (.*)", makefile)
    assert len(commands) == 6
    for name, words in commands:
        module = importlib.import_module(f"experiments.lab.benchmarks.{name}")
        assert module.main(words.split()) == 0


@pytest.mark.parametrize("clients", [1, 3])
def test_every_request_of_the_timed_rounds_has_a_latency(clients, capsys):
    asked, at_once = [], threading.Barrier(clients)

    def answer(lines):
        if not asked:
            time.sleep(1)  # warm-up latencies do not count
        at_once.wait(timeout=30)  # blocks until enough threads ask at once
        asked.append(tuple(lines))

    requests = [[str(i)] * 2 for i in range(6)]
    options = argparse.Namespace(rounds=3, warm_up=2, out=None)
    [row] = rows = serving.with_latencies({"one": answer}, requests, options, clients)
    assert sorted(asked) == sorted(map(tuple, requests * 5)) and row["units"] == 12
    assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"] < 1000
    publish(options, "T", "rows", [("s", rows)])
    assert "| p50 / p95 / p99, ms |" in capsys.readouterr().out


def test_answers_that_differ_are_not_timed():
    answers = {"peer": lambda lines: np.zeros(2), "ours": lambda lines: np.full(2, 1e-3)}
    refuses("ours and peer differ by 1.0e-03", serving.check_agreement, answers, [["a"]])
    answers["ours, bfloat16"] = answers.pop("ours")
    serving.check_agreement(answers, [["a"]])


LENGTH, BATCH = 64, 32


def test_the_contenders_read_equal_tokens_and_count_them(tmp_path):
    """All implementations in the input benchmark read equal tokens."""
    pytest.importorskip("tokenizers")
    texts = list(itertools.islice(made_up_texts(), 24))
    vocabulary = WordPieceVocabulary.train("\n".join(texts).split("\n"), 600)
    work = input_pipeline.Work(texts, vocabulary, LENGTH, BATCH, tmp_path)
    work.check()
    rows = np.concatenate(list(work.macaron_tf_rows()))
    assert work.tokens == (rows != 0).sum() > 10_000
    # Words of several pieces, commas and full stops occur.
    assert len(np.unique(rows)) > 300
    units = {name: run() for name, run in work.contenders(passes=3).items()}
    assert units[input_pipeline.REFERENCE] == units[input_pipeline.FROM_TEXT] == work.tokens
    assert units[input_pipeline.FROM_SHARDS] == pytest.approx(3 * work.tokens, rel=0.05)
