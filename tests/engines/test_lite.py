"""LiteRT predicts what the graph predicts, for every system and head that LiteRT supports."""

import concurrent.futures
import itertools
import json
import os
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf

from experiments import studies
from export.server.servable import Servable
from macaron_tf import models
from macaron_tf.engines import certificate, lite_writer
from macaron_tf.engines.lite import NETWORK, RECORD, LiteModel, LiteNetwork
from macaron_tf.engines.networks import TaskNetwork
from macaron_tf.io import paths
from macaron_tf.model import Model
from macaron_tf.models.model_parts import Card
from macaron_tf.tasks import LabelledSettings
from macaron_tf.text.words import WordVocabulary
from tests.harness import int8_error, refuses
from tests.toys.hard_texts import HARDEST
from tests.toys.marks import slow
from tests.toys.pretrained import WORDS, with_classes

pytest.importorskip("ai_edge_litert")

LENGTH = 12
TEXTS = ["", "a", "a b c d", "f e d c b a f e d c b", *HARDEST[:4]]
SYSTEMS = ("macaron_bert", "modern_bert", "swish_rnn", "amlp", "xlnet", "gpt", "bert", "bert_rab")
SYSTEMS += ("gmlp", "albert", "electra", "roberta", "span_bert", "gpt2", "xlm")


SMALL = dict(hidden_dim=32, feed_forward_dim=48, num_heads=2, num_layers=2, initializer_range=0.5)


def made(kind, name, *arguments, changes=SMALL, settings=None, labels=(), **facts):
    """Returns a small model whose predictions differ from text to text."""
    config = models.catalog.config(name, vocab_size=WORDS.size, max_length=LENGTH, **changes)
    network = kind(config, *arguments)
    network.build()
    model = Model(network, WORDS, settings, Card(name="made", **facts))
    return with_classes(model, *labels, max_length=LENGTH) if labels else model


def described(kind: str, **task) -> LabelledSettings:
    limits = {"max_length": LENGTH, "spans": {"max_question": 3, "doc_stride": 2}}
    return LabelledSettings(task={"name": "own", "kind": kind, **task}, limits=limits)


def with_head(kind: str) -> tuple[Model, list]:
    """Returns a model for a task type, such as "spans" or "tags", and inputs for the model."""
    if kind == "choice":
        task = described(kind, first=["a"], second=["b", "c"], labels=["1", "2"])
        return made(models.EncoderMultipleChoice, "bert_tiny", settings=task), [
            ("a b", "c", "d e f a b c d e f")
        ]
    if kind == "spans":
        task = described(kind, first=["q"], second=["c"])
        model = made(models.EncoderQuestionAnswering, "bert_tiny", settings=task)
        return model, [("a", "b c d e f a b c d e f a b"), ("c", "d"), ("", "e f")]
    if kind == "tags":
        task = described(kind, first=["w"], labels=["O", "B-X"])
        return made(models.EncoderTokenClassifier, "bert_tiny", 2, settings=task), TEXTS
    if kind == "vectors":
        return made(models.SiameseEncoder, "bert_tiny"), TEXTS
    if kind == "filling":
        texts = ["[MASK]", "a [MASK] c [MASK]"]
        return made(models.PretrainingEncoder, "bert_tiny", objective="masked_language"), texts
    words = WordVocabulary(("<UNK>", "<S>", "</S>", "a", "b"))
    network = models.Elmo(models.catalog.config("elmo_tiny", vocab_size=words.size))
    network.build()
    return Model(network, vocabulary=words, card=Card(name="elmo")), ["a b", "c d e f a b"]


def by_lite(model: Model, texts: list, kind: str = "fp32") -> list:
    """Returns predictions by LiteRT; asserts that no prediction came from the graph instead."""
    model = model.with_lite(kind)
    small = model._graph()._small_engine
    given = []

    def answer(inputs: dict) -> dict | None:
        given.append(LiteModel.answer(small, inputs))
        return given[-1]

    small.answer = answer
    answers = [model.predict(text) for text in texts]
    assert len(given) == len(texts) and None not in given
    return answers


def alike(found: list, expected: list, tolerance: float) -> None:
    """Checks that two lists of predictions are equal; numbers may differ by `tolerance`."""
    for one, other in zip(*map(tf.nest.flatten, (found, expected)), strict=True):
        if isinstance(other, float):
            assert one == pytest.approx(other, abs=tolerance)
        else:
            assert one == other


@pytest.mark.parametrize("system", slow(*SYSTEMS, but=("swish_rnn",)))
def test_every_system_answers_as_its_graph(system):
    name = f"{system}_tiny"
    kind = (
        models.CausalClassifier if models.catalog.config(name).causal else models.EncoderClassifier
    )
    model = made(kind, name, 2, labels=("no", "yes"))
    expected = model.predict(TEXTS)
    assert len({answer["probabilities"][0] for answer in expected}) > 3
    alike(by_lite(model, TEXTS), expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tolerance"), [("fp32", 1e-5), ("int8", 0.02)])
def test_the_base_size_s_width_converts(kind, tolerance):
    wide = dict(hidden_dim=768, feed_forward_dim=3072, num_heads=12, num_layers=1)
    model = made(models.EncoderClassifier, "bert_tiny", 2, labels=("no", "yes"), changes=wide)
    alike(by_lite(model, TEXTS, kind), model.predict(TEXTS), tolerance)


@pytest.mark.parametrize("kind", ["vectors", *slow("choice", "spans", "tags", "filling", "words")])
def test_every_head_answers_as_its_graph(kind, monkeypatch):
    monkeypatch.setattr(lite_writer, "LENGTHS", (8, 16))  # some models have no length limit
    model, texts = with_head(kind)
    alike(by_lite(model, texts), model.predict(texts), 1e-5)


@pytest.fixture(scope="module")
def classifier() -> Model:
    return made(models.EncoderClassifier, "bert_tiny", 2, labels=("no", "yes"))


@pytest.fixture(scope="module")
def version(classifier, tmp_path_factory):
    """Returns an exported version with an int8 network, scored on a table with one wrong label."""
    folder = tmp_path_factory.mktemp("served")
    rows = [f"{text}\t{classifier.predict(text)['label']}\n" for text in TEXTS[1:4]]
    rows += ["a\t" + ("no" if rows[0].endswith("yes\n") else "yes") + "\n"]
    (folder / "dev.tsv").write_text("text\tlabel\n" + "".join(rows))
    # A fake clock on which LiteRT takes half the graph's time, however busy the machine is.
    ticks = itertools.accumulate(itertools.cycle((0.0, 1.0, 0.0, 2.0)))
    real = certificate.break_even

    def by_our_clock(*given):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(certificate.time, "perf_counter", lambda: next(ticks))
            return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "break_even", by_our_clock)
        patch.setattr(certificate, "TEXTS", certificate.TEXTS[:3])
        return classifier.export(folder / "out", lite="int8", check=f"tsv:{folder}/dev.tsv")


