import threading

import numpy as np
import pytest

from experiments.lab.benchmarks import serving
from experiments.lab.benchmarks.harness import machine, publish
from tests.harness import refuses


@pytest.mark.parametrize("clients", [1, 3])
def test_a_turn_times_every_request_once(clients):
    asked, at_once = [], threading.Barrier(clients)

    def answer(lines):
        at_once.wait(timeout=30)  # blocks until enough threads ask at once
        asked.append(tuple(lines))

    requests, seconds = [[str(i)] * 2 for i in range(6)], []
    assert serving.send_requests(answer, requests, clients, seconds) == 12
    assert sorted(asked) == sorted(map(tuple, requests))
    assert len(seconds) == 6 and all(second > 0 for second in seconds)


def test_latencies_are_percentiles_of_the_timed_rounds_in_milliseconds(monkeypatch, capsys):
    calls = []
    options = serving.command.parse_args(["--rounds", "3", "--warm-up", "2"])

    def send_requests(answer, requests, clients, latencies):
        calls.append(answer)
        # Warm-up latencies are longer. Rounds have 100 requests each, from 1 to 100 ms.
        latencies += [(9.0 if len(calls) <= 2 else (i + 1) / 1000) for i in range(100)]
        return 100

    monkeypatch.setattr(serving, "send_requests", send_requests)
    (row,) = rows = serving.with_latencies({"one": "answer"}, [["a"]] * 100, options)
    assert len(calls) == 5
    assert row["latency_ms"] == pytest.approx({"p50": 50.5, "p95": 95.1, "p99": 100}, abs=1)
    publish(None, "T", machine(1), [("s", rows)], "rows")
    assert "| p50 / p95 / p99, ms |" in capsys.readouterr().out


def test_answers_that_differ_are_not_timed():
    answers = {"peer": lambda lines: np.zeros(2), "ours": lambda lines: np.full(2, 1e-3)}
    refuses("ours and peer differ by 1.0e-03", serving.check_agreement, answers, [["a"]])
    answers["ours, bfloat16"] = answers.pop("ours")
    serving.check_agreement(answers, [["a"]])


def test_hugging_faces_classifier_answers_as_ours(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    options = serving.command.parse_args(["--size", "tiny", "--layers", "1", "--bfloat16"])
    answers = serving.classifiers(options, tmp_path)
    engines = ["ONNX Runtime", "OpenVINO", "ONNX Runtime, int8", "OpenVINO, int8"]
    assert list(answers)[:6] == [serving.REFERENCE, *engines, serving.SAVED_MODEL]
    assert len(answers) == 10
    requests = serving.requests_of(16, options)[:2]
    serving.check_agreement(answers, requests)
    assert np.ptp(answers[serving.REFERENCE](requests[0])[:, 0]) > 0.02
