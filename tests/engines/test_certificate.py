"""Tests of the check that refuses exported files whose outputs differ from the network."""

import dataclasses
import json
import re
import types

import numpy as np
import pytest
import tensorflow as tf

from export.saved_model import main
from macaron_tf.engines import certificate, saved_model
from macaron_tf.engines.certificate import break_even, certificate_table
from macaron_tf.engines.lite import LiteNetwork
from macaron_tf.model import Model
from macaron_tf.models import EncoderClassifier, LanguageModel, PretrainingEncoder, catalog
from macaron_tf.models.model_parts import Card
from tests.harness import refuses
from tests.toys.marks import slow
from tests.toys.pretrained import BYTES, WORDS, loaded, with_classes

MODELS = {
    "classes": lambda: with_classes(
        loaded(EncoderClassifier, "bert_tiny", WORDS, 2), "no", "yes", max_length=16
    ),
    "fills": lambda: loaded(PretrainingEncoder, "bert_tiny", WORDS, objective="masked_language"),
    "writes": lambda: loaded(LanguageModel, "gpt2_tiny", BYTES),
}


@pytest.fixture(scope="module")
def classifier():
    return MODELS["classes"]()


def record_of(path) -> dict:
    return json.loads((path / "assets.extra" / "export.json").read_text())


@pytest.mark.parametrize("name", ["fills", *slow("classes", "writes")])
def test_the_record_and_the_card_hold_the_numbers(name, tmp_path):
    path = MODELS[name]().export(tmp_path / "served")
    [row] = record_of(path)["certificate"]
    assert row["target"].startswith("SavedModel")
    assert 0 <= row["difference"] < 1e-4 and row["bytes"] > 10_000
    assert row["ms_1"] > 0 and row["ms_32"] > 0
    card = (path / "README.md").read_text()
    assert card.startswith("---\n") and certificate_table([row]) in card


@pytest.mark.slow
def test_litert_and_bfloat16_have_bounds_of_their_own(classifier, tmp_path):
    pytest.importorskip("ai_edge_litert")
    before = classifier.predict("a b")
    path = classifier.export(tmp_path / "served", bfloat16=True, lite="int8")
    graph, lite = record_of(path)["certificate"]
    assert 1e-4 < graph["difference"] < 0.1 and lite["target"] == "LiteRT int8"
    assert classifier.network.dtype_policy.name == "float32"
    assert dataclasses.replace(classifier).predict("a b") == before  # by a new graph


@pytest.mark.parametrize("tampered", ["SavedModel", *slow("LiteRT")])
def test_a_file_that_differs_is_refused_and_nothing_is_left(
    tampered, classifier, tmp_path, monkeypatch
):
    pytest.importorskip("ai_edge_litert")
    bias, write = classifier.network.head.weights[-1], saved_model.write_lite
    save = saved_model.tf.saved_model.save

    def during(step):
        def changed(*arguments, **options):
            before = bias.numpy()
            bias.assign(before + [0.0, 0.5])
            try:
                return step(*arguments, **options)
            finally:
                bias.assign(before)

        return changed

    if tampered == "LiteRT":
        monkeypatch.setattr(saved_model, "write_lite", during(write))
    else:
        monkeypatch.setattr(saved_model.tf.saved_model, "save", during(save))
    lite = "fp32" if tampered == "LiteRT" else None
    refuses(f"{tampered}.* differ from the network's", classifier.export, tmp_path, lite=lite)
    assert not [*tmp_path.iterdir()]


def test_examples_that_do_not_fit_are_refused_before_anything_is_written(classifier, tmp_path):
    table = tmp_path / "other.tsv"
    table.write_text("text\tlabel\na b c\tperhaps\n")
    given = {"path": tmp_path / "out", "check": f"tsv:{table}"}
    refuses("other.tsv, line 2: 'perhaps'", classifier.export, **given)
    refuses("needs labelled examples", MODELS["writes"]().export, **given)
    assert not given["path"].exists()


