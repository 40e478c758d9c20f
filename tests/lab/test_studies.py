"""Tests of the studies, with fake commands or, in slow tests, with real runs."""

import argparse
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import scipy.stats

from experiments import studies
from experiments.compare.__main__ import main as compare
from experiments.compare.trainers import Pretraining
from experiments.lab.slides import systems
from experiments.lab.slides.__main__ import main as slides
from experiments.lab.stability import main as stability
from macaron_tf.errors import UserError
from tests.toys.pretraining import flags
from tests.toys.studies import is_figure


def test_encoders_are_compared_and_not_trained_twice(calls, study, tmp_path, monkeypatch):
    settings, task = study
    pairs = (*systems.ENCODERS["pairs"][:2], "--differ", "corpus.pairs")
    small = {"tokens": systems.ENCODERS["tokens"], "pairs": pairs}
    monkeypatch.setattr(systems, "ENCODERS", small)
    monkeypatch.setattr(systems, "EVERY_SEED", ("tokens",))
    monkeypatch.setattr(systems, "TUNING", ())
    arguments = ["encoders", str(tmp_path), "--seeds", "1", "2", "--jobs", "1", *task]
    arguments += flags(settings)
    assert slides(arguments) == 0
    found = json.loads((tmp_path / "encoders.json").read_text())["comparisons"]
    assert [(row["arm"], row["seed"]) for row in found["tokens"]] == [
        *itertools.product(("BERT", "ELECTRA"), (1, 2))
    ]
    assert [(row["arm"], row["seed"]) for row in found["pairs"]] == [("order", 1), ("next", 1)]
    for row in (*found["tokens"], *found["pairs"]):
        assert 0 <= row["sst2"] <= 1 and row["mean pooling"] == 0.1
        assert row.get("Sentence-BERT") == (0.3 if row["arm"] == "BERT" else None)
    assert all(0 <= row["order"] <= 1 and 0 <= row["next"] <= 1 for row in found["pairs"])
    text = (tmp_path / "encoders.md").read_text()
    assert (
        "| replaced found % |" in text and "| sst2 |" in text and "| arm | seeds | order |" in text
    )
    assert "](tokens/compare.png)" in text and is_figure(tmp_path / "tokens" / "compare.png")
    trained = {call[3] for call in calls if call[:2] == ("pretrain", "train")}
    assert len(trained) == 6
    calls.clear()
    assert slides([*arguments, "--no-sentences"]) == 0
    assert {call[:2] for call in calls} == {("finetune", "grid"), *compared(tmp_path, small)}


def compared(out, names) -> set[tuple[str, str]]:
    return {("compare", str(out / name)) for name in names}


def test_decoders_are_compared_block_by_block(calls, study, tmp_path, monkeypatch):
    settings = [one for one in study[0] if one != "model.num_layers=1"]  # encoder-decoders have two
    few = ("--task", f"tsv:{tmp_path}/t.tsv", "--shots", "0", "1")
    (tmp_path / "t.tsv").write_text("question\tanswer\n" + "a a\ta\nb b\tb\n" * 4)
    sizes = [one for one in settings if one.startswith("vocabulary.size=")]
    found = {
        name: (*systems.DECODERS[name][:3:2], "--set", size)
        for name, size in (
            ("GPT-2", "vocabulary.size=264"),
            ("Transformer-XL", sizes[0]),
            ("T5", sizes[0]),
        )
    }
    for name, value in {"DECODERS": found, "FEW_SHOT": few, "MEMORIES": (8, 16)}.items():
        monkeypatch.setattr(systems, name, value)
    out = tmp_path / "study"
    arguments = ["decoders", str(out), "--seeds", "1", "2", "--jobs", "1"]
    arguments += flags([one for one in settings if one not in sizes])
    assert slides(arguments) == 0
    rows = json.loads((out / "decoders.json").read_text())["comparisons"]
    assert [(row["arm"], row["seed"]) for row in rows["GPT-2"]] == [
        ("transformer", 1),
        ("swish_rnn", 1),
    ]
    assert [row["seed"] for row in rows["T5"]] == [1, 2, 1, 2]
    assert all({"8", "16"} <= row.keys() for row in rows["Transformer-XL"])
    text = (out / "decoders.md").read_text()
    assert "| arm | seeds | 8 | 16 |" in text and "| t.tsv | f1 |" in text and "# Tagged" in text
    pictures = ("T5/compare", "memory", "few_shot/few_shot")
    assert is_figure(*(out / f"{name}.png" for name in pictures))
    calls.clear()
    assert slides(arguments) == 0
    assert {call[0] for call in calls} == {"compare", "elmo"}
    assert slides([*arguments, "--systems", "ELMo"]) == 0


