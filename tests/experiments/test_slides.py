"""The study of the slides' encoders, in seconds, on toy languages."""

import json
import shutil

import pytest

import experiments.elmo.__main__
import experiments.few_shot.__main__
import experiments.finetune.__main__
import experiments.pretrain.__main__
from experiments import studies
from experiments.slides import decoders, encoders
from experiments.slides.__main__ import main
from experiments.slides.frame import Corpus, Study, System
from macaron_tf.errors import UserError
from tests.experiments.pretraining_toy import flags, toy_settings, write_documents
from tests.experiments.task_toys import write_toy


@pytest.fixture
def calls(monkeypatch):
    """Each run's own process takes ten seconds to start; counts the commands."""
    found = []

    def command(script, *words, log=None):
        found.append((script, *words))
        if getattr(experiments, script).__main__.main(list(words)):
            raise UserError("failed")

    monkeypatch.setattr(studies, "command", command)
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
    monkeypatch.setattr(encoders, "STUDY", Study(encoders.STUDY.settings, corpora, systems))
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

    monkeypatch.setattr(studies, "command", command)
    out = tmp_path / "out"
    found = encoders.sentence_scores(tmp_path / "run", out, train=True, data_dir="DIR")
    assert found == {"mean pooling": 0.1, "Sentence-BERT": 0.3}
    assert [words[0] for words in calls] == ["evaluate", "train", "evaluate"]
    assert calls[1][1:5] == ("stsb", str(out / "run"), "--init", str(tmp_path / "run"))
    assert all(words[-2:] == ("--data-dir", "DIR") for words in calls)
    calls.clear()
    again = encoders.sentence_scores(tmp_path / "run", out, train=False, data_dir="DIR")
    assert again == {"mean pooling": 0.1} and not calls


def test_bad_names_are_one_sentence(tmp_path, capsys):
    assert main(["encoders", str(tmp_path), "--systems", "GPT"]) == 2
    assert "--systems 'GPT': there are BERT; ELECTRA" in capsys.readouterr().err
    assert main(["encoders", str(tmp_path), "--jobs", "0"]) == 2


@pytest.mark.parametrize("study", [encoders.STUDY, decoders.STUDY])
def test_every_run_has_a_folder_and_a_corpus_of_its_own_words(study):
    runs = study.runs(None, [1, 2, 3])
    assert len({run.name for run in runs}) == len(runs)
    assert {run.system.corpus for run in runs} <= {"", *study.corpora}
    assert {corpus.vocabulary for corpus in study.corpora.values()} <= {None, *study.corpora}


@pytest.mark.slow
def test_decoders_are_compared_block_by_block(calls, tmp_path, monkeypatch):
    documents = tmp_path / "documents"
    documents.mkdir()
    settings = toy_settings(write_documents(documents), steps=4)
    settings.remove("model.num_layers=2")  # encoder-decoders count their layers apart
    settings += ["training.warmup_steps=2", "training.validate_every=2"]
    shapes = tuple(one for one in settings if one.startswith(("corpus.", "vocabulary.")))
    few = ("--task", f"tsv:{tmp_path}/t.tsv", "--shots", "0", "1")
    (tmp_path / "t.tsv").write_text("question\tanswer\n" + "a a\ta\nb b\tb\n" * 4)
    blocks = ("transformer", "swish_rnn")
    systems = (
        System("GPT-2", "gpt2_tiny", "bytes", ("vocabulary.size=264",), blocks=blocks),
        System("Transformer-XL", "transformer_xl_tiny", "text", blocks=blocks[:1]),
        System("T5", "t5_tiny", "text", compared=True, blocks=blocks[:1]),
    )
    corpora = {
        "text": Corpus("transformer_xl_tiny", shapes),
        "bytes": Corpus("gpt2_tiny", (*shapes, "vocabulary.size=264")),
    }
    study = Study(("model.norm=pre",), corpora, (*systems, decoders.ELMO))
    for name, value in {"STUDY": study, "FEW_SHOT": few, "MEMORIES": (8, 16)}.items():
        monkeypatch.setattr(decoders, name, value)
    elmo = []

    def train_elmo(words):
        elmo.append(words[0])
        out = tmp_path / "study" / ("runs/ELMo" if words[0] == "train" else "tagged")
        out.mkdir(parents=True, exist_ok=True)
        line = {"step": 4, "kind": "validation", "perplexity": 40.0}
        (out / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        rows = [{"name": name, "f1": 0.5} for name in ("without ELMo", "with ELMo")]
        (out / "tagging.json").write_text(json.dumps({"rows": rows}))

    monkeypatch.setattr(experiments.elmo.__main__, "main", train_elmo)
    out = tmp_path / "study"
    arguments = ["decoders", str(out), "--seeds", "1", "2", "--jobs", "1", *flags(settings)]
    assert main(arguments) == 0
    rows = json.loads((out / "decoders.json").read_text())["rows"]
    assert [(row["system"], row["block"], row["seed"]) for row in rows] == [
        ("GPT-2", "transformer", 1),
        ("GPT-2", "swish_rnn", 1),
        ("Transformer-XL", "transformer", 1),
        ("T5", "transformer", 1),
        ("T5", "transformer", 2),
    ]
    assert [line["memory"] for line in rows[2]["memory"]] == [8, 16]
    assert all(row["parameters"] > 1000 and len(row["curve"]) == 2 for row in rows)
    text = (out / "decoders.md").read_text()
    assert "| T5 | loss of spans | 2 |" in text and "| block | 8 | 16 |" in text
    assert "| with ELMo | 1 | 50.0 |" in text and "| t.tsv | f1 |" in text
    for figure in ("decoders.png", "memory.png", "few_shot/few_shot.png"):
        assert (out / figure).stat().st_size > 1000
    calls.clear()
    assert main(arguments) == 0
    assert {call[:2] for call in calls if call[0] == "pretrain"} == {("pretrain", "prepare")}
    assert not [call for call in calls if call[0] == "few_shot"]

    calls.clear()
    shutil.rmtree(out / "runs" / "T5-transformer-2")
    assert main([*arguments, "--report"]) == 0 and not calls
    assert json.loads((out / "decoders.json").read_text())["rows"] == rows[:4]
    assert "| T5 | loss of spans | 1 |" in (out / "decoders.md").read_text()