def timed(monkeypatch, *pairs) -> tuple[list[dict], LiteNetwork]:
    """Returns the result of `break_even` for fake LiteRT and graph models, and the LiteRT network.

    For each batch size, `pairs` has the milliseconds that LiteRT and the graph take.
    """
    clock, costs, lite = [0.0], {}, types.SimpleNamespace(max_rows=4)
    costs = dict(zip(certificate.ROWS, pairs, strict=False))

    def spend(milliseconds: float) -> dict:
        clock[0] += milliseconds / 1000
        return {}

    small = types.SimpleNamespace(answer=lambda rows: spend(costs[rows][0]), lite=lite)
    model = types.SimpleNamespace(run=lambda _, rows: spend(costs[rows][1]))
    monkeypatch.setattr(certificate.time, "perf_counter", lambda: clock[0])
    return break_even(model, small, lambda rows: rows), lite


@pytest.mark.parametrize(
    ("pairs", "most", "said"),
    [
        ([(2, 1)], 0, "up to 0 rows, and the graph .* 1: 2 and 1 ms"),
        (
            [(1, 4), (2, 4), (4, 3)],
            2,
            "up to 2 rows, and the graph .* 2: 2 and 4 ms, 4: 4 and 3 ms",
        ),
        ([(1, 2)] * 7, 64, "up to 64 rows, .* 32: 1 and 2 ms, 64: 1 and 2 ms"),
    ],
)
def test_litert_takes_as_many_rows_as_it_answers_faster(pairs, most, said, monkeypatch):
    measured, lite = timed(monkeypatch, *pairs)
    assert lite.max_rows == most and len(measured) == len(pairs)
    record = {"certificate": [], "lite": {"measured": measured}}
    assert re.search(said, certificate.certificate_text(record))


def gathers_beyond(*_, **__):
    return tf.gather(tf.zeros([2]), [5])


@tf.function
def asserts_in_a_graph(*_, **__):
    with tf.control_dependencies([tf.debugging.assert_less(tf.random.uniform([1]), -1.0)]):
        return tf.zeros([2])


FAILURES = {gathers_beyond: "indices", asserts_in_a_graph: "did not hold"}


@pytest.mark.parametrize("step", ["prepare", "compute"])
@pytest.mark.parametrize("fails", FAILURES)
def test_a_network_that_fails_is_no_text_that_is_refused(
    fails, step, classifier, tmp_path, monkeypatch
):
    monkeypatch.setattr(type(classifier.task), step, fails)
    refuses(f"the network fails .*{FAILURES[fails]}", classifier.export, tmp_path / "out")


def test_the_command_shows_the_table(classifier, tmp_path, capsys):
    classifier.save_pretrained(tmp_path / "saved")
    assert main([str(tmp_path / "saved"), str(tmp_path / "served")]) == 0
    said = capsys.readouterr().out
    assert certificate_table(record_of(tmp_path / "served" / "1")["certificate"]) in said


@pytest.mark.slow
def test_a_model_that_refuses_the_long_texts_is_compared_on_the_others(tmp_path):
    short = MODELS["fills"]().with_card(trained_length=8)
    config = catalog.config("gpt2_tiny", vocab_size=BYTES.size, max_length=16)
    network = LanguageModel(config)
    network.build()
    for model in (short, Model(network, vocabulary=BYTES, card=Card(name="writer"))):
        [row] = record_of(model.export(tmp_path))["certificate"]
        assert row["difference"] < 1e-4 and row["ms_32"] > 0


def test_numbers_that_are_missing_or_nan_are_differences():
    whole, missing = np.float32([1.0, -1e9]), np.float32([-1e9, -1e9])
    assert certificate._compare("x", "fp32", [(whole, whole), (missing, missing)]) == 0.0
    for found in (missing, whole[:1], np.float32([np.nan, -1e9]), whole * 1.001):
        refuses("the outputs of x differ", certificate._compare, "x", "fp32", [(found, whole)])
