"""Runs and their SavedModels say the same, in a process where this project is not installed."""

import dataclasses
import json
import re

import numpy as np
import pytest

from experiments.embed.run import open_encoder
from experiments.finetune.__main__ import main as finetune
from experiments.finetune.kinds.classification import probabilities
from experiments.finetune.run import FinetuningRun
from experiments.generate.opening import open_model
from experiments.translate.run import TranslationRun
from export.saved_model import main
from export.server.config import ServerConfig
from export.server.model_server import ModelServer
from macaron_tf.decoding import GenerationConfig
from macaron_tf.evaluation.glue import decide
from macaron_tf.evaluation.similarity import unit_vectors
from tests.conftest import number_pairs
from tests.experiments.pretraining_toy import train_language_toy
from tests.experiments.task_toys import (
    reading_flags,
    sentences,
    train_embedding,
    train_toy,
    write_embedding_toy,
    write_reading,
    write_table,
    write_toy,
)
from tests.export.serving_toys import ask_elsewhere, call

LINES = [text for text, _ in sentences(50, seed=5)]
LINES += ["", "film " * 100, "\ufeffFUN\u2028plöt \ufffd", "a\x00b"]
BROKEN = ["fun", "caf\udce9"]
NUMBERS = [source for source, _ in number_pairs(200, seed=5)]
NUMBERS[3] = ""
CONTEXTS = [
    "\u201cthe old  Ann saw, in Rome.",
    "the dog and Eve in O\u0301slo \U0001f600 and the cat",
    "the old cat " * 40 + "BONN " + "saw the dog " * 30,
    "",
]
QUESTIONS = ["Who?", "Where?", "", "where " * 20]
TAGGED = ["the old Bobs saw the Oslo", "", "\u200b cat\u00a0dog\tthe", "cat " * 60 + "Anns"]
CONTROLS = ("text", "temperature", "top_k", "top_p", "seed", "max_tokens")
PROMPTS = [
    ("c c c", 0.0, 0, 1.0, 1, 10),
    ("c c c", 1.5, 0, 1.0, 1, 10),
    ("c c c", 1.5, 0, 1.0, 2, 10),
    ("", 1.0, 5, 0.9, 7, 50),
    ("na\u00efve\n e .", 1.5, 0, 0.95, -3, 6),
]
FEW = {"training__max_steps": 4}


def controls(*rows) -> dict[str, list]:
    return dict(zip(CONTROLS, map(list, zip(*rows, strict=True)), strict=True))


# One run of each kind: its inputs, and inputs that are refused or empty.
INPUTS = {
    "sst2": [{"text": LINES}, {"text": BROKEN}],
    "stsb": [
        {"first": LINES, "second": LINES[::-1]},
        {"first": BROKEN, "second": BROKEN},
    ],
    "embedder": [{"text": LINES}, {"text": BROKEN}],
    "squad2": [
        {"question": QUESTIONS, "context": CONTEXTS},
        {"question": BROKEN[1:], "context": BROKEN[1:]},
        {"question": [], "context": []},
    ],
    "conll2003": [{"text": TAGGED}, {"text": BROKEN[1:]}, {"text": []}],
    "generator": [
        controls(*PROMPTS),
        # None of these begins a text, so their prompts are read at once.
        controls(*PROMPTS[:3]),
        controls(("a " * 40, 1.0, 0, 1.0, 1, 4)),
        controls(("caf\udce9", 1.0, 0, 1.0, 1, 4)),
    ],
    "numbers": [{"text": NUMBERS}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, number_run):
    """A run of each kind, of a few updates, and under `served` its SavedModel."""
    folder = tmp_path_factory.mktemp("exported")
    write_toy(folder)
    train_toy(folder, folder / "sst2")
    texts = [text for text, _ in sentences(40, seed=4)]
    rows = [(a, b, i % 6) for i, (a, b) in enumerate(zip(texts, texts[::-1], strict=True))]
    for split in ("train", "validation"):
        write_table(folder / f"{split}-pairs.tsv", rows, "sentence1\tsentence2\tlabel")
    # Recurrences run natively here.
    pairs = {"model": "swish_rnn_tiny", "source": f"tsv:{folder}/{{split}}-pairs.tsv", **FEW}
    train_toy(folder, folder / "stsb", "stsb", **pairs)
    for name in ("embedding", "reading", "language"):
        (folder / name).mkdir()
    write_embedding_toy(folder / "embedding")
    train_embedding(folder / "embedding", folder / "embedder", model="swish_rnn_tiny", **FEW)
    write_reading(folder / "reading", unanswerable=True)
    few = {"training__max_steps": 12, "training__validate_every": 12}
    for task in ("squad2", "conll2003"):
        flags = reading_flags(folder / "reading", task, **few)
        assert finetune(["train", task, str(folder / task), *flags]) == 0
    (folder / "generator").symlink_to(train_language_toy(folder / "language", "byte_bpe"))
    (folder / "numbers").symlink_to(number_run)
    for name in INPUTS:
        options = ["--n-best", "2"] if name == "numbers" else []
        assert main([str(folder / name), str(folder / "served" / name), *options]) == 0
    return folder


def served(folder, name, version=1):
    return folder / "served" / name / str(version)


def record_of(folder, name, version=1):
    return json.loads((served(folder, name, version) / "assets.extra/export.json").read_text())


@pytest.fixture(scope="module")
def number_hypotheses(folder):
    """The translator's own answers."""
    run = TranslationRun.open(folder / "numbers")
    decoding = dataclasses.replace(run.recipe.decoding, n_best=2)
    return run.translator(decoding=decoding).translate(NUMBERS).hypotheses


@pytest.fixture(scope="module")
def answers(folder, number_hypotheses, tmp_path_factory):
    """The outputs for all inputs, by name, from one fresh process."""
    asked = [
        (str(served(folder, name)), "serving_default", inputs)
        for name, rows in INPUTS.items()
        for inputs in rows
    ]
    best = [hypotheses[0].text for hypotheses in number_hypotheses]
    score = {"source": NUMBERS, "target": best}
    asked.append((str(served(folder, "numbers")), "score", score))
    found = iter(ask_elsewhere(tmp_path_factory.mktemp("elsewhere"), *asked))
    by_name = {name: [next(found) for _ in rows] for name, rows in INPUTS.items()}
    by_name["numbers"].append(next(found))
    return by_name


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in ("numbers", "generator")])
def test_bytes_that_are_no_text_are_refused_and_no_texts_have_no_answers(answers, name):
    _, broken, *empty = answers[name]
    assert "a text is not UTF-8" in broken["error"]
    for outputs in empty:
        assert outputs and not any(outputs.values())


