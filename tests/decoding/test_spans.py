"""Tests of the best answer span over all windows of a question, against brute-force search."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.tasks.questions import WindowPositions
from macaron_tf.decoding.spans import IMPOSSIBLE, best_answers, best_spans, decide_answered


def masked(rng, rows, length):
    """Returns random start and end logits of windows: `(rows, 2, L)`.

    Logits are -1e9 except at position 0 and in the context, which has the positions 3 to L - 3.
    """
    logits = rng.standard_normal((rows, 2, length)).astype(np.float32)
    logits[:, :, 1:3] = logits[:, :, length - 2 :] = -1e9
    return logits


def every_span(window, max_answer):
    allowed = [i for i in range(1, window.shape[1]) if window[0, i] > -1e8]
    return {
        (a, b): float(window[0, a] + window[1, b])
        for a, b in itertools.product(allowed, allowed)
        if a <= b < a + max_answer
    }


@pytest.mark.parametrize("max_answer", [1, 3, 30])
def test_the_best_span_of_a_window(max_answer):
    logits = masked(np.random.default_rng(max_answer), 20, 12)
    found = {k: v.numpy() for k, v in best_spans(tf.constant(logits), max_answer).items()}
    for row, window in enumerate(logits):
        spans = every_span(window, max_answer)
        (start, end), score = max(spans.items(), key=lambda item: item[1])
        assert (found["start"][row], found["end"][row]) == (start, end)
        assert found["score"][row] == pytest.approx(score)
        total = np.log(np.exp(list(spans.values())).sum())
        assert found["log_total"][row] == pytest.approx(total, rel=1e-5)
        assert found["null"][row] == pytest.approx(window[0, 0] + window[1, 0])


def test_no_span_is_impossible_to_miss():
    logits = np.full((1, 2, 6), -1e9, np.float32)
    logits[:, :, 0] = 1.0
    found = best_spans(tf.constant(logits), 4)
    assert float(found["score"][0]) < IMPOSSIBLE and float(found["null"][0]) == 2


def places():
    """Returns the `WindowPositions` of three questions.

    Question 0 has two windows, question 1 has an empty context, and question 2 has one window.
    """
    pieces = tf.ragged.constant([[0, 2, 4, 6, 8, 10, 12], [], [1, 5, 9]], dtype=tf.int64)
    return WindowPositions(
        question=tf.constant([0, 0, 1, 2], tf.int64),
        boundary=tf.constant([3, 3, 3, 2], tf.int64),
        first_piece=tf.constant([0, 3, 0, 0], tf.int64),
        starts=pieces,
        ends=pieces + 1,
    )


def test_the_best_window_decides():
    given = {
        "start": tf.constant([3, 4, 0, 2], tf.int64),
        "end": tf.constant([4, 6, 0, 4], tf.int64),
        "score": tf.constant([1.0, 2.0, -2e9, 0.5]),
        "null": tf.constant([0.0, -1.0, 3.0, 1.5]),
        "log_total": tf.constant([1.0, 2.0, -2e9, 1.0]),
    }
    found = {name: value.numpy() for name, value in best_answers(given, places()).items()}
    # Question 0: window 1, pieces 4 to 6 of the context.
    assert found["start"].tolist() == [8, 0, 1] and found["end"].tolist() == [13, 0, 10]
    assert found["score"].tolist() == pytest.approx([2.0, -2e9, 0.5])
    assert found["null"].tolist() == [-1.0, 3.0, 1.5]
    assert found["log_total"][0] == pytest.approx(np.log(np.exp(1) + np.exp(2)))

    e = np.exp
    total, with_none = e(1) + e(2), e(1) + e(2) + e(-1)
    for threshold, answered, probability in (
        (None, [True, False, True], [e(2) / total, 0, e(0.5) / e(1)]),
        (0.0, [True, False, False], [e(2) / with_none, 1, e(1.5) / (e(1) + e(1.5))]),
        (1.0, [True, False, True], [e(2) / with_none, 1, e(0.5) / (e(1) + e(1.5))]),
    ):
        judged = decide_answered(found, threshold)
        assert np.asarray(judged["answered"]).tolist() == answered
        np.testing.assert_allclose(judged["probability"], probability, rtol=1e-5)


def test_nan_is_seen():
    logits = masked(np.random.default_rng(0), 4, 8)
    logits[1] = np.nan
    found = best_answers(best_spans(tf.constant(logits), 4), places())
    finite = np.all([np.isfinite(value) for value in found.values()], axis=0)
    assert not finite[0] and finite[2]


def test_nothing_asked_is_nothing_answered():
    found = best_spans(tf.zeros((0, 2, 0)), 30)
    assert all(value.shape == (0,) for value in found.values())
