"""The studies: comparisons, slides, the SwishRNN paper. In seconds with commands that only write
their files, and in earnest, on toy languages, where tests are slow.
"""

import argparse
import importlib
import itertools
import json
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys

import pytest

from experiments import command_line, registry, studies
from experiments.compare.__main__ import main as compare
from experiments.compare.run import _arms, _paired
from experiments.finetune.run import preset
from experiments.pretrain.corpus import prepare_corpus
from experiments.slides import decoders, encoders
from experiments.slides.__main__ import main as slides
from experiments.slides.frame import Corpus, Study, System
from experiments.swish_rnn import paper
from experiments.swish_rnn.__main__ import main as swish_rnn
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.errors import UserError
from macaron_tf.text import SentencePieceVocabulary
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.conftest import number_settings
from tests.experiments.pretraining_toy import flags, prepare, toy_settings, write_documents
from tests.experiments.task_toys import write_toy

TUNE = ("training.max_steps=10", "training.validate_every=10", "max_length=16")
TUNE += ("training.schedule=constant",)


def write(path, *lines: dict) -> None:
    """A JSON file, or one with a JSON a line."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")


def pretrain(options) -> None:
    recipe, run = registry.load(options.recipe, settings=options.set), pathlib.Path(options.run)
    last = recipe.training.max_steps
    lines = []
    for step in range(last // 2, last + 1, last // 2):
        loss = 5 - step / last - recipe.training.seed * (1.5 if "strang" in run.name else 1)
        line = {"step": step, "kind": "validation", "loss": loss}
        metrics = ("nll", "perplexity", "accuracy", "pair_accuracy", "replaced_recall")
        lines.append(line | dict.fromkeys(metrics, 0.5))
    write(run / "metrics.jsonl", *lines)
    write(
        run / "timing.jsonl",
        {
            "step": last,
            "kind": "train",
            "seconds": 60.0,
            "tokens_per_second": 100.0,
            "memory_mib": 9.0,
        },
    )
    vocabulary = WordPieceVocabulary((*SPECIAL_PIECES, "a"))
    vocabulary.save(run / "vocabulary")
    (run / "recipe.json").write_text(recipe.to_json())
    if (pathlib.Path(options.corpus) / "corpus.json").exists():
        text = PretrainingCorpus.open(options.corpus).fingerprint
        write(run / "data.json", {"sha256": text, "vocabulary": vocabulary.hash})


def evaluate(options) -> None:
    record = {"pair_accuracy": 0.5, "nll": 1.0, "accuracy": 0.5}
    memories = [{"memory": length, "perplexity": 9.0} for length in options.memory or ()]
    write(options.output, memories or record)


def tuned_run(options, task: str) -> str:
    recipe = preset("macaron", get_task(task, own=True)).changed(model="bert_tiny")
    run = pathlib.Path(options.out) / task
    write(run / "timing.jsonl", {"step": 10, "kind": "train", "seconds": 60.0})
    write(run / "metrics.jsonl", {"step": 10, "kind": "validation", "score": 0.5})
    WordPieceVocabulary((*SPECIAL_PIECES, "a")).save(run / "vocabulary")
    (run / "recipe.json").write_text(recipe.to_json())
    return str(run)


def grid(options) -> None:
    cells = [
        {
            "model": init.partition("=")[0],
            "task": task,
            "learning_rate": rate,
            "mean": 0.5,
            "runs": [
                {"score": 0.5, "metrics": {}, "run": tuned_run(options, task)}
                for _ in options.seeds or [1]
            ],
        }
        for init, task in itertools.product(options.init, options.tasks)
        for rate in options.learning_rates or [1e-3]
    ]
    write(pathlib.Path(options.out) / "grid.json", {"combinations": cells})


def ask(options) -> None:
    out = pathlib.Path(options.out)
    write(out / "few_shot.json", {})
    (out / "few_shot.md").write_text("# Scores\n| t.tsv | f1 |\n")
    (out / "few_shot.png").write_bytes(bytes(2000))


def train_translator(options) -> None:
    recipe, run = registry.load(options.recipe, settings=options.set), pathlib.Path(options.run)
    (run / "checkpoints" / f"step-{recipe.training.max_steps:08d}").mkdir(parents=True)
    (run / "recipe.json").write_text(recipe.to_json())
    write(run / "timing.jsonl", {"step": 1, "kind": "train", "seconds": 60.0})
    write(run / "metrics.jsonl", {"step": 1, "kind": "validation", "loss": 1.0, "bleu": 9.0})
    SentencePieceVocabulary.train(["ein hund rennt schnell"], 30).save(run / "vocabulary")


def evaluate_translator(options) -> None:
    [saved] = (pathlib.Path(options.run) / "checkpoints").iterdir()
    write_scores(pathlib.Path(options.output) / "a.json", "average", [int(saved.name[5:])])


def write_scores(path, checkpoint: str, steps: list[int], bleu: float = 30.0) -> None:
    lines = ["ein hund rennt schnell"]
    record = {"checkpoint": checkpoint, "steps": steps, "split": "validation"}
    record |= {"run": str(path.parents[1]), "tokenized_bleu": bleu, "bleu": bleu, "chrf": bleu}
    record |= {"tokenized_signature": "t", "bleu_signature": "b", "metric": {"language": "de"}}
    write(path, {**record, "hypotheses": lines, "references": lines})


def score_sentences(options) -> None:
    score = 0.3 if "trained" in pathlib.Path(options.output).parts else 0.1
    write(f"{options.output}/stsb.json", {"metrics": {"spearman": score, "pearson": 0.0}})


def train_elmo(options) -> None:
    line = {"step": 4, "kind": "validation", "perplexity": 40.0}
    write(f"{options.run}/metrics.jsonl", line)


def tag(options) -> None:
    rows = [{"name": name, "f1": 0.5} for name in ("without ELMo", "with ELMo")]
    write(f"{options.out}/tagging.json", {"rows": rows})


PRETENDED = {
    "experiments.pretrain.corpus:run_prepare": lambda options: None,
    "experiments.pretrain.train:run": pretrain,
    "experiments.pretrain.evaluate:run": evaluate,
    "experiments.finetune.grid:run": grid,
    "experiments.few_shot.evaluate:run": ask,
    "experiments.translate.train:run": train_translator,
    "experiments.translate.evaluate:run_average": lambda options: None,
    "experiments.translate.evaluate:run": evaluate_translator,
}
# Commands with tests of their own, too long for these.
ALWAYS = {
    "experiments.embed.train:run": lambda options: None,
    "experiments.embed.evaluate:run": score_sentences,
    "experiments.elmo.run:run": train_elmo,
    "experiments.elmo.tag:run": tag,
}


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.slow)])
def calls(request, monkeypatch):
    """The studies' commands in this process, each word read by its own parser; those given."""
    found, real = [], pkgutil.resolve_name
    stands_in = ALWAYS | (PRETENDED if request.param == "pretended" else {})

    def command(script, *words, log=None):
        found.append((script, *words))
        if importlib.import_module(f"experiments.{script}.__main__").main(list(words)):
            raise UserError("failed")

    class Names:
        resolve_name = staticmethod(lambda name: stands_in.get(name) or real(name))

    monkeypatch.setattr(command_line, "pkgutil", Names)
    monkeypatch.setattr(studies, "command", command)
    return found


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A folder with documents and a task; the settings of both."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "documents").mkdir()
    settings = toy_settings(write_documents(folder / "documents"), steps=4)
    settings += ["training.warmup_steps=2", "training.validate_every=2"]
    tuning = [word for setting in TUNE for word in ("--finetune-set", setting)]
    return settings, ["--tasks", "sst2", "--source", write_toy(folder), *tuning]


