"""Tests of the fine-tuning commands: training, evaluation, predictions and submission."""

import io

import numpy as np
import pytest

import macaron_tf
from experiments.commands import main
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.engines.graph import TaskGraph
from macaron_tf.runs.finetuning import TaskData, warn_start
from macaron_tf.runs.pretraining import PretrainingData, PretrainingRecipe
from macaron_tf.runs.run import Run
from macaron_tf.tasks import Limits
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.text.wordpiece import WordPieceVocabulary
from macaron_tf.training import TrainingConfig
from tests.toys import tasks as toys
from tests.toys.hugging_face import write_bert

pytestmark = pytest.mark.quick


def test_evaluate_takes_the_best_checkpoint(toy_run, toy, tmp_path, ran):
    lines, best = toys.validations(toy_run), toys.best_in(toy_run)
    assert {"loss", "accuracy", "score"} <= set(lines[0])
    assert best["score"] == max(line["score"] for line in lines)
    evaluate = ["evaluate", toy_run, "--output", tmp_path]
    assert "50 examples of validation" in ran(main, *evaluate).out
    record = toys.scores_in(tmp_path)
    assert record["step"] == best["step"] and record["metrics"]["score"] == best["score"]
    assert len(record["predictions"]["validation"]) == 50
    assert "10 examples of all" in ran(main, *evaluate, "--source", f"tsv:{toy}/test.tsv").out


def test_predict_gives_one_line_for_each_line_in_order(toy_run, monkeypatch, capfd, answered):
    pairs = toys.sentences(300, seed=9)  # more than one chunk
    text = "".join(f"{sentence}\n" for sentence, _ in pairs[:299]) + "\n" + pairs[299][0]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["predict", str(toy_run)]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert len(rows) == 301
    right = [row[0] == label for row, (_, label) in zip(rows, pairs[:299], strict=False)]
    assert np.mean(right) > 0.9
    for row in rows:
        names, parts = zip(*map(str.split, row[1:]), strict=True)
        assert names == ("negative", "positive")
        parts = [*map(float, parts)]
        assert sum(parts) == pytest.approx(1, abs=2e-4)
        assert row[0] == names[int(np.argmax(parts))]

    text = b"the plot was great\n" + b"very " * 2_000_000 + b"\n\xff dull\n"
    lines = answered(main, "predict", toy_run, text=text).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("positive") and lines[2].startswith("negative")
    assert "line 3 is not UTF-8" in capfd.readouterr().err
    nan = {"label": np.array([b"dull"]), "probabilities": np.full((1, 2), np.nan)}
    monkeypatch.setattr(TaskGraph, "_run", lambda *_: nan)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"dull\n")))
    assert main(["predict", str(toy_run)]) == 2
    assert "outputs NaN because its training diverged" in capfd.readouterr().err


def test_a_run_at_chance_level_is_told_what_to_raise(toy, tmp_path, ran):
    settings = dict(training__max_steps=1, training__learning_rate=1e-12)
    flags = toys.toy_flags(toy, **settings)
    said = ran(main, "train", "finetune:sst2", tmp_path / "run", *flags).out
    level = TaskData(get_task("sst2"), f"tsv:{toy}/{{split}}.tsv").chance_level()
    assert toys.best_in(tmp_path / "run")["score"] <= level + 0.02
    same = f"\nat chance level: the same answer to every example has the score {level:.4f}, and a"
    assert f"{same} score must be above {level + 0.02:.4f} to count as learned; train" in said
    assert "predict" not in said


def test_the_servers_files(toy_run, toy, tmp_path, monkeypatch, refused, capsys):
    def read(task, split, tfds, source):
        assert (split, source) == ("test", "tfds:glue/sst2")
        return read_examples(task, "validation", source=f"tsv:{toy}/{{split}}.tsv")

    monkeypatch.setattr("experiments.evaluation.finetuning.read_examples", read)
    assert main(["submit", str(toy_run), f"{tmp_path}/glue/"]) == 0
    lines = (tmp_path / "glue" / "SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 51
    wanted = [label == "positive" for _, label in toys.sentences(50, seed=2)]
    assert np.mean([line.endswith("\t1") for line in lines[1:]] == np.array(wanted)) > 0.9
    upload = f"zip -j {tmp_path}/glue.zip {tmp_path}/glue/*   # then upload"
    assert upload in capsys.readouterr().out
    twice = ["submit", str(toy_run), str(toy_run), str(tmp_path / "twice")]
    refused(main, twice, "give one run for each task", tmp_path)
    monkeypatch.setattr(SetOutputs, "compute", lambda *_: np.full((50, 2), np.nan))
    lost = ["submit", str(toy_run), str(tmp_path / "lost")]
    refused(main, lost, "outputs NaN because its training diverged", tmp_path)


def test_a_pre_training_run_gives_encoder_pooler_and_vocabulary(toy, tmp_path, capsys):
    vocabulary = WordPieceVocabulary.load(toy / "vocabulary")
    pretraining = PretrainingRecipe(
        model="macaron_bert_tiny",
        model_options=(("hidden_dim", 16), ("num_layers", 1), ("max_length", 16)),
        training=TrainingConfig(max_steps=1),
        data=PretrainingData("text:nowhere", sequence_length=12, pairs="next_sentence"),
    )
    pretrained = toys.write_untrained(Run(tmp_path / "bert", pretraining, vocabulary))
    init, recipe, network = toys.not_yet_trained(f"{tmp_path}/bert@1")
    assert init.vocabulary.hash == vocabulary.hash
    assert recipe.model == "macaron_bert_tiny"
    toys.assert_same_weights(network.encoder, pretrained.encoder)
    toys.assert_same_weights(network.pooler, pretrained.pooler)

    warn_start(init, recipe)
    assert "was trained on rows of at most 12 tokens" in capsys.readouterr().err
    TaskData(get_task("sst2"), f"tsv:{toy}/{{split}}.tsv").encoded(vocabulary, Limits(4))
    assert (
        "raise data.max_length, if the weights were trained on longer " in capsys.readouterr().err
    )


def test_another_librarys_bert_is_a_recipe_of_ours(tmp_path):
    pytest.importorskip("safetensors")
    write_bert(tmp_path, config={"hidden_act": "gelu_new"})
    theirs = macaron_tf.load(f"hugging-face:{tmp_path}")
    given = f"hugging-face:{tmp_path}"
    _, recipe, network = toys.not_yet_trained(given, "finetune:sst2", "data.max_length=12")
    assert recipe.model_config(theirs.vocabulary.size) == theirs.config
    toys.assert_same_weights(network.pooler, theirs.network.pooler)
    toys.assert_same_weights(network.encoder, theirs.network.encoder)
