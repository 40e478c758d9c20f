"""Comparisons, and what studies share. In seconds with commands that only write their files, and in
earnest, on toy languages, where tests are slow.
"""

import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from experiments import registry, studies
from experiments.compare.__main__ import main as compare
from experiments.compare.comparison import _arms, _paired
from experiments.compare.kinds import Arm
from experiments.pretrain.corpus import prepare_corpus
from macaron_tf.errors import UserError
from tests.conftest import number_settings
from tests.experiments.pretraining_toy import flags
from tests.experiments.study_toy import TUNE, is_figure, rows_of, write_scores


def test_a_commit_says_whether_files_were_edited_since(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def git(*words):
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(line, check=True, capture_output=True)

    result = tmp_path / "experiments" / "results" / "table.md"
    result.parent.mkdir(parents=True)
    (tmp_path / "a").write_text("1")
    result.write_text("1")
    for words in (["init"], ["add", "."], ["commit", "-m", "a"], ["tag", "-a", "v1", "-m", "1"]):
        git(*words)
    clean = studies.commit()
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    result.write_text("2")  # a run's own
    assert studies.commit() == clean
    (tmp_path / "a").write_text("2")
    assert studies.commit() == f"{clean}-dirty"


STRANG = "strang=bert_rab_tiny:model.scheme=channels/2, tokens, channels/2,model.norm=pre"


def test_arms_are_compared_seed_by_seed_and_are_not_trained_twice(
    calls, study, study_corpus, tmp_path
):
    arguments = [str(tmp_path), "--corpus", study_corpus, "--seeds", "1", "2", "--jobs", "1"]
    arguments += ["bert_rab_tiny", STRANG, *flags(study[0])]
    assert compare(arguments) == 0
    record = json.loads((tmp_path / "compare.json").read_text())
    rows = record["rows"]
    both = itertools.product(("bert_rab_tiny", "strang"), (1, 2))
    assert [(row["arm"], row["seed"]) for row in rows] == list(both)
    assert [line["step"] for line in rows[0]["curve"]] == [2, 4]
    assert all(row["parameters"] > 1000 and row["memory_mib"] > 1 for row in rows)
    losses = [row["loss"] for row in rows[:2]]
    assert losses[0] != losses[1]
    text = (tmp_path / "compare.md").read_text()
    assert f"{sum(losses) / 2:.3f} ± {abs(losses[0] - losses[1]) / 2**0.5:.3f}" in text
    difference = sum(row["loss"] for row in rows[2:]) / 2 - sum(losses) / 2
    assert f"| {difference:+.3f} |" in text
    assert (
        "- strang: bert_rab_tiny, model.scheme=channels/2, tokens, channels/2, model.norm=pre"
        in text
    )
    # Ten letters and a full stop, a sentence of which has 3 to 8 letters.
    assert 1.5 < record["baseline"] < 2.7
    assert f"| guessing by frequency |  |  |  | {record['baseline']:.3f} |" in text
    assert is_figure(tmp_path / "compare.png")
    assert len(calls) == 4
    assert compare(arguments) == 0 and len(calls) == 4
    # An interrupted comparison goes on with the run that is missing.
    shutil.rmtree(tmp_path / "strang-2")
    assert compare(arguments) == 0
    assert [call[3] for call in calls[4:]] == [str(tmp_path / "strang-2")]


@pytest.mark.parametrize("calls", ["pretended"], indirect=True)
def test_a_comparison_makes_its_corpus_and_says_who_learnt_little(calls, study, tmp_path, capsys):
    arguments = [str(tmp_path), "bert_tiny", "b=bert_tiny:model.norm=pre", "--seeds", "1"]
    arguments += flags(study[0])
    assert compare(arguments) == 0
    assert {call[5] for call in calls} == {str(tmp_path / "corpus")}
    text = (tmp_path / "compare.md").read_text()
    assert "**bert_tiny, b learnt little else: raise training.max_steps" in text
    assert "Arms of one seed read the same batches" in text
    assert "| b |" in text and "| +0.000 | equal in 1 of 1 seeds: not decided |" in text
    settings = [*study[0], "corpus.validation_every=9"]
    prepare_corpus(registry.load("bert_tiny", settings=settings), str(tmp_path / "other"), None)
    assert compare([*arguments, "--corpus", str(tmp_path / "other")]) == 2
    assert "bert_tiny-1 was trained on: restore the text" in capsys.readouterr().err
    # Other corpora are what is compared.
    calls_before, arms = len(calls), ["bert_tiny", "b=bert_tiny:corpus.validation_every=10"]
    arms[1] += ",training.max_steps=6"
    words = ["--differ", "corpus.validation_every", "--seeds", "1"]
    assert compare([str(tmp_path / "sizes"), *arms, *words, *flags(study[0])]) == 0
    assert {pathlib.Path(call[5]).name for call in calls[calls_before:]} == {"corpus", "corpus-b"}
    budgets = "**Budgets differ**: b has training.max_steps=6, bert_tiny 4."
    assert budgets in (tmp_path / "sizes" / "compare.md").read_text()


@pytest.mark.parametrize("calls", ["pretended"], indirect=True)
def test_a_setting_goes_to_the_arms_that_read_it(calls, study, tmp_path, capsys):
    gate = "model.rnn_gate=sigmoid"
    arguments = ["bert_tiny", "b=bert_tiny:model.block=swish_rnn", "--seeds", "1", *flags(study[0])]
    assert compare([str(tmp_path), *arguments, "--set", gate]) == 0
    said = f"--set {gate}: no effect in bert_tiny, which goes without it\n"
    assert capsys.readouterr().out.count(said) == 1
    assert [gate in call for call in calls] == [False, True]
    assert f"{gate} (not in bert_tiny)" in (tmp_path / "compare.md").read_text()
    for words in (["--set", "model.clamp_length=3"], ["c=bert_tiny:model.clamp_length=3"]):
        arms = [*words, *arguments] if "=" in words[0] else [*arguments, *words]
        assert compare([str(tmp_path / "other"), *arms]) == 2
        assert "clamp_length has no effect here: positions=" in capsys.readouterr().err


CHILD = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)  # the second of two signals, see `Interruptions`
while open(f"/proc/{os.getppid()}/stat").read().rpartition(") ")[2][0] != "S":
    time.sleep(0.01)  # until the parent waits
