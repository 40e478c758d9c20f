"""The studies of slides and of the SwishRNN paper, pretended and, where slow, in earnest."""

import argparse
import itertools
import json
import shutil

import pytest

from experiments import studies
from experiments.lab.slides import decoders, encoders
from experiments.lab.slides.__main__ import main as slides
from experiments.lab.slides.frame import Corpus, Study, System
from experiments.lab.swish_rnn import paper
from experiments.lab.swish_rnn.__main__ import main as swish_rnn
from tests.experiments.pretraining_toy import flags
from tests.experiments.study_toy import is_figure, rows_of


def corpus_settings(settings: list[str]) -> tuple[str, ...]:
    return tuple(one for one in settings if one.startswith(("corpus.", "vocabulary.")))


def test_encoders_are_compared_and_not_trained_twice(calls, study, tmp_path, monkeypatch):
    settings, task = study
    shapes, pairs = corpus_settings(settings), ("corpus.pairs=next_sentence",)
    corpora = {
        "text": Corpus("bert_tiny", shapes),
        "next_sentence": Corpus("bert_tiny", (*shapes, *pairs), "text"),
        "sentence_order": Corpus("albert_tiny", shapes, "text"),
    }
    systems = (
        System("ELECTRA", "electra_tiny", "text", sentences=True),
        System("ALBERT", "albert_tiny", "sentence_order", compared=True),
        System("ALBERT, next", "albert_tiny", "next_sentence", pairs),
    )
    monkeypatch.setattr(encoders, "STUDY", Study(encoders.STUDY.settings, corpora, systems))
    arguments = ["encoders", str(tmp_path), "--seeds", "1", "2", "--jobs", "1", *task]
    arguments += flags(settings)
    assert slides(arguments) == 0
    expected = [("ELECTRA", 1), ("ALBERT", 1), ("ALBERT", 2), ("ALBERT, next", 1)]
    assert rows_of(tmp_path / "encoders.json", "system", "seed") == expected
    rows = json.loads((tmp_path / "encoders.json").read_text())["rows"]
    assert all(0 <= row["sst2"] <= 1 and row["mean pooling"] == 0.1 for row in rows)
    assert rows[0]["Sentence-BERT"] == 0.3 and "Sentence-BERT" not in rows[1]
    assert rows[1]["sentence_order"] == pytest.approx(rows[1]["pair_accuracy"])
    assert 0 <= rows[1]["next_sentence"] <= 1 and "next_sentence" not in rows[0]
    text = (tmp_path / "encoders.md").read_text()
    assert "| ALBERT | 2 |" in text and "replaced found" in text
    assert is_figure(tmp_path / "encoders.png")
    calls.clear()
    assert slides([*arguments, "--no-sentences"]) == 0
    assert {call[1] for call in calls} == {"prepare", "grid"}


