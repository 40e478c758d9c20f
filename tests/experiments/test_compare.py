"""Tests of the command `compare`, and of code that all studies share.

Fast tests use fake commands, and slow tests train on toy languages.
"""

import argparse
import itertools
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats

import macaron_tf
from experiments import registry, studies
from experiments.compare import trainers
from experiments.compare.arms import Arm
from experiments.compare.commands import main as compare
from experiments.compare.trainers import Finetuning, Pretraining
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError
from macaron_tf.runs import versions
from macaron_tf.runs.pretraining import prepare_corpus
from tests.toys.marks import slow
from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags, prepare, toy_settings
from tests.toys.studies import is_figure, write_scores


def git(folder: pathlib.Path, *lines: str) -> None:
    """Runs git commands in a folder."""
    for line in lines:
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *line.split()]
        subprocess.run(words, check=True, capture_output=True, cwd=folder)


def test_a_commit_says_whether_files_were_edited_since(tmp_path, monkeypatch):
    result = tmp_path / "experiments" / "results" / "table.md"
    result.parent.mkdir(parents=True)
    (tmp_path / "a").write_text("1")
    result.write_text("1")
    git(tmp_path, "init", "add .", "commit -m a", "tag -a v1 -m 1")
    clean = versions.commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))  # as in a hook of another repository
    assert versions.commit(tmp_path) == clean
    monkeypatch.undo()
    result.write_text("2")  # a run's own result file
    assert versions.commit(tmp_path) == clean
    (tmp_path / "a").write_text("2")
    assert versions.commit(tmp_path) == f"{clean}-dirty"


also_real = pytest.mark.parametrize("calls", ["pretended", *slow("real")], indirect=True)
STRANG = "strang=bert_rab_tiny:model.scheme=channels/2, tokens, channels/2,model.norm=pre"


@pytest.fixture
def comparing(tmp_path, capsys):
    """Returns `comparing(*words)`, which runs a comparison in tmp_path or in the folder `out`.

    `comparing` returns the JSON record, the Markdown page and the printed output. If the command
    fails as expected, `comparing` returns the printed error.
    """

    def call(*words, out=tmp_path, status=0):
        assert compare([str(out), *words, "--jobs", "1"]) == status
        said = capsys.readouterr()
        if status:
            return said.err
        record = json.loads((out / "compare.json").read_text())
        return record, (out / "compare.md").read_text(), said.out

    return call


@pytest.fixture
def compared(study, study_corpus, comparing, monkeypatch):
    """Returns `compared(*words)`, which compares two encoders as `comparing` does."""
    monkeypatch.setattr(Pretraining, "chance_level", lambda self, rows: (5.0, "nothing is learnt"))
    chosen = ("training.learning_rate=", "model.hidden_dim=")
    small = flags([one for one in study if not one.startswith(chosen)])

    def call(*words, arms=("bert_rab_tiny", STRANG), status=0):
        return comparing(*arms, "--corpus", study_corpus, *small, *words, status=status)

    return call


def test_every_arm_takes_its_best_rate_by_other_seeds(calls, compared, tmp_path):
    record, text, _ = compared("--rates", "0.01", "0.02", "0.04", "9")
    tuning = [call for call in calls if call[2].endswith("-0")]
    assert len(tuning) == 2 * 4 and len(calls) == 2 * 4 + 2 * 3
    assert {row["rate"] for row in record["rows"]} == {0.02}
    assert [one["picked"] for one in record["tuning"]] == [0.02] * 2
    assert record["tuning_seeds"] == [0] and record["tuning"][0]["scores"]["9.0"] == [None]
    assert "| strang | 3.100 | 3.000 | 3.100 | diverged | 0.02 |" in text
    assert "with seed 0. These runs do not count" in text and "edge" not in text
    assert record["verdicts"][0]["word"] == "better" and "| **better** |" in text
    # Finished runs are not repeated, and an added rate is trained.
    calls.clear()
    _, text, _ = compared("--rates", "0.02", "0.04", "--seeds", "1", "2", "3", "4")
    assert {pathlib.Path(call[2]).name for call in calls} == {
        "bert_rab_tiny-lr0.02-4", "strang-lr0.02-4",
    }  # fmt: skip
    assert "**Best at the edge of the rates**: bert_rab_tiny (0.02, the least); strang" in text
    calls.clear()
    compared("--rates", "0.02", "0.04", "--tuning-seeds", "7", "8")
    assert {call[2].rpartition("-")[2] for call in calls} == {"7", "8"}
    words = "bert_rab_tiny diverged at every learning rate"
    assert words in compared("--rates", "9", "99", status=2)


