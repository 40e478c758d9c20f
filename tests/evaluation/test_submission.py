"""The servers' files."""

import json

import numpy as np
import pytest

from macaron_tf.data.tasks.definitions import TASKS
from macaron_tf.data.tasks.reading import read_examples
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import write_submission


def written(name, tmp_path, predictions, indices, number=0, **options):
    task = TASKS[name]
    path = write_submission(
        task, task.submissions[number], tmp_path, predictions, np.array(indices), **options
    )
    assert path.parent == tmp_path and path.name == task.submissions[number].name
    return path.read_bytes().decode()


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "qqp", "wnli"])
def test_class_numbers(name, tmp_path):
    text = written(name, tmp_path, [1, 0, 1], [0, 2, 1])
    assert text == "index\tprediction\n0\t1\n1\t1\n2\t0\n"


@pytest.mark.parametrize("name", ["qnli", "rte"])
def test_class_names(name, tmp_path):
    text = written(name, tmp_path, np.array([1, 0]), [0, 1])
    assert text == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_three_files_of_mnli(number, tmp_path):
    text = written("mnli", tmp_path, [2, 1, 0], [0, 1, 2], number)
    assert text == "index\tprediction\n0\tcontradiction\n1\tneutral\n2\tentailment\n"
    assert [file.name for file in tmp_path.iterdir()] == [
        ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"][number]
    ]


def test_scores(tmp_path):
    text = written("stsb", tmp_path, [5.2, -0.3, 2.71828], [2, 1, 0])
    assert text == "index\tprediction\n0\t2.718\n1\t0.000\n2\t5.000\n"


def test_boolq(tmp_path):
    text = written("boolq", tmp_path, [1, 0], [8, 7])
    assert text == '{"idx": 7, "label": "false"}\n{"idx": 8, "label": "true"}\n'


def test_multirc(tmp_path):
    groups = np.array([[1, 2], [0, 0], [0, 1], [0, 0], [1, 2]])
    text = written("multirc", tmp_path, [1, 0, 1, 1, 0], [4, 1, 2, 0, 3], groups=groups)
    assert [json.loads(line) for line in text.splitlines()] == [
        {
            "idx": 0,
            "passage": {
                "questions": [
                    {"idx": 0, "answers": [{"idx": 0, "label": 1}, {"idx": 1, "label": 0}]},
                    {"idx": 1, "answers": [{"idx": 2, "label": 1}]},
                ]
            },
        },
        {
            "idx": 1,
            "passage": {
                "questions": [
                    {"idx": 2, "answers": [{"idx": 3, "label": 0}, {"idx": 4, "label": 1}]}
                ]
            },
        },
    ]


def test_real_questions(tfds_dir, tmp_path):
    examples = read_examples(TASKS["multirc"], "validation", tfds_dir)
    text = written("multirc", tmp_path, examples.labels, examples.indices, groups=examples.groups)
    found = {
        (paragraph["idx"], question["idx"], answer["idx"]): answer["label"]
        for paragraph in map(json.loads, text.splitlines())
        for question in paragraph["passage"]["questions"]
        for answer in question["answers"]
    }
    keys = zip(*examples.groups.T.tolist(), examples.indices.tolist(), strict=True)
    assert found == dict(zip(keys, examples.labels.tolist(), strict=True))
    assert len(found) == 1381


def test_errors(tmp_path):
    with pytest.raises(UserError, match="STS-B.tsv cannot be written: a prediction is not a fin"):
        written("stsb", tmp_path, [1.0, np.nan], [0, 1])
    with pytest.raises(ValueError, match="an index occurs twice"):
        written("cola", tmp_path, [1, 0], [0, 0])
    with pytest.raises(ValueError, match="predictions for"):
        written("cola", tmp_path, [1, 0], [0])
    with pytest.raises(ValueError, match="needs the group"):
        written("multirc", tmp_path, [1, 0], [0, 1])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        written("cola", tmp_path / "file", [1], [0])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
