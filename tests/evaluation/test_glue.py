"""Tests of the metrics of GLUE and SuperGLUE, and of the submission files."""

import warnings

import numpy as np
import pytest

from macaron_tf.data.tasks.definitions import TASKS, get_task
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.evaluation import glue
from macaron_tf.tasks import labelled
from tests.harness import refuses

COLA, MRPC, STSB, MULTIRC = (TASKS[name] for name in ("cola", "mrpc", "stsb", "multirc"))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_by_hand():
    # 3 true positives, 1 false positive, 1 false negative, 2 true negatives.
    predictions, labels = [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0]
    found = glue.score(MRPC, predictions, labels)
    assert found == pytest.approx({"f1": 0.75, "accuracy": 5 / 7, "score": (0.75 + 5 / 7) / 2})
    found = glue.score(COLA, predictions, labels)
    by_hand = (3 * 2 - 1 * 1) / (4 * 4 * 3 * 3) ** 0.5
    assert found == pytest.approx({"matthews": by_hand, "accuracy": 5 / 7, "score": by_hand})
    assert glue.score(TASKS["sst2"], predictions, labels) == pytest.approx(
        {"accuracy": 5 / 7, "score": 5 / 7}
    )
    # Deviations are (-5, -1, -1, 7) / 4 and (-2, -1, 0, 3). Deviations of ranks, where ties share
    # their mean, are (-3, 0, 0, 3) / 2 and (-3, -1, 1, 3) / 2.
    line, order = (32 / 4) / (76 / 16 * 14) ** 0.5, (18 / 4) / (18 / 4 * 20 / 4) ** 0.5
    assert glue.score(STSB, [1, 2, 2, 4], np.float32([0, 1, 2, 5])) == pytest.approx(
        {"pearson": line, "spearman": order, "score": (line + order) / 2}
    )


def test_questions():
    groups = np.array([[0, 0], [0, 0], [0, 1], [1, 0], [1, 0], [0, 1]])
    labels = [1, 0, 1, 0, 0, 1]
    found = glue.score(MULTIRC, [1, 0, 1, 0, 1, 1], labels, groups)
    # The one wrong answer belongs to question (1, 0), not to (0, 0).
    assert found == pytest.approx(
        {"f1a": 6 / 7, "em": 2 / 3, "accuracy": 5 / 6, "score": (6 / 7 + 2 / 3) / 2}
    )
    assert glue.exact_match(np.array([0, 1]), np.array([1, 0]), groups[:2]) == 0


def test_degenerate_predictions_score_nothing():
    labels = np.array([0, 1, 1, 0, 1])
    for value in (0, 1):
        assert glue.score(COLA, np.full(5, value), labels)["score"] == 0
    none = np.zeros(5, int)
    assert glue.score(MRPC, none, labels)["f1"] == 0
    assert glue.score(MRPC, none, none) == {"f1": 0, "accuracy": 1, "score": 0.5}
    scores = np.array([0.0, 1.2, 3.4, 5.0])
    for predictions in (np.full(4, 0.1), [1, 2, np.nan, 3], [1, 2, np.inf, 3], np.full(4, np.nan)):
        assert glue.score(STSB, predictions, scores) == {"pearson": 0, "spearman": 0, "score": 0}
    assert glue.score(STSB, scores, np.ones(4))["score"] == 0
    nothing = np.zeros(0)
    assert glue.pearson(nothing, nothing) == glue.matthews(nothing, nothing) == 0


def test_sums_that_exceed_64_bits():
    scores, many = np.linspace(-1, 1, 30), np.arange(390_965) % 2  # QQP's number of pairs
    assert glue.pearson(1e-200 * scores, 1e200 * scores) == pytest.approx(1)
    assert glue.matthews(many, many) == pytest.approx(1)


def test_outputs_to_predictions():
    assert glue.decide(COLA, [[0.1, 0.2], [3.0, -1.0]]).tolist() == [1, 0]
    assert glue.decide(STSB, [[-1.0], [2.5], [7.0]]).tolist() == [0, 2.5, 5]
    assert glue.score(COLA, glue.decide(COLA, np.full((4, 2), np.nan)), [0, 1, 0, 1])["score"] == 0
    assert glue.score(STSB, glue.decide(STSB, np.full((4, 1), np.nan)), [0, 1, 2, 1])["score"] == 0


def test_errors():
    refuses("'cola' have no labels", glue.score, COLA, [0, 1], None)
    refuses("no examples of the task 'cola'", glue.score, COLA, [], [])


def written(name, tmp_path, predictions, indices, number=0):
    task = TASKS[name]
    path = glue.write_submission(
        task, task.submissions[number], tmp_path, predictions, np.array(indices)
    )
    assert path.parent == tmp_path and path.name == task.submissions[number].name
    return path.read_bytes().decode()


@pytest.mark.parametrize(
    ("names", "files", "predictions", "lines"),
    [
        ("cola sst2 mrpc qqp wnli", "CoLA SST-2 MRPC QQP WNLI", [1, 0, 1], "1 1 0"),
        ("qnli rte", "QNLI RTE", [1, 1, 0], "not_entailment entailment not_entailment"),
        ("mnli", "MNLI-m MNLI-mm AX", [2, 0, 1], "contradiction neutral entailment"),
        ("stsb", "STS-B", [2.71828, 5.0, 0.0], "2.718 0.000 5.000"),
    ],
)
def test_tables_of_predictions(names, files, predictions, lines, tmp_path):
    expected = "".join(f"{n}\t{line}\n" for n, line in enumerate(lines.split()))
    for name in names.split():
        for number in range(len(TASKS[name].submissions)):
            text = written(name, tmp_path, predictions, [0, 2, 1], number)
            assert text == f"index\tprediction\n{expected}"
    assert {path.stem for path in tmp_path.iterdir()} == {*files.split()}


def test_submission_errors(tmp_path):
    (tmp_path / "file").write_text("")
    words = "STS-B.tsv cannot be written, b"
    refuses(words, written, "stsb", tmp_path, [1, np.nan], [0, 1])
    refuses("cannot write", written, "cola", tmp_path / "file", [1], [0])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_several_classes_agree_with_scikit_learn():
    metrics, draw = pytest.importorskip("sklearn.metrics"), np.random.default_rng(0).integers
    labels, predictions = draw(2, size=(2, 40, 5))
    labels[:, 4] = predictions[:, 4] = 0  # a class that nothing has
    task = labelled(get_task("multilabel", own=True))
    found = task.score(predictions > 0, Examples((), labels))
    for name, average in (("micro_f1", "micro"), ("macro_f1", "macro")):
        expected = metrics.f1_score(labels, predictions, average=average, zero_division=0)
        assert found[name] == pytest.approx(expected, rel=1e-12)
    assert found["exact"] == pytest.approx(metrics.accuracy_score(labels, predictions))