def test_sentences_are_scored_before_and_after_training(calls, tmp_path):
    row = {"run": str(tmp_path / "run"), "arm": "BERT"}
    data = ["--data-dir", "DIR"]
    found = systems.sentence_scores(data, row)
    assert found == {"mean pooling": 0.1, "Sentence-BERT": 0.3}
    assert [words[1] for words in calls] == ["evaluate", "train", "evaluate"]
    trained = str(tmp_path / "run" / "sentences")
    assert calls[1][2:6] == ("stsb", trained, "--init", row["run"])
    assert all(words[-2:] == ("--data-dir", "DIR") for words in calls)
    calls.clear()
    assert systems.sentence_scores(data, row | {"arm": "gMLP"}) == {"mean pooling": 0.1}
    assert not calls


def test_sentences_are_pooled_and_concatenated_in_every_way(calls, tmp_path, capsys):
    arguments = ["sentences", str(tmp_path), "--init", "hugging-face:DIR", "--task", "rte"]
    arguments += ["--seeds", "1", "2", "--jobs", "1", "--set", "training.max_steps=5"]
    assert slides(arguments) == 0
    trained = [words for words in calls if words[1] == "train"]
    # Both halves of the table use mean pooling with (u, v, |u-v|), which is trained once.
    assert len(trained) == 2 * 12 and len(calls) == 2 * (12 + 15)
    assert all("normalize=False" in words and "training.max_steps=5" in words for words in trained)
    settings = {words[words.index("--pooling") + 1 :][:1] + words[-5:-4] for words in trained}
    assert ("max", "concatenation=u,v,|u-v|") in settings
    assert ("mean", "concatenation=|u-v|,u*v") in settings
    rows = json.loads((tmp_path / "sentences.json").read_text())["rows"]
    assert len({(*row["arm"], row["task"], row["seed"]) for row in rows}) == len(rows) == 30
    text = (tmp_path / "sentences.md").read_text()
    assert "| max | 10.00 ± 0.00 | 10.00 ± 0.00 | 10.00 ± 0.00 | - |" in text
    assert "| \\|u-v\\|,u*v | 10.00 ± 0.00 | - | - | - |" in text
    calls.clear()
    assert slides(arguments) == 0 and not calls
    assert slides([*arguments, "--init", "runs/b"]) == 2 and not calls
    said = capsys.readouterr().err
    assert "with --init='hugging-face:DIR', but this command has --init='runs/b'" in said
    # The untrained encoder has no settings.
    assert slides([*arguments, "--set", "training.max_steps=6"]) == 2 and not calls
    # Files are read in parallel, so the error may name any of them.
    assert "-1.json was made with --set" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_killed_study_stops_its_commands(number, tmp_path):
    (tmp_path / "python").write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\nexec sleep 100\n")
    (tmp_path / "python").chmod(0o755)
    code = (
        f"import sys; from experiments import studies; sys.executable = '{tmp_path}/python'\n"
        "studies.run_tasks(2, {name: lambda: studies.command('x') for name in 'abc'})"
    )
    study = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    started = tmp_path / "started"
    while not started.exists() or len(started.read_text().split()) < 2:
        assert study.poll() is None
        time.sleep(0.05)
    study.send_signal(number)
    assert study.wait(60) != 0
    processes = started.read_text().split()
    assert len(processes) == 2 and not any(map(os.path.exists, map("/proc/{}".format, processes)))


