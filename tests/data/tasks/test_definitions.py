"""The registry of tasks."""

import pytest

from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from tests.harness import refuses

CLASSIFICATION = {name: task for name, task in TASKS.items() if task.kind == "classification"}


def test_glue_and_superglue():
    assert set(CLASSIFICATION) == {
        "cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli", "boolq", "multirc",
    }  # fmt: skip
    files = {file.name for task in TASKS.values() for file in task.submissions}
    assert files == {
        "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv",
        "AX.tsv", "QNLI.tsv", "RTE.tsv", "WNLI.tsv", "BoolQ.jsonl", "MultiRC.jsonl",
    }  # fmt: skip
    assert [name for name, task in TASKS.items() if task.regression] == ["stsb"]
    assert [name for name, task in TASKS.items() if task.grouped] == ["multirc"]
    classes = {name: task.num_classes for name, task in CLASSIFICATION.items()}
    assert classes["stsb"] == 1 and classes["mnli"] == 3
    assert all(count == 2 for name, count in classes.items() if name not in ("stsb", "mnli"))
    metrics = {name: task.metrics for name, task in CLASSIFICATION.items()}
    assert metrics.pop("cola") == ("matthews",)
    assert metrics.pop("stsb") == ("pearson", "spearman")
    assert metrics.pop("mrpc") == metrics.pop("qqp") == ("f1", "accuracy")
    assert metrics.pop("multirc") == ("f1a", "em")
    assert set(metrics.values()) == {("accuracy",)}


def test_the_classes_are_those_of_the_official_builders():
    glue = pytest.importorskip("tensorflow_datasets.text.glue")
    super_glue = pytest.importorskip("tensorflow_datasets.text.super_glue")
    configs = {
        f"tfds:{name}/{config.name}": config
        for name, builder in (("glue", glue.Glue), ("super_glue", super_glue.SuperGlue))
        for config in builder.BUILDER_CONFIGS
    }
    for task in CLASSIFICATION.values():
        config = configs[task.source]
        assert tuple(config.label_classes or ()) == task.labels, task.name
        features = getattr(config, "text_features", None) or config.features
        assert set(features) == {*task.first, *task.second}, task.name
        assert all(file.source in configs for file in task.submissions)


def test_questions_and_tags():
    kinds = {name: task.kind for name, task in TASKS.items() if name not in CLASSIFICATION}
    assert kinds == {
        "squad": "spans",
        "squad2": "spans",
        "conll2003": "tags",
        "story_cloze": "choice",
        "race": "choice",
    }
    symmetric = {name for name, task in TASKS.items() if task.symmetric}
    assert symmetric == {"mrpc", "qqp", "stsb"}
    assert TASKS["squad2"].unanswerable and not TASKS["squad"].unanswerable
    labels = TASKS["conll2003"].labels
    assert labels[:3] == ("O", "B-PER", "I-PER") and labels[-1] == "I-MISC" and len(labels) == 9
    with pytest.raises(ValueError, match="kind='span' must be one of"):
        Task("mine", first=("question",), kind="span")


def test_a_task_of_ones_own():
    task = Task("spam", first=("body",), labels=("ham", "spam"), metrics=("f1",))
    assert task.num_classes == 2 and not task.regression and not task.submissions
    assert get_task("rte") is TASKS["rte"]
    refuses("no task 'sst-2': there are boolq, cola", get_task, "sst-2")
