"""Tests of the translation commands on number pairs: training, translation and evaluation."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import types

import pytest

from experiments import registry
from experiments.commands import main
from experiments.evaluation import translation as evaluation
from macaron_tf.data.sources.names import HeldOut
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.errors import UserError
from macaron_tf.runs.starts import TranslationStart
from macaron_tf.runs.translation import DataConfig
from macaron_tf.text import PieceVocabulary
from macaron_tf.training.progress import read_lines
from tests.toys.numbers import number_settings, write_numbers
from tests.toys.pretraining import flags
from tests.toys.tasks import validations


def train(run, settings, *arguments) -> int:
    """Trains a translator with settings that compile fast; returns the exit status."""
    settings = [*settings, "data.batching.shapes=1", "data.validation_lines=2"]
    return main(["train", "multi30k_macaron_tiny", str(run), *arguments, *flags(settings)])


def evaluated(run, folder, *arguments) -> list[dict]:
    """Evaluates a run, and returns the score records that were written to `folder`."""
    assert main(["evaluate", str(run), "--output", str(folder), *arguments]) == 0
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_it_learns_and_writes_what_it_measured(number_run):
    lines = read_lines(number_run / "metrics.jsonl")
    validated = validations(number_run)
    assert [line["step"] for line in validated] == [150, 300]
    assert validated[-1]["bleu"] > 80
    first = next(line for line in lines if line["kind"] == "train")
    assert {"loss", "nll", "perplexity", "learning_rate", "gradient_norm", "tokens"} <= {*first}
    assert (number_run / "average" / "model.weights.h5").exists()
    assert list((number_run / "tensorboard").rglob("events*"))


def test_evaluate_scores_and_keeps_the_outputs(number_run, tmp_path, capsys):
    [average] = evaluated(number_run, tmp_path / "average")
    assert "sacreBLEU" in capsys.readouterr().out
    assert average["checkpoint"] == "average"
    assert average["tokenized_bleu"] > 80
    assert len(average["hypotheses"]) == 40


def test_predict_writes_the_n_best_with_their_scores(number_run, answered, refused):
    text = "one two\n\nfour five\n"
    assert answered(main, "predict", number_run, text=text) == "eins zwei\n\nvier fünf\n"
    found = answered(main, "predict", number_run, "--set", "n_best=2", text=text)
    [first, _, _] = [line.split("\t") for line in found.splitlines()]
    assert first[1] == "eins zwei" and float(first[0]) >= float(first[2])
    words = "--set top_k=2 has no effect for a translator: set beam_size, n_best"
    refused(main, ["predict", number_run, "--set", "top_k=2"], words)


def save_vocabulary(folder, recipe: str, settings) -> None:
    """Trains the vocabulary of a translation recipe, and saves it in a folder."""
    TranslationStart().vocabulary(registry.load(recipe, settings=settings)).save(folder)


def test_another_vocabulary_is_refused(number_run, number_text, tmp_path, refused):
    out, settings = tmp_path / "vocabulary", flags(number_settings(number_text))
    save_vocabulary(out, "demo", number_settings(number_text))
    # The text and size are equal, but case is kept: the vocabulary differs from the run's.
    command = ["train", "multi30k_macaron_tiny", number_run, "--vocabulary", out, *settings]
    refused(
        main,
        [*command, "--set", "training.seed=2"],
        "the vocabulary was trained for normalization=",
    )
    keep = "data.normalization_rule=identity"
    fresh = ["train", "demo", tmp_path / "run", "--vocabulary", out]
    refused(main, [*fresh, *settings, "--set", keep], "'identity', but the vocabulary was not tr")
    assert not (tmp_path / "run").exists()
    save_vocabulary(tmp_path / "kept", "demo", [*number_settings(number_text), keep])
    assert PieceVocabulary.load(tmp_path / "kept").normalization_rule == "identity"


@pytest.mark.parametrize("language", ["zh", "th"])
def test_checkpoints_of_text_without_spaces_are_told_apart(language, tmp_path, monkeypatch, capsys):
    line = {"zh": "我们今天去公园散步吧。", "th": "วันนี้อากาศดีเราไปเดินเล่น"}[language]

    def pairs(run, data, judged, asked, score, *others, **options):
        raise UserError(f"{score([line for _, line in asked])} {score(['我们'] * len(asked))}")

    monkeypatch.setattr("macaron_tf.runs.translation.plan_of_pairs", pairs)
    (tmp_path / "validation.tsv").write_text(f"a\t{line}\n" * 9)
    (tmp_path / "train.tsv").write_text(f"{line}\t{line}\n" * 200)
    settings = number_settings(f"tsv:{tmp_path}/{{split}}.tsv")
    changes = [f"data.target_language={language}", "data.batching.max_tokens=64"]
    assert train(tmp_path / "run", [*settings, *changes, "data.vocabulary_size=36"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"'bleu': 100.0\d*, 'sacrebleu': 100.0\d*, .*'bleu': 0", error), error
    assert error.count("BLEU uses task.metric.tokenize=char, because the te") == (language == "th")


@pytest.fixture
def repeating(monkeypatch):
    """Replaces the translator of every run with a fake that repeats the source text."""

    def task(network, vocabulary, decoding):
        rows = lambda lines: [types.SimpleNamespace(best=lines, hypotheses=lines)]  # noqa: E731
        translator = types.SimpleNamespace(config=decoding, stream=rows)
        return types.SimpleNamespace(lines=lambda backward: translator)

    monkeypatch.setattr(evaluation, "Translation", task)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Returns a run of 10 updates: its `run`, `file`, `settings` and `held` (held-out pairs)."""
    folder = tmp_path_factory.mktemp("stopped")
    write_numbers(folder, 300, 40)
    file, run = folder / "train.tsv", str(folder / "run")
    settings, said = number_settings(f"tsv:{file}", steps=10), io.StringIO()
    with contextlib.redirect_stderr(said):
        assert train(run, settings) == 0
    held = read_pairs(f"tsv:{file}", HeldOut(0.1, 1), "en", "de")
    assert f"{len(held)} of 300 pairs are held out for validation" in said.getvalue()
    return types.SimpleNamespace(run=run, file=file, settings=settings, held=held)


