"""Tests of fine-tuning commands on question answering, tagging and choices."""

import itertools
import shutil

import numpy as np
import pytest

from experiments.commands import main
from macaron_tf import models
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.engines import certificate
from macaron_tf.model import load
from macaron_tf.runs.finetuning import TaskData, by_split, load_labelled_task
from macaron_tf.runs.run import Run
from macaron_tf.tasks import labelled
from macaron_tf.tasks.sets import SetOutputs
from tests.harness import refuses
from tests.toys import tasks as toys
from tests.toys.marks import slow

SPLITS = {"squad2": "validation", "conll2003": "dev"}


def test_the_chance_level_is_that_of_the_best_constant_answer(reading, toy):
    def level(task, source):
        data = TaskData(get_task(task), source)
        return data.chance_level(), next(iter(data.validation.values()))

    found, examples = level("sst2", f"tsv:{toy}/{{split}}.tsv")
    assert found == np.bincount(examples.labels).max() / len(examples)
    found, _ = level("stsb", f"tsv:{toy}/stsb-{{split}}.tsv")
    assert found == 0.0
    found, questions = level("squad2", f"jsonl:{reading}/{{split}}.jsonl")
    assert found == pytest.approx(np.mean([not answers for answers in questions.labels]))
    found, sentences = level("conll2003", f"conll:{reading}/{{split}}.txt")
    # With B-X for every word, the right entities are those of one word.
    tags, labels = get_task("conll2003").labels, [[*row, 0] for row in sentences.labels]
    following = [*itertools.chain(*map(itertools.pairwise, labels))]
    begun = [(tags[one], tags[two]) for one, two in following if tags[one][0] == "B"]
    right = [one[2:] for one, two in begun if two != f"I-{one[2:]}"]
    expected = [2 * right.count(name) / (len(following) + len(begun)) for name in {*right}]
    assert found == pytest.approx(max(expected, default=0.0))


def test_evaluate_writes_what_official_scripts_read(reading, tmp_path, ran):
    said = {}
    for task, split in SPLITS.items():
        names = {*get_task(task).metrics, *get_task(task).more_metrics}
        assert names <= {*toys.validations(reading / task)[-1]}
        output = ran(main, "evaluate", reading / task, "--output", tmp_path / task).out
        assert f"60 examples of {split}" in output
        said[task] = toys.scores_in(tmp_path / task)
        assert said[task]["metrics"]["score"] == toys.best_in(reading / task)["score"]
    # At the development set's best threshold, F1 equals the best F1.
    metrics = said["squad2"]["metrics"]
    assert metrics["f1"] == pytest.approx(metrics["best_f1"])
    answers = said["squad2"]["predictions"]["validation"]
    assert set(answers) == {f"q{number}" for number in range(60)}
    assert {answer.lower() for answer in answers.values()} >= {"", *toys.NAMES}
    assert said["conll2003"]["metrics"]["PER_f1"] > 0.8
    assert len(said["conll2003"]["predictions"]["dev"]) == 60


def test_predict_answers_out_of_the_text_as_it_was_given(reading, answered):
    lines = [
        "Who?\t\u201cthe old  Ann saw, in Rome.",
        "Where?\tthe dog and Eve in O\u0301slo and the cat",
        "Where?\t" + "the old cat " * 40 + "BONN " + "saw the dog " * 30,
        "Who?\t",
    ]
    found = answered(main, "predict", reading / "squad2", text="\n".join(lines))
    rows = [line.split("\t") for line in found.splitlines()]
    assert [row[0] for row in rows] == ["Ann", "O\u0301slo", "BONN", ""]
    for line, (answer, probability, start, end) in zip(lines, rows, strict=True):
        assert line.split("\t")[1][int(start) : int(end)] == answer
        assert 0 < float(probability) <= 1
    answered(main, "predict", reading / "squad2", text="{Who?\tAnn saw Rome.")


def test_predict_tags_every_word(reading, answered):
    lines = ["old red Bobs saw the Oslo", "", "\u200b cat", "cat " * 60 + "Anns"]
    found = answered(main, "predict", reading / "conll2003", text="\n".join(lines))
    found = found.removesuffix("\n\n").split("\n\n")
    found = [[row.split("\t") for row in text.split("\n") if row] for text in found]
    expected = [line.split() for line in lines if line]
    assert [[word for word, _ in rows] for rows in found if rows] == expected
    assert [tag for _, tag in found[0]] == ["O", "O", "B-PER", "O", "B-ORG", "I-ORG"]
    assert found[-1][-1] == ["Anns", "B-PER"]
    assert ["\u200b", "O"] in [row for rows in found for row in rows]


