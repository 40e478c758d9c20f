"""Tests of ELMo's commands: training, resumption, evaluation, embedding, tagging and export."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from experiments.commands import main
from experiments.elmo.run import ElmoRun, embed
from experiments.lab.elmo_tags import main as tag
from macaron_tf.engines import certificate
from macaron_tf.training.progress import read_lines
from tests.toys.pretraining import flags
from tests.toys.tasks import validations

COLOURS = ("red", "blue", "green")


@pytest.fixture(autouse=True)
def no_long_text(monkeypatch):
    """Leaves texts of 100 words or more out of the comparison that checks an export.

    Long texts are slow, because each word takes a step of four LSTMs in Python.
    """
    short = tuple(text for text in certificate.TEXTS if len(text.split()) < 100)
    monkeypatch.setattr(certificate, "TEXTS", short)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    """Returns a source of documents in which each number is followed by its colour."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(120):
        pairs = [f"{n} {COLOURS[n]}" for n in rng.integers(0, 3, 4)]
        lines.append(" and ".join(pairs) + " .")
    file = tmp_path_factory.mktemp("text") / "colours.txt"
    file.write_text("\n".join(lines) + "\n")
    return f"text-lines:{file}"


@pytest.fixture(scope="module")
def command(text, tmp_path_factory) -> list[str]:
    settings = {
        "sources": text,
        "batch_size": 8,
        "row_length": 10,
        "held_out": 6,
        "vocabulary_size": 7,
        "model.lstm_dim": 12,
        "model.projection_dim": 8,
        "model.filters": ((1, 4), (2, 4)),
        "model.max_characters": 7,
        "training.max_steps": 60,
        "training.warmup_steps": 5,
        "training.learning_rate": 0.02,
        "training.validate_every": 30,
        "training.log_every": 30,
    }
    run = str(tmp_path_factory.mktemp("runs") / "elmo")
    return ["train", "elmo_tiny", run, *flags([f"{n}={value}" for n, value in settings.items()])]


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


@pytest.mark.slow
def test_lines_of_any_length_are_embedded_alike(run):
    opened = ElmoRun.open(run)
    network = opened.load_network(opened.checkpoint("last"))
    lines = ["0 red and 1 blue", "2", "0 red " * 1500, "", "1"]
    together = list(embed(network, lines))
    assert [len(words) for words, _ in together] == [5, 1, 3000, 0, 1]
    for line, (words, vectors) in zip(lines, together, strict=True):
        [(alone, expected)] = embed(network, [line])
        assert alone == words
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.slow
def test_words_are_embedded_by_command_and_by_what_is_exported(run, tmp_path):
    from export.saved_model import main as export

    lines, out = ["0 red and 1 blue.", "2"], tmp_path / "v.npz"
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    words = ["predict", run, "--input", str(tmp_path / "lines.txt"), "--output", str(out)]
    assert main(words) == 0
    found = np.load(out)
    assert found["words_0"].tolist() == ["0", "red", "and", "1", "blue", "."]
    assert found["line_0"].shape == (6, 3, 16) and found["line_1"].shape == (1, 3, 16)
    assert export([run, str(tmp_path / "served")]) == 0
    serve = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    served = serve(text=tf.constant(lines))
    assert served["lengths"].numpy().tolist() == [6, 1]
    assert served["words"].numpy()[0].tolist() == [w.encode() for w in found["words_0"]]
    np.testing.assert_allclose(served["vectors"][0], found["line_0"], atol=1e-5)
    np.testing.assert_allclose(served["vectors"][1, :1], found["line_1"], atol=1e-5)
    assert not served["vectors"][1, 1:].numpy().any()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not UTF-8"):
        serve(text=tf.constant([b"\xff"]))


@pytest.mark.slow
def test_a_tagger_with_and_one_without(run, tmp_path, capsys):
    def sentences(count: int, seed: int) -> str:
        rng = np.random.default_rng(seed)
        tags = {"red": "B-PER", "blue": "B-LOC", "green": "B-ORG"}
        rows = ((n, COLOURS[n]) for n in rng.integers(0, 3, count))
        return "".join(f"{n} O\n{c} {tags[c]}\n\n" for n, c in rows)

    for split, count in (("train", 640), ("dev", 20)):
        (tmp_path / f"{split}.conll").write_text(sentences(count, count))
    words = [run, str(tmp_path / "out"), "--source", f"conll:{tmp_path}/{{split}}.conll"]
    words += ["--places", "input", "both"]
    assert tag([*words, "--epochs", "5"]) == 0
    shown = json.loads((tmp_path / "out" / "tagging.json").read_text())
    without, *having, both = shown["rows"]
    assert all(row["f1"] > 0.8 for row in (without, *having, both))
    assert without["layers"] == [] and having[0]["output_layers"] == []
    for layers in (having[0]["layers"], both["layers"], both["output_layers"]):
        assert len(layers) == 3 and sum(layers) == pytest.approx(1.0)
    assert both["layers"] != both["output_layers"]
    assert "points of F1" in (tmp_path / "out" / "tagging.md").read_text()
    capsys.readouterr()
    assert tag([*words, "--epochs", "5"]) == 0
    assert capsys.readouterr().out.count("complete") == 3
    assert tag([*words, "--epochs", "4"]) == 2
    assert "with --epochs=5, but this command has --epochs=4" in capsys.readouterr().err
    # Another split is scored with the epoch chosen on "dev". Its sentences have other tags here.
    (tmp_path / "test.conll").write_text(sentences(20, 20).replace("B-PER", "B-MISC"))
    words[1] = str(tmp_path / "test")
    assert tag([*words[:-3], "--epochs", "5", "--split", "test"]) == 0
    (row, _) = json.loads((tmp_path / "test" / "tagging.json").read_text())["rows"]
    judged = [line["f1"] for line in validations(tmp_path / "test" / "without-ELMo-1")]
    assert max(judged) == pytest.approx(without["f1"]) and row["f1"] < 0.8
    assert tag([*words, "--split", "train"]) == 2
    assert "trains the taggers: give --split dev" in capsys.readouterr().err


