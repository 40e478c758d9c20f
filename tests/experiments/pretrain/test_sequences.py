"""T5 and BART pre-trained by the command, on the language of letters."""

import json

import pytest

from experiments.finetune.init import read_init
from experiments.pretrain.__main__ import main
from experiments.pretrain.run import PretrainingRun
from macaron_tf.errors import UserError
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.training.progress import read_lines
from tests.experiments.pretraining_toy import prepare, toy_settings, train


@pytest.fixture(scope="module")
def corpus(source, tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("corpora") / "toy")
    return prepare("t5_tiny", folder, toy_settings(source, recipe="t5_tiny"))


@pytest.mark.parametrize(("recipe", "block"), [("t5_tiny", "macaron"), ("bart_tiny", "swish_rnn")])
def test_runs_resumes_and_validates(recipe, block, source, corpus, tmp_path, capsys):
    run, settings = tmp_path / "run", [*toy_settings(source, recipe=recipe), f"model.block={block}"]
    if recipe == "t5_tiny":  # stopped halfway and resumed: the same bits as without the stop
        assert train(recipe, run, corpus, [*settings, "training.max_steps=20"]) == 0
        assert train(recipe, tmp_path / "whole", corpus, settings) == 0
    assert train(recipe, run, corpus, settings) == 0
    if recipe == "t5_tiny":
        whole = tmp_path / "whole" / "metrics.jsonl"
        assert (run / "metrics.jsonl").read_bytes() == whole.read_bytes()
    assert "experiments.finetune" not in capsys.readouterr().out
    lines = read_lines(run / "metrics.jsonl")
    assert lines[-1]["kind"] == "validation" and lines[-1]["loss"] < lines[0]["loss"]
    assert main(["evaluate", str(run), "--corpus", corpus, "--checkpoint", "last"]) == 0
    [record] = [json.loads(path.read_text()) for path in (run / "scores").glob("*.json")]
    assert record["loss"] == pytest.approx(lines[-1]["loss"], abs=1e-5)
    opened = PretrainingRun.open(run)
    sentinels = SENTINEL_ROWS if recipe == "t5_tiny" else 0
    assert opened.build_network().config.vocab_size == opened.vocabulary.size + sentinels
    assert main(["fill", str(run), "a [MASK]"]) == 2
    assert "is an encoder-decoder and fills no [MASK]" in capsys.readouterr().err
    with pytest.raises(UserError, match="is an encoder-decoder: give a run of an encoder"):
        read_init(str(run))


@pytest.mark.parametrize(
    ("recipe", "setting", "words"),
    [
        ("t5_tiny", "model=bert_tiny", "model: bert_tiny is no encoder-decoder"),
        ("bert_tiny", "model=t5_tiny", "model: t5_tiny is no encoder"),
        ("bart_tiny", "corpus.sequence_length=512", "model.max_length is 256, less than"),
        ("t5_tiny", "corruption.rate=0.0", "corruption.rate=0.0 must be a number above 0"),
    ],
)
def test_bad_settings_are_refused(recipe, setting, words, tmp_path, refused):
    arguments = ["train", recipe, str(tmp_path / "run"), "--set", setting]
    refused(main, arguments, words, tmp_path)
