"""Tests of language models on a toy language: pre-training, completion, scoring.

Each document of the toy language repeats one letter.
"""

import json
import pathlib
import shutil

import pytest

from experiments import registry
from experiments.commands import main
from macaron_tf.decoding import TextScorer
from macaron_tf.model import load
from macaron_tf.runs.pretraining import PretrainingRecipe
from macaron_tf.training.progress import read_lines
from tests.toys.pretraining import flags


@pytest.mark.quick
def test_the_next_token_is_learnt(language_run, ran):
    run = pathlib.Path(language_run)
    lines = read_lines(run / "metrics.jsonl")
    assert lines[-1]["loss"] < lines[0]["loss"]
    output = ran(main, "evaluate", run, "--corpus", run.parent / "corpus").out
    scores = dict(line.split()[:2] for line in output.splitlines())
    # In nine of ten positions, only the letter before or a full stop can follow.
    assert float(scores["perplexity"]) < 4.0


@pytest.mark.quick
def test_predict_goes_on_with_what_the_model_has_learnt(language_run, ran):
    words = ["predict", language_run, "c c c c", "e e e", *flags(["temperature=0"])]
    lines = ran(main, *words).out.splitlines()
    assert len(lines) == 2
    for line, letter in zip(lines, "ce", strict=True):
        assert line.startswith(f"{letter} {letter} {letter}")
        assert line.count(letter) > len(line) / 3


@pytest.mark.slow
def test_a_seed_repeats_and_samples_count_up_from_it(language_run, ran):
    def sampled(seed, *more):
        settings = flags(["max_tokens=9", f"seed={seed}", *more])
        return ran(main, "predict", language_run, "", *settings).out.splitlines()

    first, second = sampled(4, "num_samples=2")
    assert [second] == sampled(5) and first != second


def test_score_says_how_likely_texts_are(language_run, tmp_path, ran, monkeypatch):
    (tmp_path / "a.txt").write_text("d d d d .\n\n  d d d d d .\n" * 9)
    (tmp_path / "b.txt").write_text("d q c z .\nx d y d w .\n" * 9)
    files = [tmp_path / "a.txt", tmp_path / "b.txt", "--output", tmp_path / "scores.json"]
    assert ran(main, "score", language_run, *files).out.count(" per word; ") == 2
    assert ran(main, "score", language_run, files[0], files[0]).out.count(" per word; ") == 2
    record = json.loads((tmp_path / "scores.json").read_text())
    usual, odd = record["files"]
    # Counts exclude indentation, empty lines and the last line's end.
    assert usual["words"] == 9 * 11 and usual["bytes"] == 9 * 22 - 1
    assert 1 < usual["token_perplexity"] < odd["token_perplexity"]
    monkeypatch.setattr(TextScorer, "text_ids", lambda self, _: [self.vocabulary.special.unk, 9])
    said = ran(main, "score", language_run, *files[:1]).err
    assert "a.txt: 1 of 2 tokens are unknown to the vocabulary" in said


def test_a_text_that_cannot_go_on_is_refused_in_a_sentence(
    language_run, number_run, t5_run, tmp_path, refused
):
    for arguments, words in (
        (["score", number_run, "a"], "is a translator, which"),
        (["score", t5_run, "a"], "which cannot score texts"),
        (["predict", tmp_path, "a"], "has no readable model.json"),
        (["predict", language_run, "a " * 40], "shorten to"),
        (["score", language_run, tmp_path / "none.txt"], "cannot read"),
    ):
        refused(main, arguments, words, tmp_path)


@pytest.mark.parametrize("kind", ["iid_spans", "mass_style", "prefix_lm"])
def test_gaps_are_what_the_corruption_has_taught(kind, t5_run, tmp_path, ran, refused):
    recipe = registry.load("t5_tiny", PretrainingRecipe, [f"objective.kind={kind}"])
    shutil.copytree(t5_run, tmp_path, dirs_exist_ok=True)
    model = json.loads((tmp_path / "model.json").read_text())
    model["card"]["sentinels"] = recipe.card()["sentinels"]
    (tmp_path / "model.json").write_text(json.dumps(model))
    generator = load(tmp_path).task.generator
    gaps = [number - generator.vocabulary.size for number in generator.row("a [MASK] b [MASK] c")]
    taught = {"iid_spans": [0, 1], "mass_style": [0, 0], "prefix_lm": []}[kind]
    assert [gap for gap in gaps if gap >= 0] == taught
    words = ["predict", tmp_path, "a [MASK] c", "--set", "max_tokens=2"]
    if taught:
        ran(main, *words)
    else:
        refused(main, words, "[MASK] cannot be filled, because objective.kind marks no gaps")