def test_neighbours_by_letters_and_by_context(run, text, capsys):
    words = ["neighbours", run, "red", "--in", "0 red and 1 blue .", "--source", text]
    assert main([*words, "--count", "2", "--limit", "40"]) == 0
    alone, empty, shown, *found = capsys.readouterr().out.splitlines()
    assert alone.startswith("red: ") and alone.count(",") == 1 and empty == ""
    assert shown == "0 [red] and 1 blue ."
    scores = [float(line.split()[0]) for line in found]
    assert len(found) == 2 and scores == sorted(scores, reverse=True)
    # The vectors depend on the context, so the nearest words follow "0" too.
    assert all("0 [red]" in line for line in found)


def colour_tables(folder) -> dict[str, list[str]]:
    """Writes task files about colours; returns a dict mapping task names to settings."""
    rng = np.random.default_rng(1)
    for split, count in (("train", 160), ("validation", 24), ("dev", 24)):
        rows = [(n, COLOURS[n]) for n in rng.integers(0, 3, count)]
        texts = [f"{n} {colour} and 1 blue ." for n, colour in rows]
        lines = [f"{text}\t{colour}" for text, (_, colour) in zip(texts, rows, strict=True)]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
        tags = {"red": "B-PER", "blue": "B-LOC", "green": "B-ORG"}
        lines = [f"{n} O\n{colour} {tags[colour]}\n" for n, colour in rows]
        (folder / f"{split}.conll").write_text("\n".join(lines))
        paragraphs = []
        for number, (text, (n, colour)) in enumerate(zip(texts, rows, strict=True)):
            question = {"id": f"{number}", "question": f"{n} ?"}
            question["answers"] = [{"text": colour, "answer_start": 2}]
            paragraphs.append({"context": text, "qas": [question]})
        document = json.dumps({"data": [{"paragraphs": paragraphs}]})
        (folder / f"{split}.json").write_text(document)
    return {
        "classify": [f"source=tsv:{folder}/{{split}}.tsv"],
        "conll2003": [f"source=conll:{folder}/{{split}}.conll"],
        "squad": [f"source=squad:{folder}/{{split}}.json", "spans.max_question=4"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "conll2003", "squad"])
def test_tasks_are_learnt_over_its_vectors(run, task, tmp_path, capsys):
    out, tables = str(tmp_path / "out"), colour_tables(tmp_path)[task]
    small = ["epochs=4", "batch_size=8", "words.lstm_dim=12", "words.word_dim=6", "max_length=20"]
    small += ["training.learning_rate=0.02", "words.dropout=0.0"]
    words = ["train", f"finetune_elmo:{task}", out, "--init", run]
    assert main([*words, *flags([*small, *tables])]) == 0
    assert "best validation" in capsys.readouterr().out
    line = "0 red and 1 blue . zz"
    lines = {"classify": line, "conll2003": line, "squad": f"0 ?\t{line}"}
    (tmp_path / "lines.txt").write_text(lines[task] + "\n")
    assert main(["predict", out, "--input", str(tmp_path / "lines.txt")]) == 0
    expected = "0\tO\nred\tB-PER\n" if task == "conll2003" else "red\t"
    assert capsys.readouterr().out.startswith(expected)
    if task == "classify":
        from export.saved_model import main as export

        assert export([out, str(tmp_path / "served")]) == 0
        served = tf.saved_model.load(str(tmp_path / "served" / "1"))
        answer = served.signatures["serving_default"](text=tf.constant([line, "1 zz", ""]))
        assert answer["label"].numpy().tolist()[:1] == [b"red"]


def test_bad_input_is_named(run, tmp_path, refused):
    (tmp_path / "one.txt").write_text("a few words\n")
    new = str(tmp_path / "new")
    for words, message in (
        (
            ["train", "elmo_tiny", new, "--set", f"sources=text:{tmp_path}/one.txt"],
            "the only document is held out",
        ),
        (["neighbours", run, "cat", "--in", "a dog"], "'a dog' does not contain the word 'cat'"),
    ):
        refused(main, words, message, tmp_path)
    own = ["--set", "words.max_characters=9"]
    for words, message in (
        (["finetune:copa", new, "--init", run], "copa has choices, which ELMo does not support"),
        (["finetune:rte", new, "--init", run, *own], "give --init instead"),
        (["finetune:rte", new, "--set", "model=elmo_tiny", "--vocabulary", run], "--init RUN"),
    ):
        refused(main, ["train", *words], message, tmp_path)
