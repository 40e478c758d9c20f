"""Questions and tags: the commands, from files to scores, answers and a grid of mixed kinds."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.finetune.__main__ import main
from experiments.finetune.kinds import Limits, SpanLimits, kind_of
from experiments.finetune.run import FinetuningRun, preset
from macaron_tf.data.tasks.definitions import TASKS, get_task
from tests.experiments.task_toys import (
    NAMES,
    assert_same_weights,
    not_yet_trained,
    reading_flags,
    scores_in,
    squad_document,
    validations,
    without,
    write_reading,
)

READING = ("squad2", "conll2003")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files, and a run of each kind."""
    folder = tmp_path_factory.mktemp("reading")
    write_reading(folder, unanswerable=True)
    for task in READING:
        assert main(["train", task, str(folder / task), *reading_flags(folder, task)]) == 0
    return folder


def predict(run, lines, tmp_path) -> str:
    """The output of `predict` for lines."""
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert main(["predict", str(run), "--input", str(source), "--output", str(target)]) == 0
    return target.read_text(encoding="utf-8")


def test_they_learn_and_evaluate_writes_what_official_scripts_read(folder, tmp_path, capsys):
    said = {}
    for task in READING:
        lines = validations(folder / task)
        names = {*get_task(task).metrics, *get_task(task).more_metrics}
        assert names <= set(lines[-1]) and lines[-1]["score"] > 0.9 and lines[-1]["loss"] < 1
        best = FinetuningRun.open(folder / task).result().best_score
        assert best == max(line["score"] for line in lines)
        assert main(["evaluate", str(folder / task), "--output", str(tmp_path / task)]) == 0
        said[task] = scores_in(tmp_path / task)
        assert said[task]["metrics"]["score"] == best
    output = capsys.readouterr().out
    assert "60 examples of validation" in output and "60 examples of dev" in output
    # At the development set's best threshold, F1 is the best F1.
    metrics = said["squad2"]["metrics"]
    assert metrics["f1"] == pytest.approx(metrics["best_f1"])
    answers = said["squad2"]["predictions"]["validation"]
    assert set(answers) == {f"q{number}" for number in range(60)}
    assert {answer.lower() for answer in answers.values()} >= {"", *NAMES}
    assert said["conll2003"]["metrics"]["PER_f1"] > 0.8
    assert len(said["conll2003"]["predictions"]["dev"]) == 60


def test_predict_answers_out_of_the_text_as_it_was_given(folder, tmp_path):
    lines = [
        "Who?\t\u201cthe old  Ann saw, in Rome.",
        "Where?\tthe dog and Eve in O\u0301slo and the cat",
        "Where?\t" + "the old cat " * 40 + "BONN " + "saw the dog " * 30,
        "Who?\t",
    ]
    found = predict(folder / "squad2", lines, tmp_path)
    rows = [line.split("\t") for line in found.splitlines()]
    assert [row[0] for row in rows] == ["Ann", "O\u0301slo", "BONN", ""]
    for line, (answer, probability, start, end) in zip(lines, rows, strict=True):
        assert line.split("\t")[1][int(start) : int(end)] == answer
        assert 0 < float(probability) <= 1
    records = [dict(zip(("question", "context"), line.split("\t"), strict=True)) for line in lines]
    assert predict(folder / "squad2", map(json.dumps, records), tmp_path) == found


def test_predict_tags_every_word(folder, tmp_path):
    lines = ["old red Bobs saw the Oslo", "", "\u200b cat", "cat " * 60 + "Anns"]
    sentences = predict(folder / "conll2003", lines, tmp_path).removesuffix("\n\n").split("\n\n")
    sentences = [[row.split("\t") for row in text.split("\n") if row] for text in sentences]
    words = [line.split() for line in lines if line]
    assert [[word for word, _ in rows] for rows in sentences if rows] == words
    assert [tag for _, tag in sentences[0]] == ["O", "O", "B-PER", "O", "B-ORG", "I-ORG"]
    assert sentences[-1][-1] == ["Anns", "B-PER"]
    assert ["\u200b", "O"] in [row for rows in sentences for row in rows]


@pytest.mark.parametrize("task", ["sst2", "squad"])
def test_another_kinds_run_gives_its_encoder(task, folder):
    given = str(folder / "conll2003")
    init, _, network = not_yet_trained(given, task, "spans.max_question=4", name="bert")
    assert_same_weights(network.encoder, init.source.network.encoder)