@pytest.mark.slow
def test_int8_is_near_and_smaller(classifier, version, tmp_path):
    lite_writer.write_lite(TaskNetwork(classifier.task), tmp_path, "fp32")
    sizes = [len((place / NETWORK).read_bytes()) for place in (tmp_path, version / "assets.extra")]
    weights = 4 * classifier.network.count_params()
    assert weights < sizes[0] < 2 * weights  # all lengths share the weights
    assert sizes[1] < sizes[0]
    found, expected = classifier.with_lite("int8").predict(TEXTS), classifier.predict(TEXTS)
    shares = np.array([[one["probabilities"] for one in answers] for answers in (found, expected)])
    # Queries, keys, values, outputs and two of the feed-forward network; embeddings, pooler and
    # logits. A probability of two classes moves by at most a quarter of the logits' difference.
    matrices = 6 * classifier.config.num_layers + 3
    spread = np.std(np.log(shares[1, :, 0] / shares[1, :, 1]))
    assert 0 < np.abs(shares[0] - shares[1]).max() < int8_error(matrices) * spread / 4


def texts_of(lines: list[str]) -> dict[str, np.ndarray]:
    return {"text": np.array([line.encode() for line in lines], object)}


def test_a_server_answers_small_requests_by_it_from_many_threads(classifier, version):
    servable = Servable(version, 1)
    servable.warm_up()
    assert not servable.waits("serving_default")
    lite = classifier.with_lite("int8")
    expected = {text: lite.predict(text) for text in TEXTS}

    def check(text: str) -> None:
        found = servable.run("serving_default", texts_of([text]))
        assert found["probabilities"][0] == pytest.approx(expected[text]["probabilities"], abs=1e-6)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        [*pool.map(check, TEXTS * 10)]
    many = TEXTS * 9
    exact = [answer["probabilities"] for answer in classifier.predict(many)]
    found = servable.run("serving_default", texts_of(many))["probabilities"]
    np.testing.assert_allclose(found, exact, atol=1e-5)  # the float32 graph's result


def graph_was_faster(file):
    network = LiteNetwork(file.parent)
    network.max_rows = 0
    network.save_max_rows()


def test_without_its_files_a_version_is_served_by_its_graph(classifier, version, tmp_path, caplog):
    exact = classifier.predict("a b")["probabilities"]
    damages = (
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b"x"),
        graph_was_faster,
    )
    for number, damage in enumerate(damages):
        place = shutil.copytree(version, tmp_path / str(number))
        damage(place / "assets.extra" / NETWORK)
        servable = Servable(place, 1)
        assert servable.waits("serving_default")
        found = servable.run("serving_default", texts_of(["a b"]))
        np.testing.assert_allclose(found["probabilities"][0], exact, atol=1e-5)
    assert "is damaged" in caplog.text


def test_without_the_calls_that_only_linux_has(version, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in ("memfd_create", "posix_fallocate", "sched_getaffinity", "sched_setaffinity"):
        monkeypatch.delattr(os, name)
    assert LiteNetwork(version / "assets.extra").lengths
    assert studies.run_tasks(2, {"one": lambda: 1, "two": lambda: 2}) == [1, 2]
    paths.require_disk_space(tmp_path, 1)
    with pytest.raises(OSError, match="No space left on device"):
        paths.require_disk_space(tmp_path, 1 << 60)


def test_damaged_files_and_other_networks_are_refused(version, tmp_path):
    place = shutil.copytree(version / "assets.extra", tmp_path / "extra")
    (place / NETWORK).write_bytes((place / NETWORK).read_bytes()[:1000])
    refuses("network.tflite is damaged", LiteNetwork, place)
    (place / RECORD).write_text("{}")
    refuses("network.json is damaged", LiteNetwork, place)


def test_the_record_says_what_was_written(version):
    record = json.loads((version / "assets.extra" / "export.json").read_text())
    lite = record["lite"]
    assert lite["kind"] == "int8" and lite["lengths"] == [8, LENGTH]
    faster = [row["rows"] for row in lite["measured"] if row["lite"] < row["graph"]]
    assert lite["rows"] == max(faster) == LiteNetwork(version / "assets.extra").max_rows
    # Each file is scored on the labelled examples.
    found = [row["metrics"]["accuracy"] for row in (*record["certificate"], record["check"])]
    assert found == [0.75] * 3 and record["check"]["examples"] == 4
    card = (version / "README.md").read_text()
    assert card.count("| accuracy 0.7500") == 2 and "4 examples of tsv:" in card
