"""The study of the slides' encoders, in seconds, on toy languages."""

import json

import pytest

import experiments.finetune
import experiments.pretrain
from experiments import studies
from experiments.slides import main
from experiments.slides_study import encoders, sentences
from experiments.slides_study.systems import CORPORA, SYSTEMS, Corpus, System
from macaron_tf.errors import UserError
from tests.experiments.finetuning_toy import write_toy
from tests.experiments.pretraining_toy import flags, toy_settings, write_documents


@pytest.fixture
def calls(monkeypatch):
    """Each run's own process takes ten seconds to start; counts the commands."""
    found = []

    def command(script, *words, log=None):
        found.append((script, *words))
        if getattr(experiments, script).main(list(words)):
            raise UserError("failed")

    monkeypatch.setattr(studies, "command", command)
    monkeypatch.setattr(encoders, "command", command)
    return found


def test_systems_are_compared_and_not_trained_twice(calls, tmp_path, monkeypatch, capsys):
    documents = tmp_path / "documents"
    documents.mkdir()
    settings = toy_settings(write_documents(documents), steps=4)
    settings += ["training.warmup_steps=2", "training.validate_every=4"]
    shapes = tuple(one for one in settings if one.startswith(("corpus.", "vocabulary.")))
    pairs = (*shapes, "corpus.pairs=next_sentence")
    corpora = {
        "text": Corpus("bert_tiny", shapes),
        "next_sentence": Corpus("bert_tiny", pairs, "text"),
        "sentence_order": Corpus("albert_tiny", shapes, "text"),
    }
    systems = (
        System("ELECTRA", "electra_tiny", "text"),
        System("ALBERT", "albert_tiny", "sentence_order", compared=True),
        System("ALBERT, next", "albert_tiny", "next_sentence", ("corpus.pairs=next_sentence",)),
    )
    monkeypatch.setattr(encoders, "CORPORA", corpora)
    monkeypatch.setattr(encoders, "SYSTEMS", systems)
    task = write_toy(tmp_path)
    out = tmp_path / "study"
    tune = ["training.max_steps=4", "training.validate_every=4", "max_length=16"]
    arguments = ["encoders", str(out), "--seeds", "1", "2", "--jobs", "1", "--tasks", "sst2"]
    arguments += ["--no-sentences"]
    arguments += flags(settings) + ["--source", task]
    arguments += [word for setting in tune for word in ("--finetune-set", setting)]
    assert main(arguments) == 0
    rows = json.loads((out / "encoders.json").read_text())["rows"]
    assert [(row["system"], row["seed"]) for row in rows] == [
        ("ELECTRA", 1),
        ("ALBERT", 1),
        ("ALBERT", 2),
        ("ALBERT, next", 1),
    ]
    assert all(0 <= row["sst2"] <= 1 for row in rows)
    assert rows[1]["sentence_order"] == pytest.approx(rows[1]["pair_accuracy"])
    assert 0 <= rows[1]["next_sentence"] <= 1 and "next_sentence" not in rows[0]
    text = (out / "encoders.md").read_text()
    assert "| ALBERT | 2 |" in text and "replaced found" in text
    assert (out / "encoders.png").stat().st_size > 1000
    calls.clear()
    assert main(arguments) == 0
    assert {call[1] for call in calls} == {"prepare", "grid"}


def test_sentences_are_scored_before_and_after_training(tmp_path, monkeypatch):
    calls = []

    def command(script, *words):
        calls.append(words)
        if words[0] == "evaluate":
            folder = tmp_path / words[words.index("--output") + 1]
            folder.mkdir(parents=True)
            metrics = {"spearman": len(calls) / 10, "pearson": 0.0}
            (folder / "stsb.json").write_text(json.dumps({"metrics": metrics}))

    monkeypatch.setattr(sentences, "command", command)
    out = tmp_path / "out"
    found = sentences.scores(tmp_path / "run", out, train=True, data_dir="DIR")
    assert found == {"mean pooling": 0.1, "Sentence-BERT": 0.3}
    assert [words[0] for words in calls] == ["evaluate", "train", "evaluate"]
    assert calls[1][1:5] == ("stsb", str(out / "run"), "--init", str(tmp_path / "run"))
    assert all(words[-2:] == ("--data-dir", "DIR") for words in calls)
    calls.clear()
    again = sentences.scores(tmp_path / "run", out, train=False, data_dir="DIR")
    assert again == {"mean pooling": 0.1} and not calls


def test_bad_names_are_one_sentence(tmp_path, capsys):
    assert main(["encoders", str(tmp_path), "--systems", "GPT"]) == 2
    assert "--systems 'GPT': there are BERT; ELECTRA" in capsys.readouterr().err
    assert main(["encoders", str(tmp_path), "--jobs", "0"]) == 2


def test_every_system_has_a_folder_and_a_corpus_of_its_own_words():
    assert len({encoders.folder(system, 1) for system in SYSTEMS}) == len(SYSTEMS)
    assert {system.corpus for system in SYSTEMS} <= set(CORPORA)
    assert {corpus.vocabulary for corpus in CORPORA.values()} <= {None, *CORPORA}