def test_the_held_out_pairs_are_the_validation_split(stopped, tmp_path, refused, repeating):
    held = [pair[1] for pair in stopped.held]
    [scores] = evaluated(stopped.run, tmp_path / "scores")
    assert scores["split"] == "validation" and scores["references"] == held
    for words, split, count in (
        (["--split", "train"], "train", 300 - len(held)),
        (["--split", "all"], "all", 300),
        (["--source", f"tsv:{stopped.file.parent}/validation.tsv"], "all", 40),
    ):
        [scores] = evaluated(stopped.run, tmp_path / str(count), *words)
        assert (scores["split"], len(scores["references"])) == (split, count)
    refused(main, ["evaluate", stopped.run, "--split", "test"], "has no split 'test': give one")


def test_a_run_is_not_resumed_with_another_vocabulary(stopped, tmp_path, capsys):
    run, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(stopped.run, run)
    smaller = [*stopped.settings, "data.vocabulary_size=39"]
    save_vocabulary(other, "multi30k_macaron_tiny", smaller)
    shutil.rmtree(run / "vocabulary")
    os.rename(other, run / "vocabulary")
    assert train(run, stopped.settings) == 2
    assert "is not the run's vocabulary" in capsys.readouterr().err


def test_a_run_is_not_resumed_on_other_text(stopped, capsys):
    text = stopped.file.read_text()
    stopped.file.write_text("".join(f"one one one {n}\teins eins eins {n}\n" for n in range(300)))
    assert train(stopped.run, stopped.settings) == 2
    assert "the training data differ from" in capsys.readouterr().err
    stopped.file.write_text(text)


def test_nothing_is_held_out_where_it_is_not_asked():
    data = DataConfig("tsv:{split}.tsv", "en", "de")
    assert data.parts == {}
    data = dataclasses.replace(data, source="tsv:pairs.tsv")
    assert data.parts == {"train": HeldOut(0.1, 1, rest=True), "validation": HeldOut(0.1, 1)}
    for names in ("train", "train"), ("train", "all"), ("x", "validation"):
        asked = dataclasses.replace(data, train_split=names[0], validation_split=names[1])
        assert asked.parts == {}


def test_no_evaluation_overwrites_another(number_run, tmp_path, repeating):
    source, out = tmp_path / "a.tsv", tmp_path / "out"
    source.write_text("One two\tEins zwei\n")
    # The same evaluation again, other settings, another checkpoint, and other text of this name.
    for run, more, count in (
        (number_run, [], 1),
        (number_run, [], 1),
        (number_run, flags(["task.decoding.beam_size=2"]), 2),
        (f"{number_run}@300", [], 3),
        (number_run, flags(["task.metric.lowercase=False"]), 4),
    ):
        assert len(evaluated(run, out, "--source", f"tsv:{source}", *more)) == count
    source.write_text("three\tdrei\n")
    assert len(evaluated(number_run, out, "--source", f"tsv:{source}")) == 5
    names = [path.name for path in out.glob("*.json")]
    assert sum("a.tsv-all-average-beam5-" in name for name in names) == 3
