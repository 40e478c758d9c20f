"""Tests of the sentence-embedding commands: training, evaluation and predictions."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments import registry
from experiments.commands import main
from macaron_tf.data.tasks.definitions import TASKS
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.evaluation.similarity import cosines, unit_vectors
from macaron_tf.model import load
from macaron_tf.runs.run import Run
from macaron_tf.tasks import SentenceEmbedding
from tests.harness import refuses
from tests.toys import tasks as task_toys

PAIRS = ("mrpc", "qqp", "mnli", "snli", "xnli", "qnli", "rte", "wnli", "boolq")
# One update that changes almost nothing.
BARELY = ["--set", "training.max_steps=1", "--set", "training.learning_rate=1e-12"]
BARELY += ["--set", "training.warmup_steps=0"]


@pytest.fixture(scope="module")
def run(toy, tmp_path_factory):
    path = tmp_path_factory.mktemp("embedding") / "sts"
    task_toys.train_toy(toy, path, "stsb")
    return path


@pytest.fixture(scope="module")
def encoder(run):
    return load(run).task


def test_cosines_learn_scores(run, ran):
    last = task_toys.validations(run)[-1]
    assert last["step"] == 40 and last["spearman"] > 0.8 and last["pearson"] > 0.9
    assert last["loss"] < 0.05
    assert json.loads((run / "recipe.json").read_text())["kind"] == "embedding"
    assert "60 examples of stsb, validation; mean pooling" in ran(main, "evaluate", run).out
    record = task_toys.scores_in(run / "scores")
    best = max(line["spearman"] for line in task_toys.validations(run))
    assert record["metrics"]["spearman"] == pytest.approx(best, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, options",
    [("mrpc", {"pooling": "max", "concatenation": "|u-v|,u*v"}), ("triplets", {"pooling": "cls"})],
)
def test_classes_and_triplets_are_learnt_too(toy, tmp_path, ran, task, options):
    run = tmp_path / task
    task_toys.train_toy(toy, run, task, **options)
    score = task_toys.validations(run)[-1]["accuracy"]
    assert score > 0.9 and f"accuracy {score:.4f}" in ran(main, "evaluate", run).out
    # An encoder trained on classes or triplets has similarity scores too.
    source = f"tsv:{toy}/stsb-{{split}}.tsv"
    output = ran(main, "evaluate", run, "--task", "stsb", "--source", source).out
    before = float(output.split("spearman ")[1].split()[0])
    assert before > 0.5
    # The paper's best STS-B model is fine-tuned from an NLI run, without the classifier.
    command = ["train", "sentence_bert:stsb", tmp_path / "next", "--init", run]
    ran(main, *command, "--set", f"source={source}", *BARELY)
    after = task_toys.validations(tmp_path / "next")[-1]["spearman"]
    assert after == pytest.approx(before, abs=1e-3)
    recipe = Run.open(tmp_path / "next").recipe
    assert (recipe.objective, recipe.num_classes) == ("cosine", 0)


def test_another_set_of_pairs_is_scored(run, encoder, tmp_path, ran):
    rows = task_toys.related("stsb", 40, seed=7)
    task_toys.write_table(tmp_path / "sts12.tsv", rows, task_toys.PAIR_HEADER)
    source = ["--task", "stsb", "--source", f"tsv:{tmp_path}/sts12.tsv"]
    ran(main, "evaluate", run, *source, "--output", tmp_path / "scores")
    record = task_toys.scores_in(tmp_path / "scores")
    vectors = [encoder.encode([row[side] for row in rows]) for side in (0, 1)]
    expected = spearmanr(cosines(*vectors), [row[2] for row in rows]).statistic
    assert record["examples"] == 40 and record["encoder"] == str(run)
    assert record["metrics"]["spearman"] == pytest.approx(expected, abs=1e-4)


def test_a_run_starts_from_a_run(toy, run, tmp_path, refused):
    flags = ["--set", f"source=tsv:{toy}/stsb-{{split}}.tsv", *BARELY]
    command = ["train", "sentence_bert:stsb", str(tmp_path / "next"), *flags, "--init"]
    refused(main, [*command, f"{run}@20"], "has no checkpoint 20", tmp_path)
    assert main([*command, f"{run}@best"]) == 0
    best = max(line["spearman"] for line in task_toys.validations(run))
    assert task_toys.validations(tmp_path / "next")[-1]["spearman"] == pytest.approx(best, abs=1e-3)
    assert Run.open(tmp_path / "next").recipe.max_length == 16


def test_vectors_come_in_the_order_of_the_lines(run, encoder, tmp_path, ran, refused):
    lines = [text for text, _ in task_toys.sentences(300, seed=9)]
    lines += ["", "film " * 100, "FUN\u2028plöt", "film"]
    source, target = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_bytes("\n".join(lines).encode() + b"\nbad \xff byte\n")
    arguments = ["predict", run, "--input", source, "--output", target]
    output = ran(main, *arguments)
    assert "305 vectors of 32" in output.out
    assert "line 305 is not UTF-8" in output.err and "1 of 305 lines are empty" in output.err
    assert "1 of 305 sentences have more than 14 tokens" in output.err
    vectors = np.load(target)
    assert vectors.shape == (305, 32) and vectors.dtype == np.float32
    for place in [*range(0, 300, 37), 300, 301, 302, 303]:
        ids = encode_pairs(encoder.vocabulary, [lines[place]], None, 16)["token_ids"]
        alone = unit_vectors(encoder.network({"token_ids": ids}).numpy())[0]
        np.testing.assert_allclose(vectors[place], alone, atol=1e-6)
    small = SentenceEmbedding(encoder.network, encoder.vocabulary, 16, max_tokens=40)
    np.testing.assert_allclose(unit_vectors(small.encode(lines)), vectors[:304], atol=1e-6)
    source.write_bytes(b"")
    refused(main, arguments, "is empty: give one text per line")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("train sentence_bert:sst2 OUT TOY", "sst2 is not a task with sentence pairs"),
        ("train sentence_bert:stsb OUT TOY --set concatenation=u,w", "must be some of u, v"),
        ("train sentence_bert:stsb OUT TOY --set max_length=99", "16 positions"),
        ("evaluate RUN --task rte", "but must be none: give --task stsb"),
    ],
)
def test_bad_input_is_one_sentence(command, error, toy, run, tmp_path, refused):
    (tmp_path / "empty").write_text("\n \n")
    command = command.replace("TOY", " ".join(task_toys.toy_flags(toy, "stsb")))
    places = {"RUN": run, "OUT": tmp_path / "out", "FOLDER": tmp_path}
    refused(main, task_toys.split_command(command, **places), error, tmp_path)


def test_the_papers_numbers():
    def paper_recipe(task):
        return registry.load(f"sentence_bert:{task}")

    training = paper_recipe("mnli").resolved(942_069).training  # SNLI and MNLI
    assert (training.max_steps, training.warmup_steps) == (58_880, 5_888)
    training = paper_recipe("stsb").resolved(5_749).training
    assert (training.max_steps, training.validate_every) == (1_440, 360)
    assert paper_recipe("mnli").num_classes == 3
    learnt = {"stsb": "cosine", **dict.fromkeys(PAIRS, "softmax")}
    for name in {*TASKS} - {*learnt}:
        refuses(f"{name} is not a task with sentence pairs", paper_recipe, name)
    assert {name: paper_recipe(name).objective for name in learnt} == learnt