@pytest.mark.slow  # tests/experiments/test_finetune.py has the grid of one kind
def test_a_grid_of_mixed_kinds_is_one_table(folder, tmp_path, monkeypatch, capsys):
    sources = {
        "squad2": f"squad:{folder}/{{split}}.json",
        "conll2003": f"conll:{folder}/{{split}}.txt",
    }
    for task, source in sources.items():
        monkeypatch.setitem(TASKS, task, dataclasses.replace(TASKS[task], source=source))
    steps = {"training__max_steps": 2, "training__validate_every": 2}
    flags = reading_flags(folder, "squad2", **steps)
    flags = without(flags, "--source", "training.learning_rate", "batch_size")
    arguments = ["grid", *sources, str(tmp_path), *flags, "--seeds", "1", "--baseline"]
    assert main(arguments) == 0
    record = json.loads((tmp_path / "grid.json").read_text())
    assert [run["task"] for run in record["runs"]] == [*sources]
    assert all(run["score"] is not None for run in record["runs"])
    assert set(record["baselines"]) == {"conll2003"}
    table = (tmp_path / "grid.md").read_text()
    assert "squad2 best_f1; conll2003 f1." in table and "| baseline |  | " in table
    # Nothing is trained twice.
    capsys.readouterr()
    assert main(arguments) == 0
    assert "step 2" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, task, numbers",
    [
        ("bert", "squad", (3e-5, 2, 32, 384)),
        ("bert", "squad2", (3e-5, 2, 48, 384)),
        ("bert", "conll2003", (5e-5, 3, 32, 128)),
        ("spanbert", "squad2", (2e-5, 4, 32, 512)),
        ("macaron", "squad", (5e-5, 3, 32, 384)),
    ],
)
def test_the_papers_numbers(name, task, numbers):
    found = preset(name, get_task(task))
    rate = found.training.learning_rate
    assert (rate, found.epochs, found.batch_size, found.max_length) == numbers
    assert found.limits == Limits(numbers[-1], SpanLimits(128, 64, 30))


def test_a_diverged_models_outputs_score_nan(folder):
    for task, split in zip(READING, ("validation", "dev"), strict=True):
        run = FinetuningRun.open(folder / task)
        predictor = run.predictor()
        examples = kind_of(run.task).read(split, None, False, run.recipe.source)
        if task == "conll2003":
            outputs = predictor.of_examples(examples)
            outputs[3][0, 0] = np.nan
        else:
            for weight in predictor.network.head.weights:
                weight.assign(weight * np.nan)
            outputs = predictor.of_examples(examples)
        metrics = predictor.kind.measure(outputs, examples)
        assert all(np.isnan(value) for value in metrics.values())


def squad(change, *flags, task="squad"):
    """A command line with a SQuAD file that is changed."""

    def arguments(folder):
        document = squad_document([("the old cat", "a7", "Who?", [("cat", 8)])])
        paragraph = document["data"][0]["paragraphs"][0]
        change(document, paragraph, paragraph["qas"][0])
        for split in ("train", "validation"):
            (folder / f"{split}.json").write_text(json.dumps(document))
        return ["train", task, str(folder / "run"), *reading_flags(folder, task), *flags]

    return arguments


def conll(text, *flags):
    """The same with a CoNLL file."""

    def arguments(folder):
        for split in ("train", "dev"):
            (folder / f"{split}.txt").write_text(text)
        run = str(folder / "run")
        return ["train", "conll2003", run, *reading_flags(folder, "conll2003"), *flags]

    return arguments


def lines(text):
    """`predict` with lines."""

    def arguments(folder):
        (folder / "in.txt").write_text(text)
        return ["predict", "RUNS/squad2", "--input", str(folder / "in.txt")]

    return arguments


def nothing(document, paragraph, question):
    """No change."""


MISTAKES = [
    (
        squad(lambda d, p, q: q["answers"][0].update(answer_start=7)),
        "'a7': the answer 'cat' does not stand at character 7",
    ),
    (
        squad(lambda d, p, q: q["answers"][0].pop("answer_start")),
        "data[0].paragraphs[0].qas[0]: the field 'answer_start'",
    ),
    (squad(lambda d, p, q: p.pop("context")), "field 'context'"),
    (squad(lambda d, p, q: q.update(question=" ")), "is empty"),
    (squad(lambda d, p, q: q.pop("answers")), "'answers' is missing"),
    (squad(lambda d, p, q: q.update(answers=[])), "the task squad2"),
    (squad(lambda d, p, q: d.pop("data")), "field 'data' is not a list"),
    (squad(lambda d, p, q: d.update(data=[])), "holds no question"),
    (squad(nothing, "--set", "spans.doc_stride=0"), "spans.doc_stride=0 must be"),
    (squad(nothing, "--set", "max_length=7"), "a row of squad needs 8 or more"),
    (conll("the O\ncat B-CAT\n"), "train.txt, line 2: the tag 'B-CAT'"),
    (conll("the O\n\ncat\n"), "line 3: 'cat' stands alone"),
    (conll("\n\n"), "holds no sentence"),
    (conll("the O\n", "--source", "tsv:x"), "unknown source 'tsv:x' of the task 'conll2003'"),
    (lines("Who?\ta\nWho? a\n"), "line 2: 1 columns, not 2"),
    (lines('{"question": "Who?"}\n'), "line 1 is no JSON object"),
    (lambda folder: ["submit", "RUNS/squad2", str(folder)], "of which no server takes files"),
    (
        lambda folder: ["baseline", "squad2", "--source", "squad:RUNS/{split}.json"],
        "no baseline for squad2",
    ),
]


@pytest.mark.parametrize("arguments, words", MISTAKES, ids=range(len(MISTAKES)))
def test_bad_input_is_one_sentence_and_leaves_nothing(arguments, words, folder, tmp_path, refused):
    given = [word.replace("RUNS", str(folder)) for word in arguments(tmp_path)]
    vocabulary = ["--vocabulary", str(folder / "vocabulary")] if given[0] == "train" else []
    refused(main, [*given, *vocabulary], words, tmp_path)
