"""The paper's figures and tables, in seconds, on toy languages."""

import json

import pytest

import experiments.finetune.__main__
import experiments.pretrain.__main__
from experiments import studies
from experiments.swish_rnn.__main__ import main
from macaron_tf.errors import UserError
from tests.experiments.pretraining_toy import flags, toy_settings, write_documents
from tests.experiments.task_toys import write_toy


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Settings, a corpus and a task's table."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "documents").mkdir()
    settings = toy_settings(write_documents(folder / "documents"), steps=20)
    settings.append("training.validate_every=10")
    corpus = str(folder / "corpus")
    assert (
        experiments.pretrain.__main__.main(["prepare", "bert_tiny", corpus, *flags(settings)]) == 0
    )
    finetune = ["training.max_steps=10", "training.validate_every=10"]
    finetune += ["max_length=16", "training.schedule=constant"]
    return settings, corpus, ("sst2", write_toy(folder), finetune)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Each run's own process takes ten seconds to start; counts the commands."""
    calls = []

    def command(script, *words, log=None):
        calls.append((script, *words))
        if getattr(experiments, script).__main__.main(list(words)):
            raise UserError("failed")

    monkeypatch.setattr(studies, "command", command)
    return calls


def test_curves_are_means_over_seeds_and_are_not_trained_twice(toy, tmp_path, in_this_process):
    settings, corpus, _ = toy
    arguments = ["curves", str(tmp_path), "--corpus", corpus, "--seeds", "1", "2"]
    arguments += ["--recipes", "bert_rab_tiny", "swish_rnn_tiny", *flags(settings)]
    assert main(arguments) == 0
    record = json.loads((tmp_path / "curves.json").read_text())
    assert [(row["recipe"], row["seed"]) for row in record["rows"]] == [
        ("bert_rab_tiny", 1),
        ("bert_rab_tiny", 2),
        ("swish_rnn_tiny", 1),
        ("swish_rnn_tiny", 2),
    ]
    assert [line["step"] for line in record["rows"][0]["curve"]] == [10, 20]
    losses = [row["loss"] for row in record["rows"][:2]]
    assert losses[0] != losses[1]
    text = (tmp_path / "curves.md").read_text()
    assert f"{sum(losses) / 2:.3f} ± {abs(losses[0] - losses[1]) / 2**0.5:.3f}" in text
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    trained = len(in_this_process)
    assert trained == 4
    assert main(arguments) == 0
    assert len(in_this_process) == trained


@pytest.mark.slow
def test_step_sizes_are_scored_and_timed(toy, tmp_path, capsys):
    settings, corpus, (task, source, finetune) = toy
    arguments = ["step-sizes", str(tmp_path), "--corpus", corpus, "--seeds", "1"]
    arguments += ["--sizes", "1", "1,2", "--tasks", task, "--source", source, *flags(settings)]
    for setting in finetune:
        arguments += ["--finetune-set", setting]
    assert main(arguments) == 0
    record = json.loads((tmp_path / "step_sizes.json").read_text())
    assert [row["name"] for row in record["rows"]] == ["bert_rab_tiny", "k=1", "k=1,2"]
    assert all(0 <= row["scores"][task] <= 1 for row in record["rows"])
    table = (tmp_path / "step_sizes.md").read_text()
    assert "| bert_rab_tiny | " in table and "| 1.00 |" in table
    assert (tmp_path / "step_sizes.png").exists()

    inits = [f"{name}={tmp_path}/{name}-1" for name in ("bert_rab_tiny", "k=1")]
    inits[1] = f"recurrent={tmp_path}/k=1-1"
    arguments = ["stability", str(tmp_path / "s"), "--init", *inits, "--learning-rates", "1e-3"]
    arguments += ["1e-2", "--seeds", "1", "2", "--tasks", task, "--source", source]
    for setting in finetune:
        arguments += ["--finetune-set", setting]
    assert main(arguments) == 0
    lines = json.loads((tmp_path / "s" / "stability.json").read_text())["combinations"]
    assert {(line["model"], line["learning_rate"]) for line in lines} == {
        (model, rate) for model in ("bert_rab_tiny", "recurrent") for rate in (1e-3, 1e-2)
    }
    assert f"| {task} | recurrent | " in (tmp_path / "s" / "stability.md").read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--recipes", "demo"], "demo is a recipe of kind 'translation'"),
        (["--set", "model.block=rnn"], "block='rnn' must be one of"),
        (["--set", "trainin.seed=1"], "there is no 'trainin' here"),
    ],
)
def test_bad_input_is_one_sentence(toy, tmp_path, capsys, more, words):
    out = tmp_path / "out"
    assert main(["curves", str(out), "--corpus", toy[1], *more]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert not out.exists()


def test_a_bad_step_size_is_named(toy, tmp_path, capsys):
    assert main(["step-sizes", str(tmp_path), "--corpus", toy[1], "--sizes", "1,0"]) == 2
    assert "--sizes 1,0: give whole numbers" in capsys.readouterr().err