@pytest.mark.parametrize("known", [systems.ENCODERS, systems.DECODERS])
def test_every_comparison_is_one_that_compare_takes(known, monkeypatch, tmp_path, refused):
    def stop(*given):
        raise UserError("its arms are read")

    monkeypatch.setattr(Pretraining, "prepare", stop)
    for words in known.values():
        refused(compare, [str(tmp_path), *words], "its arms are read")


def test_the_papers_figures_are_means_over_seeds_and_are_not_trained_twice(
    calls, study, study_corpus, tmp_path
):
    settings, task = study
    # Table 2 and figure 3.
    out, rates = tmp_path / "steps", ["--learning-rates", "1e-3", "1e-2"]
    arms = ["bert_rab_tiny", "k1-2=swish_rnn_tiny:model.rnn_step_sizes=(1, 2)"]
    arguments = [str(out), *arms, "--corpus", study_corpus, "--seeds", "1", "--jobs", "1", *rates]
    arguments += [*task, *flags(settings)]
    assert compare(arguments) == 0
    trained = [call[3] for call in calls if call[0] == "pretrain"]
    assert compare(arguments) == 0
    assert [call[3] for call in calls if call[0] == "pretrain"] == trained and len(trained) == 2
    for row in json.loads((out / "compare.json").read_text())["rows"]:
        tuned = json.loads((pathlib.Path(row["run"]) / "tuned" / "grid.json").read_text())
        means = [line["mean"] for line in tuned["combinations"]]
        assert row["sst2"] == max(means) and len(means) == 2
    assert "| sst2 | - bert_rab_tiny |" in (out / "compare.md").read_text()
    inits = [f"bert={out}/bert_rab_tiny-1", f"k={out}/k1-2-1"]
    arguments = [str(out), "--init", *inits, *rates, "--seeds", "1", "2", *task]
    assert stability(arguments) == 0
    lines = json.loads((out / "stability.json").read_text())["combinations"]
    found = {(line["model"], line["learning_rate"]) for line in lines}
    assert found == set(itertools.product(("bert", "k"), (1e-3, 1e-2)))
    assert "| sst2 | k | " in (out / "stability.md").read_text()
    assert is_figure(out / "compare.png", out / "stability.png")


def test_the_swish_rnn_papers_tables_have_its_metrics_beside_the_scores(monkeypatch, tmp_path):
    def run(score, **metrics):
        return {"score": score, "metrics": metrics}

    cells = [
        ("cola", 1e-3, 0.4, [run(0.3, accuracy=0.8), run(0.5, accuracy=0.6)]),
        ("cola", 1e-2, 0.2, [run(0.2, accuracy=0.9), run(None)]),
        ("rte", 1e-3, 0.6, [run(0.6), run(0.6)]),
        ("rte", 1e-2, 0.5, [run(0.5), run(0.5)]),
    ]
    keys = ("task", "learning_rate", "mean", "runs")
    found = [dict(zip(keys, cell, strict=True), model="bert") for cell in cells]
    record = {"models": ["bert"], "combinations": found}
    monkeypatch.setattr(studies, "grid", lambda *words, **options: record)
    options = {"tasks": ["cola", "rte"], "learning_rates": None, "download": False}
    options |= {"data_dir": None, "source": None, "finetune_set": [], "trust_code": False}
    monkeypatch.setattr(Pretraining, "trust_flags", lambda self, run: [])
    scores = Pretraining(argparse.Namespace(**options))._finetuning_scores(tmp_path, None)
    assert scores == pytest.approx({"cola": 0.4, "rte": 0.6, "cola accuracy": 0.7})

    rates, seeds = ["--learning-rates", "1e-3", "1e-2"], ["--seeds", "1", "2"]
    words = [str(tmp_path), "--init", "bert=RUN", "--tasks", "cola", "rte"]
    assert stability([*words, *rates, *seeds]) == 0
    table = (tmp_path / "stability.md").read_text()
    assert "| cola | bert | 40.0 ± 14.1 | 10.0 ± 14.1 | 30.0 ± 28.3 |" in table
    assert "| cola accuracy | bert | 70.0 ± 14.1 | 45.0 ± 63.6 | 25.0 ± 49.5 |" in table
    assert "| mean | bert | 50.0 ± 7.1 | 30.0 ± 7.1 | 20.0 ± 14.1 |" in table