def test_arms_are_compared_in_equal_time(calls, compared, tmp_path):
    slow = "slow=bert_rab_tiny:model.norm=pre"
    arms, steps = ("bert_rab_tiny", slow), ["--set", "training.max_steps=40"]
    record, text, _ = compared(*steps, "--equal", "time", arms=arms)
    timed = [call for call in calls if pathlib.Path(call[2]).parent.name == "timing"]
    assert len(timed) == 2 * 2 and all("training.max_steps=60" in call for call in timed)
    assert [row["updates"] for row in record["rows"]] == [40] * 3 + [20] * 3
    assert [(one["ratio"], one["updates"]) for one in record["timing"]] == [(1, 40), (2, 20)]
    settings = json.loads((tmp_path / "slow-1" / "recipe.json").read_text())["training"]
    assert (settings["max_steps"], settings["warmup_steps"]) == (20, 1)
    assert "| slow | 2000.0 | 2.000 | 20 |" in text
    assert not (tmp_path / "timing" / "slow-1").exists()
    # Measured times are kept.
    calls.clear()
    assert compared(*steps, "--equal", "time", arms=arms)[0]["rows"] == record["rows"]
    assert not calls
    unsteady = arms[0], "unsteady=bert_rab_tiny:model.norm=pre"
    assert "cannot measure unsteady, because its two timings differ by 50%" in compared(
        *steps, "--equal", "time", arms=unsteady, status=2
    )
    kept = {file.stem for file in (tmp_path / "timing").glob("*.json")}
    assert kept == {f"{arm}-{turn}" for arm in ("bert_rab_tiny", "slow") for turn in (1, 2)}


@also_real
def test_arms_are_compared_with_equal_flops(calls, study, study_corpus, comparing, tmp_path):
    # Real updates have the same FLOPs in both arms.
    slow = "slow=bert_rab_tiny:model.norm=pre"
    steps = flags([*study, "training.max_steps=8", "training.validate_every=4"])
    words = ["--corpus", study_corpus, "--equal", "flops", "--seeds", "1", *steps]
    record, text, _ = comparing("bert_rab_tiny", slow, *words)
    counted = [call for call in calls if pathlib.Path(call[2]).parent.name == "flops"]
    assert len(counted) == 2 and all("training.max_steps=1" in call for call in counted)
    costs = [row["updates"] * row["flops_per_update"] for row in record["rows"]]
    assert costs[0] == costs[1] and record["rows"][0]["updates"] == 8
    assert [one["updates"] for one in record["timing"]] == [
        row["updates"] for row in record["rows"]
    ]
    assert "with as many FLOPs as the first arm" in text and "| GFLOP/update |" in text
    assert "in the FLOPs of 8 updates of bert_rab_tiny" in text
    error = comparing("bert_rab_tiny", slow, *words, "--equal", "time", "flops", status=2)
    assert "--equal time and --equal flops both choose the updates" in error


def test_warm_up_follows_the_updates_of_equal_flops(calls, compared, tmp_path):
    words = ["--set", "training.max_steps=40", "--equal", "flops"]
    slow = "slow=bert_rab_tiny:model.norm=pre"
    record, text, _ = compared(*words, arms=("bert_rab_tiny", slow))
    assert [(one["ratio"], one["updates"]) for one in record["timing"]] == [(1, 40), (2, 20)]
    settings = json.loads((tmp_path / "slow-1" / "recipe.json").read_text())["training"]
    assert (settings["max_steps"], settings["warmup_steps"]) == (20, 1)
    assert "| slow | 2 | 2.000 | 20 |" in text
    uncounted = "uncounted=bert_rab_tiny:model.norm=pre"
    error = compared(*words, arms=("bert_rab_tiny", uncounted), status=2)
    assert "--equal flops cannot count the FLOPs of uncounted" in error


