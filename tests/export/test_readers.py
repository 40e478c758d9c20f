"""Exported span readers and taggers say what their runs say, in a process without this project."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from experiments.finetune.__main__ import main as finetune
from experiments.finetune.run import FinetuningRun
from export.saved_model import main
from tests.experiments.task_toys import reading_flags, write_reading

READER = """
import json, sys
import tensorflow as tf, tensorflow_text
answers = []
for place, texts in json.load(sys.stdin):
    serve = tf.saved_model.load(place).signatures["serving_default"]
    out = serve(**{name: tf.constant(lines) for name, lines in texts.items()})
    answers.append({
        name: tf.strings.as_string(value).numpy().astype("U").tolist() if value.dtype != tf.string
        else [[x.decode() for x in row] if hasattr(row, "__len__") and not isinstance(row, bytes)
              else row.decode() for row in value.numpy()]
        for name, value in out.items()
    })
    try:
        empty = serve(**{name: tf.constant([], tf.string) for name in texts})
        assert all(value.shape[0] == 0 for value in empty.values())
        serve(**{name: tf.constant([b"caf\\xe9"]) for name in texts})
    except tf.errors.InvalidArgumentError as error:
        answers[-1]["error"] = error.message
assert not any(name.startswith(("macaron_tf", "experiments", "export")) for name in sys.modules)
json.dump(answers, sys.stdout)
"""
TASKS = ("squad2", "conll2003")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of each kind, of a few updates, and what was exported of them."""
    folder = tmp_path_factory.mktemp("readers")
    write_reading(folder, unanswerable=True)
    few = {"training__max_steps": 12, "training__validate_every": 12}
    for task in TASKS:
        run = str(folder / task)
        assert finetune(["train", task, run, *reading_flags(folder, task, **few)]) == 0
        assert main([run, str(folder / "served" / task)]) == 0
    return folder


def test_a_fresh_process_says_what_the_runs_say(folder, tmp_path):
    contexts = [
        "\u201cthe old  Ann saw, in Rome.",
        "the dog and Eve in O\u0301slo \U0001f600 and the cat",
        "the old cat " * 40 + "BONN " + "saw the dog " * 30,
        "",
    ]
    questions = ["Who?", "Where?", "", "where " * 20]
    sentences = ["the old Bobs saw the Oslo", "", "\u200b cat\u00a0dog\tthe", "cat " * 60 + "Anns"]
    asked = [
        (str(folder / "served" / "squad2" / "1"), {"question": questions, "context": contexts}),
        (str(folder / "served" / "conll2003" / "1"), {"text": sentences}),
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
    answers, tags = json.loads(done.stdout)

    run = FinetuningRun.open(folder / "squad2")
    predictor = run.predictor()
    assert predictor.tuned["best_f1_thresh"] != 0
    examples = predictor.kind.of_texts(questions, contexts)
    said = predictor.kind.lines(predictor.of_examples(examples), examples)
    rows = [line.split("\t") for line in said.splitlines()]
    assert [" ".join(answer.split()) for answer in answers["answer"]] == [row[0] for row in rows]
    assert answers["start"] == [row[2] for row in rows]
    assert answers["end"] == [row[3] for row in rows]
    probabilities = [float(p) for p in answers["probability"]]
    np.testing.assert_allclose(probabilities, [float(row[1]) for row in rows], atol=1e-4)
    places = zip(contexts, answers["start"], answers["end"], strict=True)
    assert answers["answer"] == [context[int(a) : int(b)] for context, a, b in places]
    assert any(answers["answer"])

    predictor = FinetuningRun.open(folder / "conll2003").predictor()
    outputs = predictor.of_texts(sentences)
    for number, (line, expected) in enumerate(
        zip(sentences, predictor.kind.decide(outputs), strict=True)
    ):
        words = re.split("[ \t]+", line) if line else []
        count = len(words)
        assert tags["words"][number][:count] == words
        assert tags["tags"][number][:count] == expected
        assert not any(tags["tags"][number][count:])
        found = [float(p) for p in tags["probabilities"][number][:count]]
        np.testing.assert_allclose(found, outputs[number].max(axis=1), atol=1e-5)
    for answer in (answers, tags):
        assert "a text is not UTF-8" in answer["error"]


def test_the_records(folder):
    for task in TASKS:
        extra = folder / "served" / task / "1" / "assets.extra"
        record = json.loads((extra / "export.json").read_text())
        assert record["task"] == task
        assert record["vocabulary"] == FinetuningRun.open(folder / task).vocabulary.hash
