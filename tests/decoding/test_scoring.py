import numpy as np
import pytest
import scipy.special

from macaron_tf.decoding.scoring import TextScorer
from macaron_tf.text import WordPieceVocabulary
from tests.decoding.toy import language_model
from tests.harness import refuses

TEXT = "the cat sat on the mat .\nthe dog sat on the log .\n\na cat and a dog sat ."


@pytest.fixture(scope="module")
def vocabulary():
    return WordPieceVocabulary.train(TEXT.split("\n") * 4, 40)


@pytest.fixture(scope="module")
def network(vocabulary):
    return language_model(vocabulary.size, block="macaron")


def log_softmax(network, row):
    row = row + [4] * (12 - len(row))  # one shape; a causal model ignores the rest
    logits = np.asarray(network({"token_ids": np.array([row], np.int32)}))[0].astype(np.float64)
    return scipy.special.log_softmax(logits, axis=-1)


def test_continuations_are_scored_as_the_model_alone_does(network, vocabulary):
    ids = vocabulary.encode_lines([TEXT.replace("\n", " ")])[0]
    pairs = [(ids[:5], ids[5:8]), ([], ids[:1]), (ids, ids[3:6]), (ids[:2], ids[2:9])]
    found = TextScorer(network, vocabulary, window=12, batch_tokens=24).score(pairs)
    for place, (context, continuation) in enumerate(pairs):
        kept = context[max(0, len(context) + len(continuation) - 11) :]
        row = [vocabulary.cls_id, *kept, *continuation]
        table = log_softmax(network, row)[len(kept) : len(row) - 1]
        each = [table[i, token] for i, token in enumerate(continuation)]
        np.testing.assert_allclose(found.log_probs[place], sum(each), rtol=1e-4)
        assert found.lengths[place] == len(continuation)
        assert found.greedy[place] == (table.argmax(-1) == continuation).all()
    # The most likely token counts as greedy.
    best = int(log_softmax(network, [vocabulary.cls_id, *ids[:4]])[4].argmax())
    assert TextScorer(network, vocabulary, 12).score([(ids[:4], [best])]).greedy.all()


@pytest.mark.parametrize("stride", [None, 3, 11])
def test_every_token_of_a_text_is_scored_once_behind_what_its_window_shows(
    network, vocabulary, stride
):
    ids = vocabulary.encode_lines([TEXT.replace("\n", " ")])[0]
    scorer = TextScorer(network, vocabulary, window=12)
    found = scorer.score_text(scorer.text_ids(TEXT), stride)
    assert found.lengths.sum() == len(ids)
    step, expected, done, begin = stride or 5, 0.0, 0, 0
    while done < len(ids):
        shown = ids[begin : begin + 11]
        table = log_softmax(network, [vocabulary.cls_id, *shown])
        for place in range(done - begin, len(shown)):
            expected += table[place, shown[place]]
        done, begin = begin + len(shown), begin + step
    np.testing.assert_allclose(found.log_probs.sum(), expected, rtol=1e-4)


def test_what_cannot_be_scored_is_refused(network, vocabulary):
    scorer = TextScorer(network, vocabulary, window=6)
    for pairs, words in (([([5], [])], "0 tokens"), ([([], [5] * 6)], "6 tokens")):
        refuses(words, scorer.score, pairs)
    refuses("text to score has no words", scorer.text_ids, " \n")
    refuses("stride=6", scorer.score_text, scorer.text_ids(TEXT), 6)
    refuses("window=1 leaves no room", TextScorer, network, vocabulary, window=1)