def test_a_report_names_the_commits_that_trained_its_runs(calls, compared, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    record, text, _ = compared("--seeds", "1", "2")
    assert record["commit"] == record["your_commit"] == "" and "Not all runs" not in text
    assert f" by macaron_tf {macaron_tf.__version__}.\n" in text
    monkeypatch.undo()
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    git(tmp_path / "own", "init", "commit --allow-empty -m a")
    earlier = {"versions": {"version": "0.0.9", "commit": "abc1234", "your_commit": ""}}
    (tmp_path / "strang-2" / "model.json").write_text(json.dumps(earlier))
    record, text, _ = compared("--seeds", "1", "2")
    assert len(calls) == 4  # no run is trained again
    assert record["your_commit"] == versions.commit(tmp_path / "own") != record["commit"]
    assert f"; your own files at commit {record['your_commit']}.\n" in text
    assert ", 1 by macaron_tf 0.0.9 at commit abc1234.\n" in text


def test_the_chance_level_counts_rows_of_the_whole_corpus(tmp_path, monkeypatch):
    for index, letter in enumerate("aab"):  # the first rows contain only the letter a
        (tmp_path / f"{index}.txt").write_text("\n".join([f"{letter} {letter} ."] * 1500))
    settings = toy_settings(f"text:{tmp_path}/*.txt")
    settings += ["data.sequence_length=8", "data.vocabulary.size=11"]
    corpus = PretrainingCorpus.open(prepare("bert_tiny", str(tmp_path / "corpus"), settings))
    assert corpus.rows() > 1500
    options = argparse.Namespace(data_dir=None, download=False, trust_code=False)
    trainer = Pretraining(options)
    trainer.corpora, trainer.objectives = {"bert": corpus}, {"masked_language"}
    level, _ = trainer.chance_level([])
    # Probabilities of a, b and the full stop: 4/9, 2/9 and 3/9
    assert level == pytest.approx(-sum(p * math.log(p) for p in (4 / 9, 2 / 9, 3 / 9)), abs=0.02)
    monkeypatch.setattr(trainers, "_COUNTED_ROWS", 1024)
    assert trainer.chance_level([])[0] == pytest.approx(level, abs=0.02)


@also_real
def test_arms_are_compared_seed_by_seed_and_are_not_trained_twice(
    calls, study, study_corpus, comparing, tmp_path
):
    arguments = ["--corpus", study_corpus, "--seeds", "1", "2", *flags(study)]
    arguments += ["bert_rab_tiny", STRANG]
    record, text, _ = comparing(*arguments)
    rows = record["rows"]
    both = itertools.product(("bert_rab_tiny", "strang"), (1, 2))
    assert [(row["arm"], row["seed"]) for row in rows] == list(both)
    assert rows[0]["curve"].keys() == {"step", "loss"} and rows[0]["curve"]["step"] == [2, 4]
    assert all(row["parameters"] > 1000 and row["memory_mib"] > 1 for row in rows)
    losses = [row["loss"] for row in rows[:2]]
    assert losses[0] != losses[1]
    assert f"{sum(losses) / 2:.3f} ± {abs(losses[0] - losses[1]) / 2**0.5:.3f}" in text
    difference = sum(row["loss"] for row in rows[2:]) / 2 - sum(losses) / 2
    assert f"| {difference:+.3f} |" in text
    assert "strang: bert_rab_tiny, model.scheme=channels/2, tokens, channels/2, model.norm" in text
    # There are ten letters and a full stop; a sentence has 3 to 8 letters.
    assert 1.5 < record["guessing"] < 2.7
    assert f"| chance level |  |  |  |  | {record['guessing']:.3f} |" in text
    assert is_figure(tmp_path / "compare.png")
    comparing(*arguments)
    assert len(calls) == 4
    # An interrupted comparison resumes with the missing run.
    shutil.rmtree(tmp_path / "strang-2")
    comparing(*arguments)
    assert [call[2] for call in calls[4:]] == [str(tmp_path / "strang-2")]


def test_a_comparison_makes_its_corpus_and_says_who_learnt_little(
    calls, study, comparing, tmp_path
):
    arguments = ["bert_tiny", "b=bert_tiny:model.norm=pre", "--seeds", "1", *flags(study)]
    _, text, _ = comparing(*arguments)
    assert {call[4] for call in calls} == {str(tmp_path / "corpus")}
    assert "**bert_tiny, b: at chance level, raise training.max_steps" in text
    assert "| b |" in text and "| +0.000 |  |  | no verdict: fewer than 3 seeds |" in text
    settings = [*study, "data.validation_every=9"]
    prepare_corpus(registry.load("bert_tiny", settings=settings), str(tmp_path / "other"), None)
    error = comparing(*arguments, "--corpus", str(tmp_path / "other"), status=2)
    assert "bert_tiny-1: restore the data" in error
    # The comparison is between corpora.
    calls.clear()
    arguments[1] = "b=bert_tiny:data.validation_every=10,training.max_steps=6"
    words = [*arguments, "--differ", "data.validation_every"]
    _, text, _ = comparing(*words, out=tmp_path / "sizes")
    assert {pathlib.Path(call[4]).name for call in calls} == {"corpus", "corpus-b"}
    assert "**Budgets differ**: b has training.max_steps=6, bert_tiny 4." in text


def test_a_failed_command_s_last_words_are_in_the_error(tmp_path):
    words = "failed: --jobs=0 must be a whole number of at least 1; see .*1.log"
    with pytest.raises(UserError, match=words):
        studies.command("compare", "OUT", "--jobs", "0", log=tmp_path / "logs" / "1.log")


def test_arms_are_named_recipes_with_settings():
    for text, recipe, settings in (
        ("x=demo", "demo", ()),
        ("x=./mine.py:gpt:model.block=macaron", "./mine.py:gpt", ("model.block=macaron",)),
        ("x=package.module:NAME", "package.module:NAME", ()),
        ("x=finetune_bert:sst2:init=runs/a", "finetune_bert:sst2", ("init=runs/a",)),
        ("x=./mine.py:slow:rte:init=runs/a", "./mine.py:slow:rte", ("init=runs/a",)),
    ):
        assert Arm.parse(text) == Arm("x", recipe, settings)


@pytest.fixture
def sizeless(monkeypatch):
    """Leaves out what needs a task's data; returns the locations of the models that are read."""
    read = []
    monkeypatch.setattr(
        "experiments.compare.trainers.read_start",
        lambda location, trust_code: read.append(location),
    )
    monkeypatch.setattr(Finetuning, "chance_level", lambda self, rows: None)
    monkeypatch.setattr(Finetuning, "validation_size", lambda self, rows: "872 examples")
    return read


def test_each_seed_is_fine_tuned_from_a_pre_training_of_its_own(calls, sizeless, comparing):
    arms = ["one=finetune:sst2:init=runs/one-{seed}", "two=finetune:sst2:init=runs/two"]
    words = [*arms, "--seeds", "4", "5", "--rates", "1e-3", "3e-3"]
    comparing(*words)
    assert sizeless == ["runs/one-4", "runs/one-5", "runs/one-0", "runs/two"]
    runs = {pathlib.Path(call[2]).name: call[3:] for call in calls}
    inits = {name: call[1].removeprefix("init=") for name, call in runs.items()}
    assert {inits["one-lr0.001-4"], inits["one-lr0.001-5"]} == {"runs/one-4", "runs/one-5"}
    assert inits["one-lr0.001-0"] == "runs/one-0" and inits["two-lr0.001-5"] == "runs/two"
    rate = ("--set", "training.learning_rate=0.003", "--set", "training.seed=0", "--no-hints")
    assert runs["two-lr0.003-0"][2:] == rate and len(calls) == 2 * 2 + 2 * 2
    comparing(*words)
    assert len(calls) == 2 * 2 + 2 * 2  # no run is trained twice


def test_pre_trained_models_are_compared_on_several_tasks(calls, sizeless, comparing, monkeypatch):
    # Scores of seeds 1 to 3 on both tasks, and CoLA's accuracy, which has a column of its own.
    scores = {
        ("base", "cola"): (0.10, 0.12, 0.14),
        ("base", "rte"): (0.60, 0.62, 0.61),
        ("own", "cola"): (0.20, 0.23, 0.23),
        ("own", "rte"): (0.60, 0.60, 0.66),
    }

    def scores_of(self, arm, run, log):
        name, task, seed = run.name.split("-")
        score = scores[name, task][int(seed) - 1]
        return {"score": score, **({"accuracy": 0.5 + score} if task == "cola" else {})}

    monkeypatch.setattr(Finetuning, "scores", scores_of)
    levels = {"cola": (0.0, "one answer"), "rte": (0.5, "one answer")}
    monkeypatch.setattr(Finetuning, "chance_level", lambda self, rows: levels[rows[0]["task"]])
    arms = ["base=runs/a", "own=hugging-face:b:training.weight_decay=0.1"]
    record, text, _ = comparing(*arms, "--tasks", "cola", "rte", "--seeds", "1", "2", "3")
    assert {call[1] for call in calls} == {"finetune:cola", "finetune:rte"}
    assert len(calls) == 2 * 2 * 3
    [own] = [call for call in calls if call[2].endswith("own-rte-3")]
    assert {"init=hugging-face:b", "training.weight_decay=0.1"} < {*own}
    assert sizeless == ["runs/a", "hugging-face:b"]
    assert "| arm | cola | rte | cola accuracy | average | - base |" in text
    average = [np.mean([scores[arm, task] for task in levels], axis=0) for arm in ("own", "base")]
    test = scipy.stats.ttest_rel(*average)
    low, high = (f"{100 * end:+.1f}" for end in test.confidence_interval())
    row = f"| own | 22.0 ± 1.7 | 62.0 ± 3.5 | 72.0 ± 1.7 | **{100 * average[0].mean():.1f} ± "
    assert row in text and f"| {low} to {high} | {test.pvalue:.3f} |" in text
    assert "## cola" in text and "## rte" in text and "Chance level of rte, 50.0" in text
    verdicts = {(one["arm"], one["task"]): one for one in record["verdicts"]}
    # Holm's method counts the two tasks.
    cola = scipy.stats.ttest_rel(scores["own", "cola"], scores["base", "cola"]).pvalue
    assert verdicts["own", "cola"]["corrected"] == pytest.approx(2 * cola)
    assert verdicts["own", "cola"]["word"] == "better" and record["guessing"]["rte"] == 0.5


def translator_flags(source: str) -> list[str]:
    steps = ["validate_every=20", "save_every_steps=10", "warmup_steps=10"]
    return flags([*number_settings(source, 40), *(f"training.{step}" for step in steps)])


BLOCKS = [f"{one}=multi30k_{one}_tiny" for one in ("macaron", "transformer")]


@also_real
def test_two_blocks_are_compared(calls, number_text, comparing, tmp_path):
    arguments = [*BLOCKS, "--seeds", "1", *translator_flags(number_text)]
    record, _, table = comparing(*arguments)
    assert [row["arm"] for row in record["rows"]] == ["macaron", "transformer"]
    [test] = record["bootstrap"]
    assert test["arm"] == "transformer" and 0 < test["p_value"] <= 1
    assert "| macaron |" in table and "| transformer | 1 | " in table and "Signatures: " in table
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    assert [call[0] for call in calls] == ["train", "average", "evaluate"] * 2


def test_commands_of_an_arm_may_run_the_block_that_it_names(
    calls, number_text, comparing, tmp_path, monkeypatch
):
    block = "from macaron_tf.layers import MacaronBlock\nclass Mine(MacaronBlock):\n    pass\n"
    (tmp_path / "my_arm.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = "own=multi30k_macaron_tiny:model.block=my_arm:Mine"
    comparing(BLOCKS[0], own, "--seeds", "1", *translator_flags(number_text))
    trusting = [(call[0], "own" in call[1]) for call in calls if "--trust-code" in call]
    assert trusting == [("average", True), ("evaluate", True)]
    del sys.modules["my_arm"]


BLOCK = """
from macaron_tf.layers import Block
from macaron_tf.layers.scheme import Mix


class Mine(Block):
    scheme = (Mix("channels", step_size=0.5), Mix("tokens"))
"""


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """Changes to a folder with blocks of a user; returns the names of its files."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    recipe = "\n\ndef mine():\n    return gpt_quick()\n"
    recipe = f"from experiments.recipes.language_models import gpt_quick\n{BLOCK}{recipe}"
    files = {"quick_block": BLOCK, "two_uses": recipe, "broken": "import nowhere\n"}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    yield
    for name in files:
        sys.modules.pop(name, None)


@also_real
def test_the_file_of_a_block_is_an_arm(calls, blocks, source, comparing, tmp_path):
    steps = ["max_steps=4", "warmup_steps=2", "validate_every=2"]
    small = [*toy_settings(source), *(f"training.{step}" for step in steps)]
    words = ["own=quick_block.py:Mine", "--seeds", "1", *flags(small)]
    record, text, said = comparing(*words, out=tmp_path / "out")
    assert "no recipe is named: own against the Transformer in gpt_quick, on the text" in said
    assert [row["arm"] for row in record["rows"]] == ["transformer", "own"]
    assert "- own: gpt_quick, model.block=quick_block.py:Mine" in text
    assert [call[1] for call in calls] == ["gpt_quick"] * 2


def test_a_block_alone_is_judged_in_a_quick_recipe_on_a_small_text(blocks, capsys, monkeypatch):
    def parsed(*words):
        found = []

        def stop(self, recipes, out):
            found.extend([recipes, self.options.set])
            raise UserError("stop")

        monkeypatch.setattr(Pretraining, "prepare", stop)
        assert compare(["runs/own", *words]) == 2
        said = capsys.readouterr()
        return (*found, said.out) if found else said.err

    for word, name in (
        ("own=quick_block.py:Mine", "own"),
        ("quick_block.py:Mine", "Mine"),
        ("quick_block.py", "Mine"),
        ("quick_block:Mine", "Mine"),
    ):
        recipes, settings, said = parsed(word)
        assert [*recipes] == ["transformer", name] and settings == ["data.sources=homeassistant:en"]
        assert dict(recipes[name].model_options)["block"] == word.rpartition("=")[2]
        assert "on homeassistant:en, with seeds 1 2 3" in said
    # Settings and the recipe of another arm take precedence.
    recipes, settings, said = parsed("quick_block.py:Mine", "--data-dir", "data")
    assert settings == [] and "on the text of your options" in said
    recipes, settings, said = parsed("post=gpt_tiny:model.num_layers=1", "own=quick_block.py:Mine")
    assert dict(recipes["own"].model_options)["num_layers"] == 1
    assert settings == [] and "no recipe" not in said
    assert [*parsed("one=two_uses.py:mine", "two=two_uses.py:Mine")[0]] == ["one", "two"]
    for word, error in (
        ("own=quick_block.py:Mien", "quick_block.py:Mien names no subclass of .*Block: write"),
        ("own=quick_block.py:Mix", "names no subclass of .*write quick_block.py:Mine"),
        ("own=quick_blok.py:Mine", "there is no file quick_blok.py: check the path"),
        ("own=broken.py:Mine", "broken.py raised ModuleNotFoundError: .*nowhere"),
        ("own=two_uses.py:mien", "names no function: write two_uses.py:mine"),
    ):
        assert re.search(error, found := parsed(word)), found


STEPS = ["--seeds", "1", "--set", "training.max_steps=500"]


def test_a_comparison_goes_on_with_its_own_runs_and_scores(calls, comparing, tmp_path):
    # Evaluations by a user before the comparison are ignored.
    write_scores(tmp_path / "macaron-1" / "scores" / "0.json", "average", [500], 99.0)
    record, *_ = comparing(*BLOCKS, *STEPS)
    assert [row["bleu"] for row in record["rows"]] == [30.0] * 2
    calls.clear()
    comparing(*BLOCKS, *STEPS)
    assert not calls
    for setting, message in (
        ("training.max_steps=1000", "with training.max_steps=500, not 1000"),
        ("task.label_smoothing=0.2", "was trained with task.label_smoothing=0.1, not 0.2"),
        ("training.seed=7", "seed=7 is not allowed in this command: give --seeds"),
    ):
        assert message in comparing(*BLOCKS, *STEPS, "--set", setting, status=2) and not calls
