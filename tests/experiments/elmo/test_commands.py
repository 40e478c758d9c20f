"""Tests of ELMo's commands: training, evaluation, embedding and tasks over its vectors."""

import json
import pathlib

import numpy as np
import pytest

from experiments.commands import main
from macaron_tf import load
from macaron_tf.training.progress import read_lines
from tests.toys.pretraining import flags
from tests.toys.runs import elmo
from tests.toys.tasks import write_table

COLOURS = ("red", "blue", "green")
TAGS = {"red": "B-PER", "blue": "B-LOC", "green": "B-ORG"}


def drawn(count: int, seed: int) -> list[tuple[int, str]]:
    """Returns random pairs of a number and its colour."""
    return [(n, COLOURS[n]) for n in np.random.default_rng(seed).integers(0, 3, count)]


def conll(pairs: list[tuple[int, str]]) -> str:
    """Returns sentences in which colours are entities."""
    return "".join(f"{n} O\n{colour} {TAGS[colour]}\n\n" for n, colour in pairs)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    """Returns a source of documents in which each number is followed by its colour."""
    lines = [
        " and ".join(f"{n} {colour}" for n, colour in drawn(4, number)) + " ."
        for number in range(120)
    ]
    file = tmp_path_factory.mktemp("text") / "colours.txt"
    file.write_text("\n".join(lines) + "\n")
    return f"text-lines:{file}"


@pytest.fixture(scope="module")
def command(text, tmp_path_factory) -> list[str]:
    train, recipe, _, *small = elmo(lambda _: text)
    settings = ["model.lstm_dim=12", "model.projection_dim=8", "model.max_characters=7"]
    training = ["max_steps=60", "warmup_steps=5", "learning_rate=0.02", "validate_every=30"]
    settings += [f"training.{setting}" for setting in (*training, "log_every=30")]
    run = str(tmp_path_factory.mktemp("runs") / "elmo")
    return [train, recipe, run, *small, *flags(settings)]


@pytest.fixture(scope="module")
def run(command) -> str:
    assert main(command) == 0
    return command[2]


def test_it_learns_what_follows_and_what_precedes(run, command, capsys):
    lines = read_lines(f"{run}/metrics.jsonl")
    first, last = (line for line in lines if line["kind"] == "validation")
    assert last["forward"] < first["forward"] and last["backward"] < first["backward"]
    assert last["perplexity"] < 7
    assert main(["evaluate", run, "--checkpoint", "last"]) == 0
    assert f"{last['perplexity']:.5f}"[:6] in capsys.readouterr().out
    assert main([*command, "--set", "model.clip=1.0"]) == 2
    assert "was trained with" in capsys.readouterr().err


def test_another_text_is_not_scored_as_the_held_out_one(text, run, capsys):
    file = pathlib.Path(text.removeprefix("text-lines:"))
    before = file.read_text()
    file.write_text("0 red .\n" + before)
    assert main(["evaluate", run]) == 2
    assert "the training data differ from" in capsys.readouterr().err
    file.write_text(before)


@pytest.mark.slow  # tests/export/test_every_text.py compares exports
def test_words_are_embedded_by_command(run, tmp_path, ran):
    lines, out = ["0 red and 1 blue.", "2", "0 red " * 1500, ""], tmp_path / "v.npz"
    (tmp_path / "lines.txt").write_text("\n".join([*lines, "1"]) + "\n")
    words = ["predict", run, "--input", tmp_path / "lines.txt", "--output", out]
    ran(main, *words)
    found = np.load(out)
    for number, answer in enumerate(load(run).predict([*lines, "1"])):
        assert found[f"words_{number}"].tolist() == answer["words"]
        if answer["words"]:
            np.testing.assert_allclose(found[f"line_{number}"], answer["vectors"], atol=1e-5)
    assert [*found["words_0"]] == ["0", "red", "and", "1", "blue", "."]
    assert [found[f"line_{n}"].shape for n in (2, 3, 4)] == [(n, 3, 16) for n in (3000, 0, 1)]
    ran(main, *words, "--set", "tokenized=True")
    assert np.load(out)["words_0"][-1] == "blue."


def colour_tables(folder) -> dict[str, list[str]]:
    """Writes task files about colours; returns a dict mapping task names to settings."""
    for split, count in (("train", 160), ("validation", 24), ("dev", 25)):
        pairs, paragraphs, rows = drawn(count, count), [], []
        for number, (n, colour) in enumerate(pairs):
            text, answers = f"{n} {colour} and 1 blue .", [{"text": colour, "answer_start": 2}]
            rows.append((text, colour))
            question = {"id": f"{number}", "question": f"{n} ?", "answers": answers}
            paragraphs.append({"context": text, "qas": [question]})
        write_table(folder / f"{split}.tsv", rows, "text\tlabel")
        (folder / f"{split}.conll").write_text(conll(pairs))
        (folder / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return {
        "classify": [f"source=tsv:{folder}/{{split}}.tsv"],
        "conll2003": [f"source=conll:{folder}/{{split}}.conll"],
        "squad": [f"source=squad:{folder}/{{split}}.json", "spans.max_question=4"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "conll2003", "squad"])
def test_tasks_are_learnt_over_its_vectors(run, task, tmp_path, ran, answered):
    out, tables = tmp_path / "run", colour_tables(tmp_path)[task]
    small = ["epochs=4", "batch_size=8", "words.lstm_dim=12", "words.word_dim=6", "max_length=20"]
    small += ["training.learning_rate=0.02", "words.dropout=0.0"]
    words = ["train", f"finetune_elmo:{task}", out, "--init", run, *flags([*small, *tables])]
    assert "best validation" in ran(main, *words).out
    line = "0 red and 1 blue . zz"
    text = f"0 ?\t{line}" if task == "squad" else line
    expected = "0\tO\nred\tB-PER\n" if task == "conll2003" else "red\t"
    assert answered(main, "predict", out, text=text).startswith(expected)


def test_bad_input_is_named(run, tmp_path, refused):
    (tmp_path / "one.txt").write_text("a few words\n")
    new, own = tmp_path / "new", ["--set", "words.max_characters=9"]
    one = ["--set", f"sources=text:{tmp_path}/one.txt"]
    for words, message in (
        (["train", "elmo_tiny", new, *one], "the only document is held out"),
        (["train", "finetune:copa", new, "--init", run], "has choices, which ELMo does not supp"),
        (["train", "finetune:rte", new, "--init", run, *own], "give --init instead"),
        (
            ["train", "finetune:rte", new, "--set", "model=elmo_tiny", "--vocabulary", run],
            "--init RUN",
        ),
    ):
        refused(main, words, message, tmp_path)