def test_stability_compares_falls_from_the_best_rate_and_each_seed_may_have_its_own_model(
    monkeypatch, tmp_path, refused
):
    # The scores of seeds 1 to 3. The falls are 0.30, 0.31, 0.35 ("own") and 0.10, 0.12, 0.13.
    table = {
        ("base", 1e-3): (0.70, 0.70, 0.70),
        ("base", 1e-2): (0.80, 0.82, 0.83),
        ("own", 1e-3): (0.80, 0.81, 0.82),
        ("own", 1e-2): (0.50, 0.50, 0.47),
        ("lost", 1e-3): (0.80, 0.52, 0.80),  # seed 2 is at chance level
        ("lost", 1e-2): (0.50, 0.50, 0.50),
    }
    grids = []

    def grid(tasks, out, *words, **options):
        seeds = list(map(int, words[words.index("--seeds") + 1 :]))
        inits = words[1 : words.index("--learning-rates")]
        grids.append((out.name, seeds, inits))
        combinations = [
            {
                "model": model,
                "learning_rate": rate,
                "task": "sst2",
                "runs": [{"run": "", "score": scores[seed - 1], "metrics": {}} for seed in seeds],
            }
            for (model, rate), scores in sorted(table.items())  # as `finetune grid` sorts them
        ]
        models = [init.partition("=")[0] for init in inits]
        return {"models": models, "combinations": combinations}

    monkeypatch.setattr(studies, "grid", grid)
    chance = "experiments.lab.stability.finetuning_chance_level"
    monkeypatch.setattr(chance, lambda run, tfds: (0.51, "the best class"))
    words = [str(tmp_path / "out"), "--tasks", "sst2", "--learning-rates", "1e-3", "1e-2"]
    words += ["--seeds", "1", "2", "3", "--init", "own=OWN-{seed}", "base=BASE", "lost=LOST"]
    assert stability(words) == 0
    assert grids == [
        (f"seed-{seed}", [seed], (f"own=OWN-{seed}", "base=BASE", "lost=LOST"))
        for seed in (1, 2, 3)
    ]
    report = (tmp_path / "out" / "stability.md").read_text()
    expected = scipy.stats.ttest_rel((0.10, 0.12, 0.13), (0.30, 0.31, 0.35))
    interval = " to ".join(f"{100 * end:+.1f}" for end in expected.confidence_interval())
    p = f"{expected.pvalue:.3f}"
    assert f"| sst2 | base | -20.3 | {interval} | {p} | **better** | 51.0 |" in report
    assert "| sst2 | lost |  |  |  | no verdict: lost at chance level | 51.0 |" in report
    assert "| sst2 | own | 81.0 ± 1.0 | 49.0 ± 1.7 | 32.0 ± 2.6 |" in report
    assert "| mean |" not in report  # the mean of one task is the task
    assert "share one pre-training run" in report

    init = words.index("--init") + 1
    for init_words in (["OWN-{seed}"], ["own-{seed}=OWN-{seed}"]):
        refused(stability, [*words[:init], *init_words], "write NAME=FROM, with {seed} in FROM")
    one_rate = [*words[:3], "--learning-rates", "1e-3", *words[init - 1 :]]
    refused(stability, one_rate, "--learning-rates has one rate: give two or more")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["encoders", "--systems", "GPT"],
            "--systems 'GPT' is not a comparison of this command: choose from tokens; pairs; masks",
        ),
        (["encoders", "--jobs", "0"], "--jobs 0 is not valid: give a whole number"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, refused, words, message):
    refused(slides, [words[0], str(tmp_path / "out"), *words[1:]], message, tmp_path)
