"""The metrics of GLUE and SuperGLUE."""

import warnings

import numpy as np
import pytest

from macaron_tf.data.tasks.definitions import TASKS, Task
from macaron_tf.data.tasks.reading import read_examples
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import decide, exact_match, matthews, pearson, score, spearman

COLA, MRPC, STSB, MULTIRC = (TASKS[name] for name in ("cola", "mrpc", "stsb", "multirc"))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_by_hand():
    # 3 true positives, 1 false, 1 missed, 2 true negatives.
    predictions, labels = [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0]
    found = score(MRPC, predictions, labels)
    assert found == pytest.approx({"f1": 0.75, "accuracy": 5 / 7, "score": (0.75 + 5 / 7) / 2})
    found = score(COLA, predictions, labels)
    correlation = (3 * 2 - 1 * 1) / (4 * 4 * 3 * 3) ** 0.5
    assert found == pytest.approx(
        {"matthews": correlation, "accuracy": 5 / 7, "score": correlation}
    )
    assert score(TASKS["sst2"], predictions, labels) == pytest.approx(
        {"accuracy": 5 / 7, "score": 5 / 7}
    )


def test_questions():
    groups = np.array([[0, 0], [0, 0], [0, 1], [1, 0], [1, 0], [0, 1]])
    labels = [1, 0, 1, 0, 0, 1]
    found = score(MULTIRC, [1, 0, 1, 0, 1, 1], labels, groups)
    # The one wrong answer belongs to (1, 0): another question than (0, 0).
    assert found == pytest.approx(
        {"f1a": 6 / 7, "em": 2 / 3, "accuracy": 5 / 6, "score": (6 / 7 + 2 / 3) / 2}
    )
    assert exact_match(np.array([0, 1]), np.array([1, 0]), groups[:2]) == 0
    with pytest.raises(ValueError, match="group of each"):
        score(MULTIRC, labels, labels)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_against_scikit_learn(classes, rng):
    metrics = pytest.importorskip("sklearn.metrics")
    for _ in range(20):
        labels = rng.integers(0, classes, 50)
        predictions = np.where(rng.random(50) < 0.5, labels, rng.integers(0, classes, 50))
        expected = metrics.matthews_corrcoef(labels, predictions)
        assert matthews(predictions, labels) == pytest.approx(expected, abs=1e-12)
        if classes == 2:
            found = score(MRPC, predictions, labels)
            assert found["f1"] == pytest.approx(metrics.f1_score(labels, predictions))
            assert found["accuracy"] == metrics.accuracy_score(labels, predictions)


@pytest.mark.parametrize("decimals", [0, 8])
def test_correlations_against_scipy(decimals, rng):
    stats = pytest.importorskip("scipy.stats")
    for _ in range(20):
        labels = rng.uniform(0, 5, 60).round(decimals).astype(np.float32)  # 0: many ties
        predictions = (labels + rng.normal(0, 2, 60)).round(decimals)
        found = score(STSB, predictions, labels)
        assert found["pearson"] == pytest.approx(stats.pearsonr(predictions, labels)[0])
        assert found["spearman"] == pytest.approx(stats.spearmanr(predictions, labels)[0])
        assert found["score"] == pytest.approx((found["pearson"] + found["spearman"]) / 2)


def test_degenerate_predictions_score_nothing():
    labels = np.array([0, 1, 1, 0, 1])
    for value in (0, 1):
        assert score(COLA, np.full(5, value), labels)["score"] == 0
    assert score(MRPC, np.zeros(5, int), labels)["f1"] == 0
    assert score(MRPC, np.zeros(5, int), np.zeros(5, int)) == {"f1": 0, "accuracy": 1, "score": 0.5}
    scores = np.array([0.0, 1.2, 3.4, 5.0])
    for predictions in (np.full(4, 0.1), [1, 2, np.nan, 3], [1, 2, np.inf, 3], np.full(4, np.nan)):
        assert score(STSB, predictions, scores) == {"pearson": 0, "spearman": 0, "score": 0}
    assert score(STSB, scores, np.ones(4))["score"] == 0


def test_perfect_and_opposite(rng):
    scores = rng.normal(size=30)
    assert pearson(3 * scores + 1, scores) == pytest.approx(1)
    assert pearson(1e-200 * scores, 1e200 * scores) == pytest.approx(1)
    assert spearman(np.exp(scores), scores) == pytest.approx(1)
    assert spearman(-(scores**3), scores) == pytest.approx(-1)
    classes = rng.integers(0, 2, 30)
    assert matthews(1 - classes, classes) == pytest.approx(-1)
    # 390,965 pairs of QQP: the product of the counts is beyond 64 bits.
    many = rng.integers(0, 2, 390_965)
    assert matthews(many, many) == pytest.approx(1)


def test_outputs_to_predictions():
    assert decide(COLA, [[0.1, 0.2], [3.0, -1.0]]).tolist() == [1, 0]
    assert decide(STSB, [[-1.0], [2.5], [7.0]]).tolist() == [0, 2.5, 5]
    assert score(COLA, decide(COLA, np.full((4, 2), np.nan)), [0, 1, 0, 1])["score"] == 0
    assert score(STSB, decide(STSB, np.full((4, 1), np.nan)), [0, 1, 2, 1])["score"] == 0
    with pytest.raises(ValueError, match="not \\(N, 2\\)"):
        decide(COLA, np.zeros((4, 3)))


def test_real_questions(tfds_dir):
    examples = read_examples(MULTIRC, "validation", tfds_dir)
    perfect = score(MULTIRC, examples.labels, examples.labels, examples.groups)
    assert perfect == {"f1a": 1, "em": 1, "accuracy": 1, "score": 1}
    flipped = examples.labels.copy()
    flipped[0] = 1 - flipped[0]
    questions = len(np.unique(examples.groups, axis=0))
    found = score(MULTIRC, flipped, examples.labels, examples.groups)
    assert found["em"] == pytest.approx(1 - 1 / questions)


def test_errors():
    with pytest.raises(UserError, match="'cola' have no labels .* split \\(validation\\)"):
        score(COLA, [0, 1], None)
    with pytest.raises(UserError, match="no example of 'cola'"):
        score(COLA, [], [])
    with pytest.raises(UserError, match="no metric 'bleu'; there are accuracy, f1"):
        score(Task("x", first=("a",), labels=("b", "c"), metrics=("bleu",)), [0], [0])
    with pytest.raises(ValueError, match=r"\(2,\) predictions for \(3,\) labels"):
        score(COLA, [0, 1], [0, 1, 1])
