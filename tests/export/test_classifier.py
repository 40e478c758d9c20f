"""A fine-tuned run and its SavedModel say the same, also where this project is not installed."""

import json
import subprocess
import sys

import numpy as np
import pytest

from experiments.finetune.kinds.classification import probabilities
from experiments.finetune.run import FinetuningRun
from export.saved_model import main
from macaron_tf.evaluation.glue import decide
from tests.experiments.task_toys import sentences, train_toy, write_table, write_toy

READER = """
import json, sys
import tensorflow as tf, tensorflow_text
answers = []
for place, texts in json.load(sys.stdin):
    serve = tf.saved_model.load(place).signatures["serving_default"]
    out = serve(**{name: tf.constant(lines) for name, lines in texts.items()})
    answers.append({
        name: [x.decode() for x in value.numpy()] if value.dtype == tf.string
        else value.numpy().tolist()
        for name, value in out.items()
    })
    name = next(iter(texts))
    try:
        serve(**{key: tf.constant([b"fun", b"caf\\xe9"]) for key in texts})
    except tf.errors.InvalidArgumentError as error:
        answers[-1]["error"] = error.message
assert not any(name.startswith(("macaron_tf", "experiments", "export")) for name in sys.modules)
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier of one text, and a regression of two, whose recurrence runs natively here."""
    folder = tmp_path_factory.mktemp("classifiers")
    write_toy(folder)
    train_toy(folder, folder / "sst2")
    texts = [text for text, _ in sentences(40, seed=4)]
    rows = [(a, b, i % 6) for i, (a, b) in enumerate(zip(texts, texts[::-1], strict=True))]
    for split in ("train", "validation"):
        write_table(folder / f"{split}-pairs.tsv", rows, "sentence1\tsentence2\tlabel")
    source = f"tsv:{folder}/{{split}}-pairs.tsv"
    options = {"model": "swish_rnn_tiny", "source": source, "training__max_steps": 4}
    train_toy(folder, folder / "stsb", "stsb", **options)
    return folder


@pytest.fixture(scope="module")
def served(folder):
    for task in ("sst2", "stsb"):
        assert main([str(folder / task), str(folder / "served" / task)]) == 0
    return folder / "served"


def test_a_fresh_process_says_what_the_runs_say(folder, served, tmp_path):
    lines = [text for text, _ in sentences(50, seed=5)]
    lines += ["", "film " * 100, "\ufeffFUN\u2028plöt \ufffd", "a\x00b"]
    others = lines[::-1]
    asked = [
        (str(served / "sst2" / "1"), {"text": lines}),
        (str(served / "stsb" / "1"), {"first": lines, "second": others}),
    ]
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    classes, scores = json.loads(done.stdout)
    run = FinetuningRun.open(folder / "sst2")
    outputs = run.predictor().of_texts(lines)
    np.testing.assert_allclose(classes["probabilities"], probabilities(outputs), atol=1e-5)
    labels = [run.task.labels[label] for label in decide(run.task, outputs)]
    assert classes["label"] == labels and len(set(labels)) > 1
    run = FinetuningRun.open(folder / "stsb")
    expected = decide(run.task, run.predictor().of_texts(lines, others))
    np.testing.assert_allclose(scores["score"], expected, atol=1e-5)
    assert set(scores) == {"score", "error"}
    for answer in (classes, scores):
        assert "a text is not UTF-8" in answer["error"]


def test_what_is_exported_is_on_record(folder, served):
    extra = served / "sst2" / "1" / "assets.extra"
    record = json.loads((extra / "export.json").read_text())
    run = FinetuningRun.open(folder / "sst2")
    assert record["task"] == "sst2" and record["labels"] == ["negative", "positive"]
    assert record["vocabulary"] == run.vocabulary.hash
    assert record["checkpoint"] == run.checkpoint().name


def test_bad_requests_are_one_sentence(folder, tmp_path, capsys):
    run, out = str(folder / "sst2"), str(tmp_path / "out")
    (tmp_path / "kind").mkdir()
    (tmp_path / "kind" / "recipe.json").write_text('{"kind": "poetry"}')
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "recipe.json").write_text("[]")
    for arguments, words in (
        ([str(tmp_path), out], "is not a run"),
        ([str(tmp_path / "kind"), out], "poetry run"),
        ([str(tmp_path / "damaged"), out], "names no kind of run"),
        ([run, out, "--checkpoint", "9"], "has no checkpoint 9"),
        ([run, out, "--n-best", "2"], "--n-best"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert not (tmp_path / "out").exists()