def test_decoders_are_compared_block_by_block(calls, study, tmp_path, monkeypatch):
    settings = [one for one in study[0] if one != "model.num_layers=1"]  # encoder-decoders have two
    shapes = corpus_settings(settings)
    few = ("--task", f"tsv:{tmp_path}/t.tsv", "--shots", "0", "1")
    (tmp_path / "t.tsv").write_text("question\tanswer\n" + "a a\ta\nb b\tb\n" * 4)
    blocks = ("transformer", "swish_rnn")
    systems = (
        System("GPT-2", "gpt2_tiny", "bytes", ("vocabulary.size=264",), blocks=blocks),
        System("Transformer-XL", "transformer_xl_tiny", "text", blocks=blocks[:1]),
        System("T5", "t5_tiny", "text", compared=True, blocks=blocks[:1]),
        decoders.ELMO,
    )
    corpora = {
        "text": Corpus("transformer_xl_tiny", shapes),
        "bytes": Corpus("gpt2_tiny", (*shapes, "vocabulary.size=264")),
    }
    study = Study(("model.norm=pre",), corpora, systems)
    for name, value in {"STUDY": study, "FEW_SHOT": few, "MEMORIES": (8, 16)}.items():
        monkeypatch.setattr(decoders, name, value)
    out = tmp_path / "study"
    arguments = ["decoders", str(out), "--seeds", "1", "2", "--jobs", "1", *flags(settings)]
    assert slides(arguments) == 0
    expected = [
        ("GPT-2", "transformer", 1),
        ("GPT-2", "swish_rnn", 1),
        ("Transformer-XL", "transformer", 1),
        ("T5", "transformer", 1),
        ("T5", "transformer", 2),
    ]
    assert rows_of(out / "decoders.json", "system", "block", "seed") == expected
    rows = json.loads((out / "decoders.json").read_text())["rows"]
    assert [line["memory"] for line in rows[2]["memory"]] == [8, 16]
    assert all(row["parameters"] > 1000 and len(row["curve"]) == 2 for row in rows)
    text = (out / "decoders.md").read_text()
    assert "| T5 | loss of spans | 2 |" in text and "| block | 8 | 16 |" in text
    assert "| with ELMo | 1 | 50.0 |" in text and "| t.tsv | f1 |" in text
    assert is_figure(*(out / f"{name}.png" for name in ("decoders", "memory", "few_shot/few_shot")))
    calls.clear()
    assert slides(arguments) == 0
    assert {call[:2] for call in calls if call[0] == "pretrain"} == {("pretrain", "prepare")}
    assert not [call for call in calls if call[0] == "few_shot"]

    calls.clear()
    shutil.rmtree(out / "runs" / "T5-transformer-2")
    assert slides([*arguments, "--report"]) == 0 and not calls
    assert rows_of(out / "decoders.json", "system", "block", "seed") == expected[:4]
    assert "| T5 | loss of spans | 1 |" in (out / "decoders.md").read_text()


