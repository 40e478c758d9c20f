import numpy as np
import pytest

from macaron_tf.evaluation.glue import accuracy, matthews
from macaron_tf.evaluation.language import calibrated, chance, choice_scores, majority


def test_length_counts_where_it_is_asked_for():
    log_probs, lengths = np.array([[-6.0, -4.0]]), np.array([[3, 1]])
    assert choice_scores(log_probs, lengths, "sum").argmax() == 1
    np.testing.assert_allclose(choice_scores(log_probs, lengths, "token"), [[-2.0, -4.0]])
    with pytest.raises(ValueError, match="normalization"):
        choice_scores(log_probs, lengths, "word")


def test_calibration_divides_by_the_mean_share_of_queries_about_nothing():
    shares = np.array([[0.7, 0.3], [0.9, 0.1]])
    nothing = np.array([[0.9, 0.1], [0.7, 0.3]])  # means 0.8 and 0.2
    # Any common factor of a row's probabilities is of no account.
    found = calibrated(np.log(shares) - 5.0, np.log(nothing) - 3.0)
    np.testing.assert_allclose(np.exp(found), shares / [[0.8, 0.2]])
    assert found.argmax(1).tolist() == [1, 0]


def test_guesses_and_the_majority():
    labels = np.array([0] * 30 + [1] * 70)
    known = np.array([1, 1, 0])
    assert abs(chance(accuracy, labels, 2) - 0.5) < 0.02
    assert abs(chance(matthews, labels, 2)) < 0.03
    assert majority(accuracy, labels, known) == 0.7
    assert majority(matthews, labels, known) == 0.0
