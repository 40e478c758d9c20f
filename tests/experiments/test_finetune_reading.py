"""Questions and tags: the commands, from files to scores, answers and a grid of mixed kinds."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.finetune.__main__ import main
from experiments.finetune.kinds import Limits, SpanLimits, kind_of
from experiments.finetune.recipe import preset
from experiments.finetune.run import FinetuningRun
from macaron_tf.data.tasks.definitions import TASKS, get_task
from macaron_tf.training.progress import read_lines
from tests.experiments.task_toys import (
    NAMES,
    assert_same_weights,
    not_yet_trained,
    reading_flags,
    squad_document,
    without,
    write_reading,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files, and a run of each kind."""
    folder = tmp_path_factory.mktemp("reading")
    write_reading(folder, unanswerable=True)
    for task in ("squad2", "conll2003"):
        assert main(["train", task, str(folder / task), *reading_flags(folder, task)]) == 0
    return folder


def test_they_learn_and_say_what_they_measured(folder):
    for task, least in (("squad2", 0.9), ("conll2003", 0.9)):
        lines = read_lines(folder / task / "metrics.jsonl")
        last = [line for line in lines if line["kind"] == "validation"][-1]
        names = {*get_task(task).metrics, *get_task(task).more_metrics}
        assert names <= set(last) and last["score"] > least
        assert last["loss"] < 1
        result = FinetuningRun.open(folder / task).result()
        assert result.best_score == max(
            line["score"] for line in lines if line["kind"] == "validation"
        )


def test_evaluate_writes_what_official_scripts_read(folder, tmp_path, capsys):
    said = {}
    for task in ("squad2", "conll2003"):
        assert main(["evaluate", str(folder / task), "--output", str(tmp_path / task)]) == 0
        (path,) = (tmp_path / task).glob("*.json")
        said[task] = json.loads(path.read_text())
        result = FinetuningRun.open(folder / task).result()
        assert said[task]["metrics"]["score"] == result.best_score
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
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    arguments = ["predict", str(folder / "squad2"), "--input", str(source)]
    assert main([*arguments, "--output", str(target)]) == 0
    rows = [line.split("\t") for line in target.read_text(encoding="utf-8").splitlines()]
    assert [row[0] for row in rows] == ["Ann", "O\u0301slo", "BONN", ""]
    for line, (answer, probability, start, end) in zip(lines, rows, strict=True):
        assert line.split("\t")[1][int(start) : int(end)] == answer
        assert 0 < float(probability) <= 1
    records = [dict(zip(("question", "context"), line.split("\t"), strict=True)) for line in lines]
    source.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    before = target.read_bytes()
    assert main([*arguments, "--output", str(target)]) == 0
    assert target.read_bytes() == before


def test_predict_tags_every_word(folder, tmp_path):
    lines = ["old red Bobs saw the Oslo", "", "\u200b cat", "cat " * 60 + "Anns"]
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run = str(folder / "conll2003")
    assert main(["predict", run, "--input", str(source), "--output", str(target)]) == 0
    sentences = target.read_text(encoding="utf-8").removesuffix("\n\n").split("\n\n")
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


def test_the_papers_numbers():
    def settings(name, task):
        recipe = preset(name, get_task(task))
        return (
            recipe.training.learning_rate,
            recipe.epochs,
            recipe.batch_size,
            recipe.max_length,
        )

    assert settings("bert", "squad") == (3e-5, 2, 32, 384)
    assert settings("bert", "squad2") == (3e-5, 2, 48, 384)
    assert settings("bert", "conll2003") == (5e-5, 3, 32, 128)
    assert settings("spanbert", "squad2") == (2e-5, 4, 32, 512)
    assert settings("macaron", "squad")[3] == 384
    assert preset("bert", get_task("squad")).limits == Limits(384, SpanLimits(128, 64, 30))


def test_a_diverged_models_outputs_score_nan(folder):
    run = FinetuningRun.open(folder / "conll2003")
    predictor = run.predictor()
    examples = kind_of(run.task).read("dev", None, False, run.recipe.source)
    outputs = predictor.of_examples(examples)
    outputs[3][0, 0] = np.nan
    metrics = predictor.kind.measure(outputs, examples)
    assert all(np.isnan(value) for value in metrics.values())
    run = FinetuningRun.open(folder / "squad2")
    predictor = run.predictor()
    examples = kind_of(run.task).read("validation", None, False, run.recipe.source)
    for weight in predictor.network.head.weights:
        weight.assign(weight * np.nan)
    metrics = predictor.kind.measure(predictor.of_examples(examples), examples)
    assert all(np.isnan(value) for value in metrics.values())


