"""The generation commands on a toy language: the first letter goes on to the end."""

import json
import pathlib
import shutil

import pytest

from experiments.generate.__main__ import main
from experiments.generate.run import open_model
from macaron_tf.decoding import GenerationConfig
from macaron_tf.errors import UserError


def test_complete_goes_on_with_what_the_model_has_learnt(language_run, capsys):
    assert main(["complete", language_run, "c c c c", "e e e", "--temperature", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line, letter in zip(lines, "ce", strict=True):
        assert line.startswith(f"{letter} {letter} {letter}")
        assert line.count(letter) > len(line) / 3


def test_a_seed_repeats_and_samples_count_up_from_it(language_run, capsys):
    arguments = ["sample", language_run, "--max-tokens", "9", "--seed"]

    def sampled(*more):
        assert main([*arguments, *more]) == 0
        return capsys.readouterr().out.splitlines()

    two = sampled("4", "--samples", "2")
    assert two == sampled("4") + sampled("5")
    assert len({*two, *sampled("6", "--samples", "2")}) > 1


def test_a_stream_says_what_complete_says(language_run):
    generator = open_model(language_run).generator()
    config = GenerationConfig(temperature=1.5, top_p=0.95, num_samples=2, max_tokens=8)
    texts = ["c c", "", "naïve ."]
    for text, completions in zip(texts, generator.complete(texts, config, seed=3), strict=True):
        for k, completion in enumerate(completions):
            assert "".join(generator.stream(text, config, seed=3 + k)) == completion.text
            assert 1 <= completion.length <= 8


def test_score_says_how_likely_texts_are(language_run, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("d d d d .\nd d d d d .\n" * 9)
    (tmp_path / "b.txt").write_text("d q c z .\nx d y d w .\n" * 9)
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    assert main(["score", language_run, *files, "--output", str(tmp_path / "scores.json")]) == 0
    assert capsys.readouterr().out.count(" a word; ") == 2
    record = json.loads((tmp_path / "scores.json").read_text())
    usual, odd = record["files"]
    # Without the last line's end.
    assert usual["words"] == 9 * 11 and usual["bytes"] == 9 * 22 - 1
    assert 1 < usual["token_perplexity"] < odd["token_perplexity"]


def test_a_text_that_cannot_go_on_is_refused_in_a_sentence(language_run, tmp_path, refused):
    other = tmp_path / "other"
    other.mkdir()
    (other / "recipe.json").write_text('{"kind": "translation"}')
    for arguments, words in (
        (["complete", str(other), "a"], "experiments.translate translate"),
        (["complete", str(tmp_path), "a"], "is not a run"),
        (["complete", language_run, "a " * 40], "shorten it"),
        (["complete", language_run, "a", "--top-p", "0"], "top_p"),
        (["sample", language_run, "--checkpoint", "9"], "has no checkpoint 9"),
        (["score", language_run, str(tmp_path / "none.txt")], "cannot read"),
        (["score", language_run, "x", "--stride", "0"], "--stride 0"),
    ):
        refused(main, arguments, words, tmp_path)


def test_a_masked_model_is_sent_to_fill(language_run, tmp_path):
    shutil.copytree(language_run, tmp_path, dirs_exist_ok=True)
    model = json.loads(pathlib.Path(language_run, "model.json").read_text())
    model["usage"]["objective"] = "masked_language"
    (tmp_path / "model.json").write_text(json.dumps(model))
    with pytest.raises(UserError, match="pretrain fill"):
        open_model(tmp_path)