def rows_of(path, *keys: str) -> list[tuple]:
    return [tuple(row[key] for key in keys) for row in json.loads(path.read_text())["rows"]]


def is_figure(*paths) -> bool:
    return all(path.stat().st_size > 1000 for path in paths)


def corpus_settings(settings: list[str]) -> tuple[str, ...]:
    return tuple(one for one in settings if one.startswith(("corpus.", "vocabulary.")))


def test_encoders_are_compared_and_not_trained_twice(calls, toy, tmp_path, monkeypatch):
    settings, task = toy
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


def test_decoders_are_compared_block_by_block(calls, toy, tmp_path, monkeypatch):
    settings = [one for one in toy[0] if one != "model.num_layers=1"]  # encoder-decoders have two
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


@pytest.mark.parametrize("study", [encoders.STUDY, decoders.STUDY])
def test_every_run_has_a_folder_and_a_corpus_of_its_own_words(study):
    runs = study.runs(None, [1, 2, 3])
    assert len({run.name for run in runs}) == len(runs)
    assert {run.system.corpus for run in runs} <= {"", *study.corpora}
    assert {corpus.vocabulary for corpus in study.corpora.values()} <= {None, *study.corpora}


@pytest.fixture(scope="module")
def corpus(toy, tmp_path_factory) -> str:
    """A prepared corpus of the documents."""
    return prepare("bert_tiny", str(tmp_path_factory.mktemp("corpus") / "letters"), toy[0])


