"""Tests of ELMo's commands: training, evaluation, embedding and tasks over its vectors."""

import json
import pathlib
import shutil

import pytest

from experiments.commands import main
from tests.toys.pretraining import flags
from tests.toys.runs import colours

TAGS = {"red": "B-PER", "blue": "B-LOC", "green": "B-ORG"}


def conll(pairs: list[tuple[int, str]]) -> str:
    """Returns sentences in which colours are entities."""
    return "".join(f"{n} O\n{colour} {TAGS[colour]}\n\n" for n, colour in pairs)


def test_another_text_is_not_scored_as_the_held_out_one(elmo_run, tmp_path, refused):
    run = shutil.copytree(elmo_run, tmp_path / "run")
    recipe = json.loads((run / "recipe.json").read_text())
    text = pathlib.Path(recipe["data"]["sources"][0].removeprefix("text-lines:")).read_text()
    (tmp_path / "other.txt").write_text("0 red .\n" + text)
    recipe["data"]["sources"] = [f"text-lines:{tmp_path}/other.txt"]
    (run / "recipe.json").write_text(json.dumps(recipe))
    refused(main, ["evaluate", run], "the training data differ from", tmp_path)


@pytest.mark.slow
def test_tokenized_text_is_split_at_spaces_alone(elmo_run, ran):
    words = ["predict", elmo_run, "0 red and blue.", "--json", "--set", "tokenized=True"]
    assert json.loads(ran(main, *words).out)["words"] == ["0", "red", "and", "blue."]


def colour_tables(folder) -> dict[str, list[str]]:
    """Writes task files about colours; returns a dict mapping task names to settings."""
    for split, count in (("train", 160), ("validation", 24), ("dev", 25)):
        pairs, questions = colours(count, count), []
        for number, (n, colour) in enumerate(pairs):
            text, answers = f"{n} {colour} and 1 blue .", {"text": [colour], "answer_start": [2]}
            fields = {"question": f"{n} ?", "context": text, "answers": answers}
            questions.append(json.dumps({"id": f"{number}", **fields}))
        (folder / f"{split}.conll").write_text(conll(pairs))
        (folder / f"{split}.jsonl").write_text("\n".join(questions))
    return {
        "conll2003": [f"data.source=conll:{folder}/{{split}}.conll"],
        "squad": [f"data.source=jsonl:{folder}/{{split}}.jsonl", "data.spans.max_question=4"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", ["conll2003", "squad"])
def test_tasks_are_learnt_over_its_vectors(elmo_run, task, tmp_path, ran, answered):
    out, tables = tmp_path / "run", colour_tables(tmp_path)[task]
    small = [
        "training.epochs=4",
        "data.batch_size=8",
        "task.words.lstm_dim=12",
        "task.words.word_dim=6",
        "data.max_length=20",
    ]
    small += ["training.learning_rate=0.02", "task.words.dropout=0.0"]
    words = ["train", f"finetune_elmo:{task}", out, "--init", elmo_run, *flags([*small, *tables])]
    assert "best validation" in ran(main, *words).out
    line = "0 red and 1 blue . zz"
    text, expected = (f"0 ?\t{line}", "red\t") if task == "squad" else (line, "0\tO\nred\tB-PER\n")
    assert answered(main, "predict", out, text=text).startswith(expected)
