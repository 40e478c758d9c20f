"""Entities: worked by hand."""

import pytest

from macaron_tf.evaluation.reading import score_tags


def tags(*sentences):
    return [sentence.split() for sentence in sentences]


def test_by_hand():
    truths = tags("B-PER I-PER O B-LOC", "B-ORG O B-LOC B-LOC", "O O")
    predictions = tags("B-PER I-PER O B-ORG", "B-ORG O B-LOC I-LOC", "O B-PER")
    found = score_tags(predictions, truths)
    # Found: PER right, ORG wrong, ORG right, one long LOC wrong, PER wrong: 2 of 5, of 5 true.
    assert found["precision"] == found["recall"] == pytest.approx(2 / 5)
    assert found["f1"] == pytest.approx(2 / 5) == found["conlleval_f1"]
    assert (found["PER_precision"], found["PER_recall"]) == (0.5, 1)
    assert (found["ORG_precision"], found["ORG_recall"]) == (0.5, 1)
    assert (found["LOC_precision"], found["LOC_recall"], found["LOC_f1"]) == (0, 0, 0)


def test_an_entity_begins_with_b():
    truths, predictions = tags("O B-PER I-PER"), tags("O I-PER I-PER")
    found = score_tags(predictions, truths)
    assert found["f1"] == 0 and found["conlleval_f1"] == 1
    assert score_tags(truths, truths)["f1"] == 1


def test_nothing_found_is_nothing():
    found = score_tags(tags("O O"), tags("O O"))
    assert set(found.values()) == {0.0} and {"f1", "precision", "recall"} <= set(found)
    found = score_tags(tags("O O", ""), tags("O B-PER", ""))
    assert (found["f1"], found["PER_recall"]) == (0, 0)


def test_other_sentences_are_refused():
    with pytest.raises(ValueError, match="not of the same sentences"):
        score_tags(tags("O"), tags("O O"))
