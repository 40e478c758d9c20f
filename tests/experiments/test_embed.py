"""Tests of the sentence-embedding commands: training, evaluation and predictions."""

import numpy as np
import pytest

from experiments import registry
from experiments.commands import main
from macaron_tf.data.tasks.definitions import TASKS
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.evaluation.similarity import unit_vectors
from macaron_tf.model import load
from macaron_tf.runs.run import Run
from macaron_tf.tasks import SentenceEmbedding
from tests.harness import refuses
from tests.toys import tasks as task_toys

PAIRS = ("mrpc", "qqp", "mnli", "snli", "xnli", "qnli", "rte", "wnli", "boolq", "cb", "wic", "wsc")
# One update that changes almost nothing.
BARELY = ["--set", "training.max_steps=1", "--set", "training.learning_rate=1e-12"]
BARELY += ["--set", "training.warmup_steps=0"]


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
    assert float(output.split("spearman ")[1].split()[0]) > 0.5


def test_a_run_starts_from_a_run(toy, embedding_run, tmp_path, refused):
    flags = ["--set", f"data.source=tsv:{toy}/stsb-{{split}}.tsv", *BARELY]
    command = ["train", "sentence_bert:stsb", str(tmp_path / "next"), *flags, "--init"]
    refused(main, [*command, f"{embedding_run}@20"], "has no checkpoint 20", tmp_path)
    assert main([*command, f"{embedding_run}@best"]) == 0
    best = max(line["spearman"] for line in task_toys.validations(embedding_run))
    assert task_toys.validations(tmp_path / "next")[-1]["spearman"] == pytest.approx(best, abs=1e-3)
    assert Run.open(tmp_path / "next").recipe.data.max_length == 16


def test_vectors_come_in_the_order_of_the_lines(embedding_run, tmp_path, ran, refused, monkeypatch):
    encoder = load(embedding_run).task
    lines = [text for text, _ in task_toys.sentences(300, seed=9)]
    lines += ["", "film " * 100, "FUN\u2028plöt", "film"]
    source, target = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_bytes("\n".join(lines).encode() + b"\nbad \xff byte\n")
    arguments = ["predict", embedding_run, "--input", source, "--output", target]
    output = ran(main, *arguments)
    assert "305 vectors of 32" in output.out
    assert "line 305 is not UTF-8" in output.err and "1 of 305 lines are empty" in output.err
    assert "1 of 305 sentences have 16 tokens or were truncated" in output.err
    vectors = np.load(target)
    assert vectors.shape == (305, 32) and vectors.dtype == np.float32
    for place in [*range(0, 300, 37), 300, 301, 302, 303]:
        ids = encode_pairs(encoder.vocabulary, [lines[place]], None, 16)["token_ids"]
        alone = unit_vectors(encoder.network({"token_ids": ids}).numpy())[0]
        np.testing.assert_allclose(vectors[place], alone, atol=1e-6)
    monkeypatch.setattr("macaron_tf.tasks.embedding._MAX_TOKENS", 40)
    small = SentenceEmbedding(encoder.network, encoder.vocabulary, 16)
    np.testing.assert_allclose(unit_vectors(small.encode(lines)), vectors[:304], atol=1e-6)
    source.write_bytes(b"")
    refused(main, arguments, "is empty: give one text per line")


def test_every_pair_task_has_its_objective():
    learnt = {"stsb": "cosine", **dict.fromkeys(PAIRS, "softmax")}
    recipes = {name: registry.load(f"sentence_bert:{name}") for name in learnt}
    assert {name: recipe.objective for name, recipe in recipes.items()} == learnt
    assert recipes["mnli"].num_classes == 3
    for name in {*TASKS} - {*learnt}:
        words = f"{name} is not a task with sentence pairs"
        refuses(words, registry.load, f"sentence_bert:{name}")
