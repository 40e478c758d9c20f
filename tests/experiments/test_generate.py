"""Tests of language models on a toy language: completion, scoring and gaps.

Each document of the toy language repeats one letter.
"""

import re

import pytest

from experiments import registry
from experiments.commands import main
from macaron_tf.decoding import TextScorer
from macaron_tf.model import load
from tests.toys.pretraining import flags


@pytest.mark.quick
def test_predict_goes_on_with_what_the_model_has_learnt(language_run, ran):
    words = ["predict", language_run, "c c c c", "e e e", *flags(["temperature=0"])]
    lines = ran(main, *words).out.splitlines()
    assert len(lines) == 2
    for line, letter in zip(lines, "ce", strict=True):
        assert line.startswith(f"{letter} {letter} {letter}")
        assert line.count(letter) > len(line) / 3
    # KerasHub's name of the method
    model, options = load(language_run), {"temperature": 0.0, "max_tokens": 3}
    assert model.generate("c c c c", **options) == model.predict("c c c c", **options)


def test_score_says_how_likely_texts_are(language_run, tmp_path, ran, monkeypatch):
    (tmp_path / "a.txt").write_text("d d d d .\n\n  d d d d d .\n" * 9)
    (tmp_path / "b.txt").write_text("d q c z .\nx d y d w .\n" * 9)
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    out = ran(main, "score", language_run, *files).out
    usual, odd = re.findall(r"perplexity ([\d,.]+) per token, [\d,.]+ per word; ", out)
    assert 1 < float(usual) < float(odd.replace(",", ""))
    monkeypatch.setattr(TextScorer, "text_ids", lambda self, _: [self.vocabulary.special.unk, 9])
    said = ran(main, "score", language_run, *files[:1]).err
    assert "a.txt: 1 of 2 tokens are unknown to the vocabulary" in said


GAPS = [("iid_spans", [0, 1]), ("mass_style", [0, 0]), ("prefix_lm", [])]


@pytest.mark.parametrize(("kind", "taught"), GAPS)
def test_gaps_are_what_the_corruption_has_taught(kind, taught, t5_run, tmp_path, refused):
    recipe = registry.load("t5_tiny", settings=[f"objective.kind={kind}"])
    found = load(t5_run).with_card(sentinels=recipe.card()["sentinels"])
    first, row = found.vocabulary.size, found.task.generator.row("a [MASK] b [MASK] c")
    assert [number - first for number in row if number >= first] == taught
    if not taught:
        found.save_pretrained(tmp_path / "saved")
        words = "[MASK] cannot be filled, because objective.kind marks no gaps"
        refused(main, ["predict", tmp_path / "saved", "a [MASK] c"], words)