MISTAKES = (
    "offset, no start, no context, no question, no answers, no answer, no data, nothing, "
    "stride, short, tag, alone, no sentence, source, columns, json, submit, baseline"
)


def bad(name, folder, tmp_path):
    """A command line with one mistake, and the words its error must hold."""

    def squad(change, task="squad"):
        document = squad_document([("the old cat", "a7", "Who?", [("cat", 8)])])
        paragraph = document["data"][0]["paragraphs"][0]
        change(document, paragraph, paragraph["qas"][0])
        for split in ("train", "validation"):
            (tmp_path / f"{split}.json").write_text(json.dumps(document))
        run = str(tmp_path / "run")
        return ["train", task, run, *reading_flags(tmp_path, task), *vocabulary]

    def conll(text):
        for split in ("train", "dev"):
            (tmp_path / f"{split}.txt").write_text(text)
        run = str(tmp_path / "run")
        return ["train", "conll2003", run, *reading_flags(tmp_path, "conll2003"), *vocabulary]

    def lines(task, text):
        (tmp_path / "in.txt").write_text(text)
        return ["predict", str(folder / task), "--input", str(tmp_path / "in.txt")]

    vocabulary = ["--vocabulary", str(folder / "vocabulary")]
    offset = lambda d, p, q: q["answers"][0].update(answer_start=7)  # noqa: E731
    return {
        "offset": lambda: (squad(offset), "'a7': the answer 'cat' does not stand at character 7"),
        "no start": lambda: (
            squad(lambda d, p, q: q["answers"][0].pop("answer_start")),
            "data[0].paragraphs[0].qas[0]: the field 'answer_start'",
        ),
        "no context": lambda: (squad(lambda d, p, q: p.pop("context")), "field 'context'"),
        "no question": lambda: (squad(lambda d, p, q: q.update(question=" ")), "is empty"),
        "no answers": lambda: (squad(lambda d, p, q: q.pop("answers")), "'answers' is missing"),
        "no answer": lambda: (squad(lambda d, p, q: q.update(answers=[])), "the task squad2"),
        "no data": lambda: (squad(lambda d, p, q: d.pop("data")), "field 'data' is not a list"),
        "nothing": lambda: (squad(lambda d, p, q: d.update(data=[])), "holds no question"),
        "stride": lambda: (
            [*squad(lambda d, p, q: None), "--set", "spans.doc_stride=0"],
            "spans.doc_stride=0 must be",
        ),
        "short": lambda: (
            [*squad(lambda d, p, q: None), "--set", "max_length=7"],
            "a row of squad needs 8 or more",
        ),
        "tag": lambda: (conll("the O\ncat B-CAT\n"), "train.txt, line 2: the tag 'B-CAT'"),
        "alone": lambda: (conll("the O\n\ncat\n"), "line 3: 'cat' stands alone"),
        "no sentence": lambda: (conll("\n\n"), "holds no sentence"),
        "source": lambda: (
            [*conll("the O\n"), "--source", "tsv:x"],
            "unknown source 'tsv:x' of the task 'conll2003'",
        ),
        "columns": lambda: (lines("squad2", "Who?\ta\nWho? a\n"), "line 2: 1 columns, not 2"),
        "json": lambda: (lines("squad2", '{"question": "Who?"}\n'), "line 1 is no JSON object"),
        "submit": lambda: (
            ["submit", str(folder / "squad2"), str(tmp_path / "out")],
            "of which no server takes files",
        ),
        "baseline": lambda: (
            ["baseline", "squad2", "--source", f"squad:{folder}/{{split}}.json"],
            "no baseline for squad2",
        ),
    }[name]()


@pytest.mark.parametrize("name", MISTAKES.split(", "))
def test_bad_input_is_one_sentence_and_leaves_nothing(name, folder, tmp_path, refused):
    arguments, words = bad(name, folder, tmp_path)
    refused(main, arguments, words, tmp_path)