STRANG = "strang=bert_rab_tiny:model.scheme=channels/2, tokens, channels/2,model.norm=pre"


def test_arms_are_compared_seed_by_seed_and_are_not_trained_twice(calls, toy, corpus, tmp_path):
    arguments = [str(tmp_path), "--corpus", corpus, "--seeds", "1", "2", "--jobs", "1"]
    arguments += ["bert_rab_tiny", STRANG, *flags(toy[0])]
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
def test_a_comparison_makes_its_corpus_and_says_who_learnt_little(calls, toy, tmp_path, capsys):
    arguments = [str(tmp_path), "bert_tiny", "b=bert_tiny:model.norm=pre", "--seeds", "1"]
    arguments += flags(toy[0])
    assert compare(arguments) == 0
    assert {call[5] for call in calls} == {str(tmp_path / "corpus")}
    text = (tmp_path / "compare.md").read_text()
    assert "**bert_tiny, b learnt little else: raise training.max_steps" in text
    assert "Arms of one seed read the same batches" in text
    assert "| b |" in text and "| +0.000 | equal in 1 of 1 seeds: not decided |" in text
    settings = [*toy[0], "corpus.validation_every=9"]
    prepare_corpus(registry.load("bert_tiny", settings=settings), str(tmp_path / "other"), None)
    assert compare([*arguments, "--corpus", str(tmp_path / "other")]) == 2
    assert "bert_tiny-1 was trained on: restore the text" in capsys.readouterr().err
    # Other corpora are what is compared.
    calls_before, arms = len(calls), ["bert_tiny", "b=bert_tiny:corpus.validation_every=10"]
    arms[1] += ",training.max_steps=6"
    words = ["--differ", "corpus.validation_every", "--seeds", "1"]
    assert compare([str(tmp_path / "sizes"), *arms, *words, *flags(toy[0])]) == 0
    assert {pathlib.Path(call[5]).name for call in calls[calls_before:]} == {"corpus", "corpus-b"}
    budgets = "**Budgets differ**: b has training.max_steps=6, bert_tiny 4."
    assert budgets in (tmp_path / "sizes" / "compare.md").read_text()


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
    assert own == studies.Arm("a-1", "demo", (f"model.scheme={scheme}", "training.max_steps=5"))
    assert place == studies.Arm("demo", "demo", ())
    parse = studies.Arm.parse
    assert parse("x=./mine.py:gpt:model.block=macaron") == studies.Arm(
        "x", "./mine.py:gpt", ("model.block=macaron",)
    )
    assert parse("x=./mine.py").recipe == "./mine.py"
    assert parse("x=package.module:NAME").recipe == "package.module:NAME"
    assert parse("sst2:init=runs/a").settings == ("init=runs/a",)


@pytest.mark.parametrize("calls", ["pretended"], indirect=True)
def test_fine_tunings_are_compared_by_the_grid(calls, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.compare.kinds.read_init", lambda place, decoders: None)
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
def test_fine_tunings_are_compared_in_earnest(calls, toy, corpus, tmp_path):
    run = str(tmp_path / "bert")
    settings = [*toy[0], "training.seed=1"]
    studies.command("pretrain", "train", "bert_tiny", run, "--corpus", corpus, *flags(settings))
    source = toy[1][toy[1].index("--source") + 1]
    arms = [f"low=sst2:init={run},training.learning_rate=1e-5", f"high=sst2:init={run}"]
    arguments = [str(tmp_path / "out"), *arms, "--seeds", "1", "2", "--jobs", "1"]
    assert compare([*arguments, *flags([*TUNE, f"source={source}"])]) == 0
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert all(0 <= row["score"] <= 1 and row["curve"] for row in rows) and len(rows) == 4


def test_the_papers_figures_are_means_over_seeds_and_are_not_trained_twice(
    calls, toy, corpus, tmp_path
):
    settings, task = toy
    # Table 2 and figure 3.
    out = tmp_path / "steps"
    arguments = ["step-sizes", str(out), "--corpus", corpus, "--seeds", "1", "--sizes", "1", "1,2"]
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
    ):
        assert blocks(*arms, *words) == 2 and not calls
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and message in error


def test_bad_arms_are_one_sentence(corpus, tmp_path, refused):
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
    refused(compare, [str(tmp_path / "out"), *pair, "--corpus", corpus], "length", tmp_path)


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
