"""The soak test distinguishes lost, wrong and correct responses, and a short run succeeds."""

import json
import random

import pytest

from experiments.lab.benchmarks import soak
from export.server.models import ServedModel
from export.server.versions import VersionManager
from tests.export.test_versions import FakeServable, publish


def test_an_answer_is_right_only_if_one_version_gave_all_of_it(tmp_path):
    made = soak.Soak(tmp_path, [], seed=1)
    texts = ["a", "größe"]
    made.check_answer(texts, ["even:A", "even:GRÖSSE"])
    for said in (["even:A", "odd:GRÖSSE"], ["even:A"], ["x:A", "x:GRÖSSE"], ["odd:A", "odd:B"], []):
        made.check_answer(texts, said)
    assert dict(made.counts) == {"right, even version": 1, "wrong": 5}


def test_malformed_requests_are_the_same_for_a_seed():
    for make in (soak._malformed_request, soak._malformed_message):
        first, again = ([make(rng) for _ in range(50)] for rng in map(random.Random, (3, 3)))
        assert first == again and len(set(first)) > 5


def test_the_servers_log_is_counted(tmp_path, caplog):
    """The summary counts the lines that the server itself logs."""
    caplog.set_level("INFO")
    publish(tmp_path, 1)
    publish(tmp_path, 2, "broken")
    VersionManager(ServedModel("toy", str(tmp_path)), 1.0, loader=FakeServable).poll()
    made = soak.Soak(tmp_path, [], seed=1)
    made.memory_log += [(1.0, 100.0), (2.0, 100.0)]
    summary = soak._summary(made, 1.0, caplog.text)
    assert (summary["switches"], summary["refused versions"]) == (1, 1)


@pytest.mark.slow
def test_a_short_run(tmp_path):
    words = ["--minutes", "0.1", "--clients", "4", "--malformed", "100", "--out", str(tmp_path)]
    assert soak.main(words) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["lost"] == results["wrong"] == 0 < results["right"]
    assert results["malformed"] == 100