os.kill(os.getppid(), signal.SIGINT)
time.sleep(0.5)  # twice what subprocess.run waits before it kills
open("saved", "w").close()
"""


def test_ctrl_c_waits_for_the_save_of_a_command(tmp_path, monkeypatch):
    """A terminal sends it to the study and to the training that the study has started."""
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "python").write_text(f"#!/bin/sh\nexec {sys.executable} child.py\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        studies.command("child")
    assert (tmp_path / "saved").exists()


def test_a_failed_command_s_last_words_are_in_the_error(tmp_path):
    words = "failed: --jobs 0: give .* or more, at most 2147483647; see .*1.log"
    with pytest.raises(UserError, match=words):
        studies.command("compare", "OUT", "--jobs", "0", log=tmp_path / "logs" / "1.log")


def test_a_verdict_needs_every_seed_and_a_small_p():
    first = [5.0, 5.1, 5.2]

    def verdict(differences, sign=-1):
        return _paired([a + b for a, b in zip(first, differences, strict=True)], first, sign)

    found = verdict([-0.1, -0.11, -0.12])
    assert found["verdict"] == f"lower in 3 of 3 seeds, p = {found['p']:.3f}: **better**"
    assert found["p"] < 0.05 and found["difference"] == pytest.approx(-0.11)
    assert verdict([0.1, 0.11, 0.12])["verdict"].endswith(": **worse**")
    assert verdict([0.1, 0.11, 0.12], sign=1)["verdict"].endswith(": **better**")
    unclear = verdict([-0.1, -0.5, -0.01])
    assert unclear["verdict"] == f"lower in 3 of 3 seeds, p = {unclear['p']:.3f}: not decided"
    assert verdict([-0.1, 0.05, -0.1])["verdict"].startswith("lower in 2 of 3 seeds, p = ")
    assert _paired([4.0], [5.0], -1)["verdict"] == "lower in 1 of 1 seeds: not decided"
    assert _paired(first, first, -1)["verdict"] == "equal in 3 of 3 seeds: not decided"


def test_arms_are_named_recipes_with_settings():
    scheme = "channels/2, tokens, channels/2"
    own, place = _arms([f"a-1=demo:model.scheme={scheme},training.max_steps=5", "demo"])
    assert own == Arm("a-1", "demo", (f"model.scheme={scheme}", "training.max_steps=5"))
    assert place == Arm("demo", "demo", ())
    parse = Arm.parse
    assert parse("x=./mine.py:gpt:model.block=macaron") == Arm(
        "x", "./mine.py:gpt", ("model.block=macaron",)
    )
    assert parse("x=./mine.py").recipe == "./mine.py"
    assert parse("x=package.module:NAME").recipe == "package.module:NAME"
    assert parse("sst2:init=runs/a").settings == ("init=runs/a",)


@pytest.mark.parametrize("calls", ["pretended"], indirect=True)
def test_fine_tunings_are_compared_by_the_grid(calls, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.compare.kinds.read_init", lambda place: None)
    arms = ["bert=sst2:init=runs/a", "swish=sst2:init=runs/b,training.learning_rate=1e-3,epochs=2"]
    arguments = [str(tmp_path), *arms, "--seeds", "1", "--set", "max_length=64", "--data-dir", "D"]
    assert compare([*arguments, "--set", "preset=bert"]) == 0
    last = calls[-1]
    assert last[:4] == ("finetune", "grid", "sst2", str(tmp_path / "swish-1"))
    words = " ".join(last[4:])
    for given in ("--init swish=runs/b", "--learning-rates 1e-3", "--epochs 2", "--seeds 1"):
        assert given in words
    assert "--preset bert" in words and "--data-dir D" in words and "--set max_length=64" in words
    assert "| bert | " in (tmp_path / "compare.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("calls", ["real"], indirect=True)
def test_fine_tunings_are_compared_in_earnest(calls, study, study_corpus, tmp_path):
    run = str(tmp_path / "bert")
    settings = [*study[0], "training.seed=1"]
    studies.command(
        "pretrain", "train", "bert_tiny", run, "--corpus", study_corpus, *flags(settings)
    )
    source = study[1][study[1].index("--source") + 1]
    arms = [f"low=sst2:init={run},training.learning_rate=1e-5", f"high=sst2:init={run}"]
    arguments = [str(tmp_path / "out"), *arms, "--seeds", "1", "2", "--jobs", "1"]
    assert compare([*arguments, *flags([*TUNE, f"source={source}"])]) == 0
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert all(0 <= row["score"] <= 1 and row["curve"] for row in rows) and len(rows) == 4


def test_two_blocks_are_compared(calls, number_text, tmp_path, capsys):
    settings = number_settings(number_text, 40) + ["training.validate_every=20"]
    settings += ["training.save_every_steps=10", "training.warmup_steps=10"]
    arguments = [str(tmp_path), "--seeds", "1", "--jobs", "1", *flags(settings)]
    arguments += [f"{one}=multi30k_{one}_tiny" for one in ("macaron", "transformer")]
    assert compare(arguments) == 0
    assert rows_of(tmp_path / "compare.json", "arm") == [("macaron",), ("transformer",)]
    [test] = json.loads((tmp_path / "compare.json").read_text())["bootstrap"]
    assert test["arm"] == "transformer" and 0 < test["p_value"] <= 1
    table = capsys.readouterr().out
    assert "| macaron |" in table and "| transformer | 1 | " in table and "Signatures: " in table
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    assert [call[1] for call in calls] == ["train", "average", "evaluate"] * 2
    assert compare(arguments) == 0 and len(calls) == 6


pretended = pytest.mark.parametrize("calls", ["pretended"], indirect=True)


@pretended
def test_arms_have_equal_parameters(calls, tmp_path, capsys):
    out = tmp_path / "out"

    def compared(*arms: str) -> int:
        words = [str(out), "--seeds", "1", "--equal-parameters", *arms]
        small = ["data.vocabulary_size=40", "model.hidden_dim=64", "training.max_steps=500"]
        small += ["model.num_encoder_layers=1", "model.num_decoder_layers=1"]
        return compare([*words, *flags(small)])

    one = "one=multi30k_macaron_tiny"
    for number, scheme in enumerate(
        ("tokens, channels width 1/3", "channels width 1, tokens, channels width 1")
    ):
        out = tmp_path / str(number)
        assert compared(one, f"other=multi30k_macaron_tiny:model.scheme={scheme}") == 0
        [[a], [b]] = rows_of(out / "compare.json", "parameters")
        assert abs(a - b) < 0.005 * a
        assert "other: multi30k_macaron_tiny, model.scheme=" in capsys.readouterr().out
    out, calls[:] = tmp_path / "refused", []
    tokens, same = "tokens", "channels step 1/2 width 1/2, tokens, channels/2"
    for arm, message in (
        (f"model.scheme={tokens}", "no feed_forward_dim gives other as many parameters as one"),
        (f"model.scheme={same}", "other spells the same training as one"),
        ("model.feed_forward_dim=9", "--equal-parameters chooses model.feed_forward_dim: leave it"),
    ):
        assert compared(one, f"other=multi30k_macaron_tiny:{arm}") == 2 and not calls
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and message in error


@pytest.fixture
def blocks(tmp_path):
    """Compares two translators."""
    arguments = [str(tmp_path), "--seeds", "1", "--set", "training.max_steps=500"]
    arms = ["macaron=multi30k_macaron_tiny", "transformer=multi30k_transformer_tiny"]
    return lambda *more: compare([*arguments, *(more or arms)])


@pretended
def test_the_comparison_takes_its_own_evaluations_alone(calls, blocks, tmp_path, capsys):
    # A person's evaluations from before the comparison are left out.
    write_scores(tmp_path / "macaron-1" / "scores" / "0.json", "average", [500], 99.0)
    assert blocks() == 0
    assert rows_of(tmp_path / "compare.json", "bleu") == [(30.0,), (30.0,)]
    own = tmp_path / "macaron-1" / "comparison"
    write_scores(own / "best.json", "step-00000500", [500])
    write_scores(own / "older.json", "average", [250])
    calls.clear()
    assert blocks() == 0 and not calls
    write_scores(own / "twice.json", "average", [500])
    assert blocks() == 2
    assert "holds 2 evaluations of the run's last average" in capsys.readouterr().err
    (own / "twice.json").write_text("{}")
    assert blocks() == 2
    assert "twice.json is damaged: remove it" in capsys.readouterr().err


@pretended
def test_the_comparison_refuses_a_run_of_other_settings(calls, blocks, capsys):
    assert blocks() == 0
    calls.clear()
    arms = ["macaron=multi30k_macaron_tiny", "transformer=multi30k_transformer_tiny"]
    for words, message in (
        (["--set", "training.max_steps=1000"], "with training.max_steps=500, not 1000"),
        (["--set", "label_smoothing=0.2"], "was trained with label_smoothing=0.1, not 0.2"),
        (["--set", "training.seed=7"], "--set training.seed=7: give --seeds instead"),
        (["--corpus", "DIR"], "--corpus DIR: only pre-trainings read one"),
        (["--tasks", "rte"], "--tasks rte: only pre-trainings are fine-tuned on them"),
    ):
        assert blocks(*arms, *words) == 2 and not calls
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_bad_arms_are_one_sentence(study_corpus, tmp_path, refused):
    pair = ["bert_tiny", "b=bert_tiny"]
    for words, message in (
        (["a/b=demo"], "'a/b=demo': name it by letters"),
        (["demo"], "'demo' is one arm: give two or more"),
        (["demo", "demo:a=b"], "two arms are called demo: give NAME=demo:PATH=VALUE"),
        (["demo", "b=bert_tiny"], "demo and b are of two kinds, translation and pretraining"),
        (["elmo_tiny", "b=elmo_tiny"], "elmo_tiny is a recipe of kind"),
        ([*pair, "--set", "model.block=rnn"], "block='rnn' must be one of"),
        ([*pair, "--set", "trainin.seed=1"], "there is no 'trainin' here"),
        ([*pair, "--seeds", "1", "1"], "--seeds 1 1: give each once"),
        (["bert_tiny", "b=bert_tiny:training.seed=2"], "b: leave out training.seed"),
        (["bert_tiny", "b=bert_tiny:init=runs/a"], "b: leave out init=runs/a"),
        (["bert_tiny", "b=bert_tiny:masking.rate=0.3"], "b has masking.rate=0.3, bert_tiny 0.15"),
        (["bert_tiny", "gpt_tiny"], "arms read equal text; give both the same, or --differ"),
        (
            ["bert_tiny", "gpt_tiny", "--differ", "corpus.langages"],
            "--differ corpus.langages is no setting of the text; perhaps you meant 'corpus.languag",
        ),
        (
            ["bert_tiny", "gpt_tiny", "--differ", "training.seed"],
            "--differ training.seed is no setting of the text",
        ),
        (["a=sst2", "b=sst2:init=runs/a"], "a: give the weights to start with, as in"),
        (["a=sst2:init=r", "b=rte:init=r"], "b has task='rte', a 'sst2'"),
        (["a=sst2:init=r", "b=sst2:init=q"], "r is no run: it has no model.json"),
    ):
        refused(compare, [str(tmp_path / "out"), *words], message, tmp_path)
    refused(compare, [str(tmp_path / "out"), *pair, "--corpus", study_corpus], "length", tmp_path)
