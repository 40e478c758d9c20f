import pytest

from macaron_tf.evaluation.language import rouge


def test_scores_are_those_of_lins_examples():
    """Lin 2004, section 3.1: ROUGE-L 3/4 and 2/4, where bigrams cannot tell the two apart."""
    reference = "police killed the gunman"
    one = rouge(["Police kill the gunman."], [reference])
    other = rouge(["the gunman kill police"], [reference])
    assert one["rougeL"] == pytest.approx(0.75) and other["rougeL"] == pytest.approx(0.5)
    assert one["rouge1"] == other["rouge1"] == pytest.approx(0.75)
    assert one["rouge2"] == other["rouge2"] == pytest.approx(1 / 3)


def test_counts_are_clipped_lengths_weigh_and_texts_are_averaged():
    found = rouge(["a a a b", "", "x"], ["a b", "c", "X!"])
    assert found["rouge1"] == pytest.approx((2 * 2 / 6 + 0 + 1) / 3)
    assert found["rouge2"] == pytest.approx((2 * 1 / 4 + 0 + 0) / 3)
    assert found["rougeL"] == pytest.approx((2 * 2 / 6 + 0 + 1) / 3)
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        rouge(["a"], ["a", "b"])