@pytest.mark.parametrize("task", ["sst2", "squad"])
def test_another_kinds_run_gives_its_encoder(task, reading):
    given = str(reading / "conll2003")
    init, _, network = toys.not_yet_trained(
        given, f"finetune_bert:{task}", "data.spans.max_question=4"
    )
    toys.assert_same_weights(network.encoder, init.source.network.encoder)


def test_a_diverged_models_outputs_score_nan(reading):
    examples = Examples((["a"] * 3, ["b"] * 3), np.array([0, 1, 2], np.int32))
    outputs = {"validation_matched": np.full((3, 3), np.nan), "validation_mismatched": np.eye(3)}
    task = labelled(get_task("mnli"))
    metrics = by_split({split: task.measure(found, examples) for split, found in outputs.items()})
    assert np.isnan(metrics["score"]) and metrics["validation_mismatched_accuracy"] == 1
    for name, split in SPLITS.items():
        run = Run.open(reading / name)
        task = load_labelled_task(run)
        examples = labelled(run.recipe.task_definition).read(split, None, run.recipe.data.source)
        if name == "conll2003":
            outputs = SetOutputs(task, 8).compute(examples)
            outputs[3][0, 0] = np.nan
        else:
            for weight in task.network.head.weights:
                weight.assign(weight * np.nan)
            outputs = SetOutputs(task, 8).compute(examples)
        metrics = task.measure(outputs, examples)
        assert all(np.isnan(value) for value in metrics.values())


def test_a_run_of_pre_training_gives_its_scores_too(language_run):
    _, recipe, network = toys.not_yet_trained(language_run, "finetune_gpt:sst2")
    assert (recipe.training.learning_rate, recipe.task.language_weight) == (6.25e-5, 0.5)
    assert recipe.limits.causal
    assert isinstance(network, models.CausalClassifier) and not network.symmetric
    inputs = {"token_ids": np.array([[2, 5, 6, 7]], "int32")}
    run = Run.open(language_run)
    pretrained = run.load_network(run.checkpoint(None))
    np.testing.assert_array_equal(
        np.asarray(network.language_model(inputs)), np.asarray(pretrained(inputs))
    )


@pytest.mark.parametrize(
    ("model", "network"),
    [
        ("bert_tiny", models.EncoderMultipleChoice),
        *slow(("gpt_tiny", models.CausalMultipleChoice)),
    ],
)
def test_choices_are_learnt_evaluated_and_exported(
    model, network, toy, tmp_path, refused, monkeypatch
):
    """The ending that has the same sentiment as the context is the right one."""
    run, rng = tmp_path / "run", np.random.default_rng(0)
    for split, count in (("train", 200), ("validation", 40)):
        rows = []
        for _ in range(count):
            good, first = rng.integers(2, size=2)
            right, wrong = (toys.PRAISE, toys.BLAME) if good else (toys.BLAME, toys.PRAISE)
            endings = [str(rng.choice(right)), str(rng.choice(wrong))]
            context = f"{rng.choice(toys.FILLERS)} {rng.choice(right)}"
            rows.append((context, *(endings if first else endings[::-1]), 1 if first else 2))
        toys.write_table(tmp_path / f"{split}.tsv", rows, "context\tending1\tending2\tlabel")
    settings = {"source": f"tsv:{tmp_path}/{{split}}.tsv", "model": model}
    settings |= {"training__max_steps": 80, "training__validate_every": 40}
    toys.train_toy(toy, run, "story_cloze", **settings)
    assert isinstance(Run.open(run).build_network(), network)
    assert toys.validations(run)[-1]["accuracy"] > 0.8
    assert main(["evaluate", str(run)]) == 0
    scores = toys.scores_in(run / "scores")["metrics"]
    assert scores["accuracy"] == toys.best_in(run)["score"]
    monkeypatch.setattr(certificate, "TEXTS", certificate.TEXTS[:3])
    assert load(run).export(tmp_path / "out")  # compares the export's answers with the network's
    for text, words in (
        ("film good\tgood\n", "line 1 has 2 columns: write"),
        ("film good\tgood\tbad\nfilm good\t\tbad\n", "line 2: fewer than two choices: give two"),
    ):
        (tmp_path / "lines").write_text(text)
        refused(main, ["predict", run, "--input", tmp_path / "lines"], words)


def test_a_run_without_its_recipe_is_not_resumed(reading, tmp_path):
    run = shutil.copytree(reading / "conll2003", tmp_path / "run")
    (run / "recipe.json").unlink()
    refuses("has checkpoints but no recipe.json", Run.existing, run)