def test_sentences_are_scored_before_and_after_training(calls, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    found = encoders.sentence_scores(run, out, train=True, data_dir="DIR")
    assert found == {"mean pooling": 0.1, "Sentence-BERT": 0.3}
    assert [words[1] for words in calls] == ["evaluate", "train", "evaluate"]
    assert calls[1][2:6] == ("stsb", str(out / "run"), "--init", str(run))
    assert all(words[-2:] == ("--data-dir", "DIR") for words in calls)
    calls.clear()
    again = encoders.sentence_scores(run, out, train=False, data_dir="DIR")
    assert again == {"mean pooling": 0.1} and not calls


def test_sentences_are_pooled_and_concatenated_in_every_way(calls, tmp_path, capsys):
    arguments = ["sentences", str(tmp_path), "--init", "hugging-face:DIR", "--task", "rte"]
    arguments += ["--seeds", "1", "2", "--jobs", "1", "--set", "training.max_steps=5"]
    assert slides(arguments) == 0
    trained = [words for words in calls if words[1] == "train"]
    # Mean pooling with (u, v, |u-v|) is in both halves of the table, and trained once.
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
    assert "was made with --init 'hugging-face:DIR', not 'runs/b': give another folder" in said
    # The untrained encoder has no settings.
    assert slides([*arguments, "--set", "training.max_steps=6"]) == 2 and not calls
    # Of several files that are read at once, any may be named.
    assert "-1.json was made with --set" in capsys.readouterr().err


@pytest.mark.parametrize("study", [encoders.STUDY, decoders.STUDY])
def test_every_run_has_a_folder_and_a_corpus_of_its_own_words(study):
    runs = study.runs(None, [1, 2, 3])
    assert len({run.name for run in runs}) == len(runs)
    assert {run.system.corpus for run in runs} <= {"", *study.corpora}
    assert {corpus.vocabulary for corpus in study.corpora.values()} <= {None, *study.corpora}


def test_the_papers_figures_are_means_over_seeds_and_are_not_trained_twice(
    calls, study, study_corpus, tmp_path
):
    settings, task = study
    # Table 2 and figure 3.
    out = tmp_path / "steps"
    arguments = [
        "step-sizes",
        str(out),
        "--corpus",
        study_corpus,
        "--seeds",
        "1",
        "--sizes",
        "1",
        "1,2",
    ]
    arguments += ["--learning-rates", "1e-3", "1e-2", *task, *flags(settings)]
    assert swish_rnn(arguments) == 0
    trained = [call[3] for call in calls if call[0] == "pretrain"]
    assert swish_rnn(arguments) == 0
    assert [call[3] for call in calls if call[0] == "pretrain"] == trained and len(trained) == 3
    assert rows_of(out / "step_sizes.json", "name") == [("bert_rab_tiny",), ("k=1",), ("k=1,2",)]
    rows = json.loads((out / "step_sizes.json").read_text())["rows"]
    for row, name in zip(rows, ("bert_rab_tiny-1", "k1-1", "k1-2-1"), strict=True):
        tuned = json.loads((out / "grid" / name / "grid.json").read_text())["combinations"]
        assert row["scores"] == {"sst2": max(line["mean"] for line in tuned)} and len(tuned) == 2
    table = (out / "step_sizes.md").read_text()
    assert "| bert_rab_tiny | " in table and "| 1.00 |" in table
    inits = [
        f"{name}={out}/{folder}-1" for name, folder in (("bert", "bert_rab_tiny"), ("k", "k1"))
    ]
    arguments = ["stability", str(out), "--init", *inits, "--learning-rates", "1e-3", "1e-2"]
    assert swish_rnn([*arguments, "--seeds", "1", "2", *task]) == 0
    lines = json.loads((out / "stability.json").read_text())["combinations"]
    found = {(line["model"], line["learning_rate"]) for line in lines}
    assert found == set(itertools.product(("bert", "k"), (1e-3, 1e-2)))
    assert "| sst2 | k | " in (out / "stability.md").read_text()
    assert is_figure(out / "step_sizes.png", out / "stability.png")


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
    monkeypatch.setattr(studies, "grid", lambda *words, **options: found)
    options = {"out": tmp_path, "tasks": ["cola", "rte"], "learning_rates": None, "jobs": 1}
    options |= {"data_dir": None, "source": None, "finetune_set": []}
    scores = paper._best_scores(tmp_path, argparse.Namespace(**options))
    assert scores == pytest.approx({"cola": 0.4, "rte": 0.6, "cola accuracy": 0.7})

    rates, seeds = ["--learning-rates", "1e-3", "1e-2"], ["--seeds", "1", "2"]
    words = ["stability", str(tmp_path), "--init", "bert=RUN", "--tasks", "cola", "rte"]
    assert swish_rnn([*words, *rates, *seeds]) == 0
    table = (tmp_path / "stability.md").read_text()
    assert "| cola | bert | 40.0 ± 14.1 | 10.0 ± 14.1 | 30.0 |" in table
    assert "| cola accuracy | bert | 70.0 ± 14.1 | 45.0 ± 63.6 | 25.0 |" in table
    assert "| mean | bert | 50.0 ± 7.1 | 30.0 ± 7.1 | 20.0 |" in table


@pytest.mark.parametrize(
    ("main", "words", "message"),
    [
        (slides, ["encoders", "--systems", "GPT"], "--systems 'GPT': there are BERT; ELECTRA"),
        (slides, ["encoders", "--jobs", "0"], "--jobs 0: give a whole number"),
        (swish_rnn, ["step-sizes", "--sizes", "1,0"], "--sizes 1,0: give whole numbers"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, refused, main, words, message):
    corpus = ["--corpus", str(tmp_path)] if main is swish_rnn else []
    refused(main, [words[0], str(tmp_path / "out"), *words[1:], *corpus], message, tmp_path)
