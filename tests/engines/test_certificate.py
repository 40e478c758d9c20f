"""Files of an export that are compared with the network, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest

from export.saved_model import main
from macaron_tf.engines import certificate, saved_model
from macaron_tf.engines.certificate import TEXTS, certificate_table
from macaron_tf.errors import needed
from macaron_tf.models import EncoderClassifier, LanguageModel, PretrainingEncoder, catalog
from macaron_tf.pretrained import Pretrained
from tests.engines.test_graph import BYTES, WORDS, loaded
from tests.harness import refuses

MODELS = {
    "classes": lambda: loaded(EncoderClassifier, "bert_tiny", WORDS, 2, labels=("no", "yes")),
    "fills": lambda: loaded(PretrainingEncoder, "bert_tiny", WORDS, has_masked_language=True),
    "writes": lambda: loaded(LanguageModel, "gpt2_tiny", BYTES),
}


@pytest.fixture(scope="module")
def classifier():
    return MODELS["classes"]()


def record_of(path) -> dict:
    return json.loads((path / "assets.extra" / "export.json").read_text())


@pytest.mark.parametrize("name", MODELS)
def test_the_record_and_the_card_hold_the_numbers(name, tmp_path):
    path = MODELS[name]().export(tmp_path / "served")
    [row] = record_of(path)["certificate"]
    assert row["target"].startswith("SavedModel")
    assert 0 <= row["difference"] < 1e-4 and row["bytes"] > 10_000
    assert row["ms_1"] > 0 and row["ms_32"] > 0
    card = (path / "README.md").read_text()
    assert card.startswith("---\n") and certificate_table([row]) in card


def test_litert_and_bfloat16_have_bounds_of_their_own(classifier, tmp_path):
    pytest.importorskip("ai_edge_litert")
    path = classifier.export(tmp_path / "served", bfloat16=True, lite="int8")
    graph, lite = record_of(path)["certificate"]
    assert 1e-4 < graph["difference"] < 0.1 and lite["target"] == "LiteRT int8"
    assert classifier.network.dtype_policy.name == "float32"


@pytest.mark.parametrize("tampered", ["SavedModel", "LiteRT"])
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


def test_without_its_runtime_a_file_is_not_checked(classifier, tmp_path, monkeypatch):
    pytest.importorskip("ai_edge_litert")

    def missing(folder):
        with needed("LiteRT"):
            raise ModuleNotFoundError(name="ai_edge_litert")

    monkeypatch.setattr(certificate, "LiteNetwork", missing)
    _, row = record_of(classifier.export(tmp_path, lite="fp32"))["certificate"]
    assert row["not_checked"] == "LiteRT needs ai_edge_litert: pip install 'macaron_tf[lite]'"
    assert f"| LiteRT fp32 | not checked: {row['not_checked']} |  |  |" in certificate_table([row])


def test_the_command_shows_the_table(classifier, tmp_path, capsys):
    classifier.save_pretrained(tmp_path / "saved")
    assert main([str(tmp_path / "saved"), str(tmp_path / "served")]) == 0
    said = capsys.readouterr().out
    assert certificate_table(record_of(tmp_path / "served" / "1")["certificate"]) in said


def test_a_model_that_refuses_the_long_texts_is_compared_on_the_others(tmp_path):
    short = dataclasses.replace(MODELS["fills"](), trained_length=8)
    config = catalog.config("gpt2_tiny", vocab_size=BYTES.size, max_length=16)
    network = LanguageModel(config)
    network.build()
    for model in (short, Pretrained(network, vocabulary=BYTES, name="writer")):
        [row] = record_of(model.export(tmp_path))["certificate"]
        assert row["difference"] < 1e-4 and row["ms_32"] > 0


def test_numbers_that_are_missing_or_nan_are_differences():
    whole, missing = np.float32([1.0, -1e9]), np.float32([-1e9, -1e9])
    assert certificate._judged("x", "fp32", [(whole, whole), (missing, missing)]) == {
        "difference": 0.0
    }
    for found in (missing, whole[:1], np.float32([np.nan, -1e9]), whole * 1.001):
        refuses("x: its outputs differ", certificate._judged, "x", "fp32", [(found, whole)])


def test_texts_are_whole_and_some_have_a_gap():
    assert all(text.encode().decode() == text for text in TEXTS)
    assert 3 < sum("[MASK]" in text for text in TEXTS) < len(TEXTS)
    assert np.isinf(certificate.BOUNDS["default"])
