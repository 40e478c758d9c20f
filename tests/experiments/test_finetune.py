"""Tests of the fine-tuning commands: training, evaluation, predictions and submission."""

import io
import json
import pathlib
import shutil

import numpy as np
import pytest

import macaron_tf
from experiments import registry
from experiments.commands import main
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.tasks.definitions import TASKS, get_task
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.engines.graph import TaskGraph
from macaron_tf.errors import UserError
from macaron_tf.runs.finetuning import TaskData, warn_start
from macaron_tf.runs.pretraining import PretrainingRecipe
from macaron_tf.runs.recipe import override
from macaron_tf.runs.run import Run, saved_data_dir
from macaron_tf.runs.starts import read_start
from macaron_tf.tasks import Limits
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from macaron_tf.training import TrainingConfig
from tests.harness import refuses
from tests.toys import tasks as toys
from tests.toys.hugging_face import write_bert

pytestmark = pytest.mark.quick


def test_evaluate_says_what_the_training_has_measured(toy_run, toy, tmp_path, ran):
    lines, run = toys.validations(toy_run), Run.open(toy_run)
    assert [line["step"] for line in lines] == [20, 40]
    assert {"loss", "accuracy", "score"} <= set(lines[0])
    assert lines[-1]["score"] > 0.95 and lines[-1]["loss"] < 0.3
    result = toys.result_in(toy_run)
    assert (result["reason"], result["step"]) == ("max_steps", 40)
    assert result["best_score"] == max(line["score"] for line in lines)
    assert json.loads((toy_run / "recipe.json").read_text())["kind"] == "finetuning"
    assert dict(run.recipe.model_options)["hidden_dim"] == 32

    evaluate = ["evaluate", toy_run, "--output", tmp_path]
    assert "50 examples of validation" in ran(main, *evaluate).out
    record = toys.scores_in(tmp_path)
    assert record["step"] == result["best_step"]
    assert record["metrics"]["score"] == result["best_score"]
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
        parts = [float(part) for part in row[1:]]
        assert sum(parts) == pytest.approx(1, abs=2e-4)
        assert row[0] == ("negative", "positive")[int(np.argmax(parts))]

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
    assert toys.result_in(tmp_path / "run")["best_score"] <= level + 0.02
    same = f"\nat chance level: the same answer to every example has the score {level:.4f}; train"
    assert f"{same} another run with more epochs" in said and "predict" not in said


@pytest.mark.parametrize("output", [(), ("--output", "OUT")])
def test_scores_that_cannot_be_saved_are_printed(output, toy_run, tmp_path, capsys):
    run = shutil.copytree(toy_run, tmp_path / "run")
    (run / "scores").write_text("not a folder")
    words = [word.replace("OUT", str(run / "scores")) for word in output]
    assert main(["evaluate", str(run), *words]) == (2 if output else 0)
    printed = capsys.readouterr()
    assert "score " in printed.out and "50 examples of validation" in printed.out
    start = "error: " if output else "warning: the scores are not saved, because "
    assert f"{start}cannot write {run}/scores/" in printed.err


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
    refused(main, twice, "give one run per task", tmp_path)
    monkeypatch.setattr(SetOutputs, "compute", lambda *_: np.full((50, 2), np.nan))
    lost = ["submit", str(toy_run), str(tmp_path / "lost")]
    refused(main, lost, "outputs NaN because its training diverged", tmp_path)


def test_the_papers_numbers():
    recipe = registry.load("finetune:rte").resolved(2490)
    training = recipe.training
    assert (training.max_steps, training.warmup_steps, training.validate_every) == (234, 23, 78)
    halved = override(recipe, ["training.accumulation_steps=2"]).resolved(2490)
    assert halved.training.max_steps == 117
    assert override(recipe, ["training.max_steps=50"]).resolved(2490).training.max_steps == 50
    swish = {name: registry.load(f"finetune_swish_rnn:{name}") for name in TASKS}
    for recipe in swish.values():
        training = recipe.resolved(1000).training
        assert (training.warmup_steps, training.validate_every) == (1000, 1000)
        assert (training.schedule, training.weight_decay) == ("constant", 0)
    steps = {name: recipe.training.max_steps for name, recipe in swish.items()}
    assert (steps["boolq"], steps["mnli"], steps["sst2"]) == (50_000, 200_000, 80_000)
    assert steps["rte"] == steps["copa"] == 20_000  # default for sets that no paper names