def test_classes_and_scores_are_the_runs(folder, answers):
    [classes, _], [scores, _] = answers["sst2"], answers["stsb"]
    run = FinetuningRun.open(folder / "sst2")
    outputs = run.predictor().of_texts(LINES)
    np.testing.assert_allclose(classes["probabilities"], probabilities(outputs), atol=1e-5)
    labels = [run.task.labels[label] for label in decide(run.task, outputs)]
    assert classes["label"] == labels and len(set(labels)) > 1
    run = FinetuningRun.open(folder / "stsb")
    expected = decide(run.task, run.predictor().of_texts(LINES, LINES[::-1]))
    np.testing.assert_allclose(scores["score"], expected, atol=1e-5)
    assert set(scores) == {"score"}


def test_vectors_are_the_runs_and_of_unit_length(folder, answers):
    vectors = answers["embedder"][0]["vector"]
    encoder, _ = open_encoder(str(folder / "embedder"))
    np.testing.assert_allclose(vectors, unit_vectors(encoder.encode(LINES)), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    config = ServerConfig(str(folder / "served/embedder"), "embedder", rest_port=0, grpc_port=0)
    with ModelServer(config) as server:
        body = {"instances": LINES[:2]}
        status, answer = call(server.rest_port, "POST", "/v1/models/embedder:predict", body)
    assert status == 200
    np.testing.assert_allclose(answer["predictions"], vectors[:2], atol=1e-5)


def test_spans_are_the_runs(folder, answers):
    found = answers["squad2"][0]
    predictor = FinetuningRun.open(folder / "squad2").predictor()
    assert predictor.tuned["best_f1_thresh"] != 0
    examples = predictor.kind.of_texts(QUESTIONS, CONTEXTS)
    said = predictor.kind.lines(predictor.of_examples(examples), examples)
    rows = [line.split("\t") for line in said.splitlines()]
    assert [" ".join(answer.split()) for answer in found["answer"]] == [row[0] for row in rows]
    assert found["start"] == [int(row[2]) for row in rows]
    assert found["end"] == [int(row[3]) for row in rows]
    np.testing.assert_allclose(found["probability"], [float(row[1]) for row in rows], atol=1e-4)
    places = zip(CONTEXTS, found["start"], found["end"], strict=True)
    assert found["answer"] == [context[a:b] for context, a, b in places]
    assert any(found["answer"])


def test_tags_are_the_runs(folder, answers):
    found = answers["conll2003"][0]
    predictor = FinetuningRun.open(folder / "conll2003").predictor()
    outputs = predictor.of_texts(TAGGED)
    for number, expected in enumerate(predictor.kind.decide(outputs)):
        words = re.split("[ \t]+", TAGGED[number]) if TAGGED[number] else []
        count = len(words)
        assert found["words"][number][:count] == words
        assert found["tags"][number][:count] == expected
        assert not any(found["tags"][number][count:])
        np.testing.assert_allclose(
            found["probabilities"][number][:count], outputs[number].max(axis=1), atol=1e-5
        )


def check_completions(run, found, alone, long, broken):
    generator = open_model(run).generator()
    for row, (text, temperature, top_k, top_p, seed, most) in enumerate(PROMPTS):
        config = GenerationConfig(temperature, top_k, top_p, 1, most)
        [[expected]] = generator.complete([text], config, seed)
        assert found["completion"][row] == expected.text
        assert found["tokens"][row] == expected.length
        np.testing.assert_allclose(found["log_prob"][row], expected.log_prob, rtol=1e-3, atol=1e-3)
    assert alone["completion"] == found["completion"][:3]
    assert "too long to go on" in long["error"]
    assert "not UTF-8" in broken["error"]


def test_completions_are_the_runs(folder, answers):
    check_completions(folder / "generator", *answers["generator"])


@pytest.mark.slow
def test_completions_of_a_wordpiece_model_are_the_runs(tmp_path):
    run = train_language_toy(tmp_path, "wordpiece")
    assert main([run, str(tmp_path / "served")]) == 0
    place = str(tmp_path / "served" / "1")
    asked = [(place, "serving_default", inputs) for inputs in INPUTS["generator"]]
    check_completions(run, *ask_elsewhere(tmp_path, *asked))


def test_translations_are_the_runs(number_hypotheses, answers):
    found, scored = answers["numbers"]
    for i, hypotheses in enumerate(number_hypotheses):
        row = found["translations"][i]
        assert row[: len(hypotheses)] == [hypothesis.text for hypothesis in hypotheses]
        assert found["scores"][i][0] == pytest.approx(hypotheses[0].score, abs=1e-4)
        if NUMBERS[i]:
            assert scored["log_probs"][i] == pytest.approx(hypotheses[0].log_prob, abs=1e-3)
            assert scored["tokens"][i] == hypotheses[0].length


def test_every_export_is_on_record(folder):
    for name in ("sst2", "squad2", "conll2003"):
        record, run = record_of(folder, name), FinetuningRun.open(folder / name)
        assert record["task"] == name and record["vocabulary"] == run.vocabulary.hash
    record = record_of(folder, "sst2")
    assert record["labels"] == ["negative", "positive"]
    assert record["checkpoint"] == FinetuningRun.open(folder / "sst2").checkpoint().name
    record = record_of(folder, "embedder")
    assert record["pooling"] == "mean" and record["checkpoint"].startswith("step-")
    assert record["max_length"] == 16
    record = record_of(folder, "generator")
    assert record["longest"] == 16 and record["checkpoint"].startswith("step-")


def test_versions_count_up_and_are_whole(folder, capsys):
    run, out = str(folder / "numbers"), folder / "served" / "numbers"
    assert main([run, str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    assert record_of(folder, "numbers", 2)["checkpoint"] == "average"
    assert main([run, str(out), "--version", "2"]) == 2
    assert "--version 2 exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "flags", "words"),
    [
        ("{tmp}", [], "is not a run"),
        ("{tmp}/kind", [], "poetry run"),
        ("{tmp}/damaged", [], "names no kind of run"),
        ("{runs}/sst2", ["--checkpoint", "9"], "has no checkpoint 9"),
        ("{runs}/numbers", ["--checkpoint", "9"], "has no checkpoint 9"),
        *[(f"{{runs}}/{run}", ["--n-best", "2"], "--n-best") for run in ("sst2", "embedder")],
        ("{runs}/generator", ["--n-best", "2"], "--n-best"),
        ("{runs}/numbers", ["--n-best", "99"], "n_best"),
        ("{runs}/numbers", ["file"], "cannot be written"),
        ("hugging-face:DIR", ["--checkpoint", "best"], "has one set of weights"),
    ],
)
def test_bad_requests_are_one_sentence(place, flags, words, folder, tmp_path, capsys):
    for name, recipe in (("kind", '{"kind": "poetry"}'), ("damaged", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").write_text(recipe)
    out = tmp_path / "out"
    if flags == ["file"]:
        out, flags = tmp_path / "file" / "out", []
        (tmp_path / "file").write_text("")
    assert main([place.format(tmp=tmp_path, runs=folder), str(out), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert not out.exists()