def test_a_pre_training_run_gives_encoder_pooler_and_vocabulary(toy, tmp_path, capsys):
    vocabulary = WordPieceVocabulary.load(toy / "vocabulary")
    pretraining = PretrainingRecipe(
        model="macaron_bert_tiny",
        model_options=(("hidden_dim", 16), ("num_layers", 1), ("max_length", 16)),
        training=TrainingConfig(max_steps=1),
        corpus=CorpusConfig(sources="text:nowhere", sequence_length=12, pairs="next_sentence"),
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
    assert "raise max_length, if the weights were trained on longer " in capsys.readouterr().err

    def check(*settings):
        init.check(override(recipe, settings).model_config(vocabulary.size))

    refuses("needs model.norm='pre', not 'post'", check, "model.norm=post")
    refuses("needs model.scheme=None, not 'tokens/2'", check, "model.scheme=tokens/2")
    check("model.dropout=0.3", "model.remat=True")
    with pytest.raises(UserError, match="vocabulary"):
        WordPieceVocabulary((*SPECIAL_PIECES, *toys.FILLERS)).save(tmp_path / "other")
        read_start(f"{tmp_path}/bert", vocabulary=tmp_path / "other")
    refuses("has no checkpoint 7", read_start, f"{tmp_path}/bert@7")


def test_another_librarys_bert_is_a_recipe_of_ours(tmp_path):
    pytest.importorskip("safetensors")
    write_bert(tmp_path, config={"hidden_act": "gelu_new"})
    theirs = macaron_tf.load(f"hugging-face:{tmp_path}")
    given = f"hugging-face:{tmp_path}"
    _, recipe, network = toys.not_yet_trained(given, "finetune:sst2", "max_length=12")
    assert recipe.model_config(theirs.vocabulary.size) == theirs.config
    toys.assert_same_weights(network.pooler, theirs.network.pooler)
    toys.assert_same_weights(network.encoder, theirs.network.encoder)


def test_a_keras_hub_preset_is_a_recipe_of_ours(toy, tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    words = WordPieceVocabulary.load(toy / "vocabulary").words
    sizes = dict(num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32)
    backbone = keras_hub.models.BertBackbone(len(words), max_sequence_length=24, **sizes)
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=list(words), lowercase=True)
    for part in (backbone, tokenizer):
        part.save_to_preset(str(tmp_path / "preset"))
    init, recipe, network = toys.not_yet_trained(f"keras-hub:{tmp_path}/preset")
    assert dict(recipe.model_options)["activation"] == "gelu_tanh"
    assert init.vocabulary.words == words
    for own, theirs in (
        (network.encoder.embeddings.tokens.table[: len(words)], backbone.token_embedding),
        (network.pooler.dense.kernel, backbone.pooled_dense),
    ):
        np.testing.assert_allclose(own, theirs.get_weights()[0], atol=1e-6)


# TRAIN stands for a valid training command, OWN for one without a start, OUT for a new folder, RUN
# for a run, OTHER for another vocabulary.
TRAIN = "train finetune:sst2 OUT"
MISTAKES = [
    ("TRAIN --set table.label=label", "table.label has no effect"),
    ("TRAIN --set source=tsv:FOLDER/seven-{split}.tsv", "seven-train.tsv, line 2: '7'"),
    ("train finetune OUT --init RUN", "finetune needs a task"),
    ("train bert_tiny:sst2 OUT", "bert_tiny has no tasks"),
    ("TRAIN --set max_length=17", "the model has 16 positions"),
    ("TRAIN --set max_length=2", "max_length is 2"),
    ("OWN --init /nowhere", "/nowhere has no readable model.json"),
    ("OWN", "--vocabulary"),
    ("OWN --vocabulary TOY/vocabulary --set model=bert_tiny --lower-case", "unlike --vocabulary"),
    ("OWN --init RUN --vocabulary OTHER", "vocabulary mismatch"),
    ("OWN --init RUN --set model.hidden_dim=16", "needs model.hidden_dim=32, not 16"),
    ("OWN --vocabulary TOY/vocabulary --set model=elmo_tiny", "needs pre-trained weights"),
    ("evaluate RUN --source tsv:FOLDER/secret.tsv", "has no labels"),
]


@pytest.mark.parametrize(("command", "error"), MISTAKES)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    command, error, toy, toy_run, tmp_path, refused
):
    WordPieceVocabulary((*SPECIAL_PIECES, *toys.FILLERS)).save(tmp_path / "other")
    for name, label in (("train", 1), ("validation", 1), ("bad", 1), ("seven-train", 7)):
        toys.write_table(tmp_path / f"{name}.tsv", [("film was fun", label)])
    toys.write_table(tmp_path / "secret.tsv", [("film was fun",)], "sentence")
    command = command.replace("TRAIN", f"{TRAIN} " + " ".join(toys.toy_flags(toy)))
    own = f"{TRAIN} --set source=tsv:TOY/{{split}}.tsv --set max_length=16"
    command = command.replace("OWN", own)
    places = {"RUN": toy_run, "TOY": toy, "OTHER": tmp_path / "other"}
    places |= {"FOLDER": tmp_path, "OUT": tmp_path / "out"}
    refused(main, toys.split_command(command, **places), error, tmp_path, toy_run)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b'"x"', b"\xff", b"[" * 100_000])
def test_the_records_of_a_run_are_whole_or_one_sentence(toy_run, tmp_path, content, capsys):
    run = pathlib.Path(shutil.copytree(toy_run, tmp_path / "run"))
    [checkpoint, *_] = sorted((run / "checkpoints").glob("step-*"))
    records = ["recipe.json", "model.json", "data.json", "vocabulary/vocabulary.json"]
    records += ["checkpoints/best.json", f"checkpoints/{checkpoint.name}/manifest.json"]
    said = {}
    for name in records:
        whole = (run / name).read_bytes()
        (run / name).write_bytes(content)
        loads = [macaron_tf.load] if name.startswith(("model", "vocabulary")) else []
        for read in (saved_data_dir, resumed, *loads):
            try:
                read(run)
            except UserError as error:
                said.setdefault(name, set()).add(str(error))
        (run / name).write_bytes(whole)
    assert all("\n" not in one and str(run) in one for each in said.values() for one in each)
    assert {"recipe.json", "model.json", "vocabulary/vocabulary.json"} <= {*said}


def resumed(path):
    """Opens a run, and reads each file that resumed training reads."""
    run = Run.open(path)
    run.checkpoint()
    run.data_record()
