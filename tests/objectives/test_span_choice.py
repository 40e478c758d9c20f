import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.objectives import MaskingConfig, mask_tokens
from macaron_tf.objectives.masking.choice import choose_spans, ngram_lengths, span_lengths
from tests.objectives.masking_toy import WORD_VOCABULARY, text_rows, word_numbers

LAWS = {"ngrams": (ngram_lengths(), False), "spans": (span_lengths(), True)}
BUDGET = 39  # tokens of a row: 15% of 256, rounded up


def runs_of(choice, maskable, starts, budget, seed=0):
    """Which run each token is in, `(B, L)`; one budget for all rows, or one for each."""
    lengths, apart = LAWS[choice]
    counts = np.broadcast_to(np.int32(budget), len(maskable))
    chosen = choose_spans(
        tf.constant(maskable), tf.constant(starts), tf.constant(counts), (1, seed), lengths, apart
    )
    return chosen.numpy()


def expected_lengths(probabilities, budget):
    """How many runs of each length a row has: lengths are drawn until the last is cut off."""
    longest = len(probabilities)
    counts = np.zeros((budget + 1, longest))  # by what is left
    for left in range(1, budget + 1):
        for length, probability in enumerate(probabilities, 1):
            counts[left] += probability * counts[max(left - length, 0)]
            counts[left, min(length, left) - 1] += probability
    return counts[budget]


def test_the_laws_are_those_of_the_papers():
    np.testing.assert_allclose(ngram_lengths(), [6 / 11, 3 / 11, 2 / 11])
    law = span_lengths()
    np.testing.assert_allclose(law[1:] / law[:-1], 0.8)
    assert law.sum() == pytest.approx(1.0)
    assert law @ np.arange(1, 11) == pytest.approx(3.8, abs=0.005)


@pytest.fixture(scope="module")
def single():
    """By choice, runs in rows of 254 words of one token: more than 10^5 runs each."""
    found = {}
    for choice, rows in (("ngrams", 4400), ("spans", 10_000)):
        maskable = np.ones((rows, 256), bool)
        maskable[:, [0, -1]] = False
        found[choice] = runs_of(choice, maskable, np.ones_like(maskable), BUDGET)
    return found


@pytest.mark.parametrize("choice", LAWS)
def test_lengths_follow_their_law_on_100_000_draws(single, choice):
    runs = single[choice]
    assert ((runs > 0).sum(axis=1) == BUDGET).all()
    sizes = np.stack([np.bincount(row, minlength=100)[1:] for row in runs])
    histogram = np.bincount(sizes[sizes > 0], minlength=len(LAWS[choice][0]) + 1)[1:]
    assert histogram.sum() > 100_000
    expected = len(runs) * expected_lengths(LAWS[choice][0], BUDGET)
    # The budget makes the counts vary a little less than those of independent draws.
    statistic = ((histogram - expected) ** 2 / expected).sum()
    assert scipy.stats.chi2(len(expected) - 1).sf(statistic) > 1e-4
    # The first of each row was cut by nothing: exactly the law.
    first = np.bincount(sizes[:, 0], minlength=len(expected) + 1)[1:]
    assert scipy.stats.chisquare(first, len(runs) * LAWS[choice][0]).pvalue > 1e-4


@pytest.mark.parametrize("choice", LAWS)
def test_every_place_where_a_run_fits_is_as_likely(single, choice):
    first = single[choice] == 1
    sizes, begins = first.sum(axis=1), first.argmax(axis=1) - 1  # the row begins after [CLS]
    share = (begins + np.random.default_rng(0).random(len(begins))) / (254 - sizes + 1)
    assert scipy.stats.kstest(share, "uniform").pvalue > 1e-4


def test_the_tokens_around_spans_are_there_to_be_seen(single):
    runs = single["spans"]
    touching = (runs[:, 1:] != runs[:, :-1]) & (runs[:, 1:] > 0) & (runs[:, :-1] > 0)
    assert not touching.any()
    runs = single["ngrams"]
    assert ((runs[:, 1:] != runs[:, :-1]) & (runs[:, 1:] > 0) & (runs[:, :-1] > 0)).any()


@pytest.mark.parametrize("choice", LAWS)
@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_runs_are_of_whole_words_and_cross_nothing_special(choice, rate):
    ids = text_rows(300, 128)
    ids[:100, 40] = ids[100:200, 41] = 3  # [SEP] between two segments
    config = MaskingConfig(rate=rate, choice=choice)
    batch = mask_tokens({"token_ids": tf.constant(ids)}, (5, 0), config, WORD_VOCABULARY)
    ordinary = ids >= 5
    assert (batch["masked_labels"].numpy()[batch["masked_weights"].numpy() > 0] >= 5).all()
    counts = config.counts(128)[ordinary.sum(axis=1)]
    words = np.stack([word_numbers(row) for row in ids])
    starts = np.diff(words, prepend=-1, axis=1) != 0
    runs = runs_of(choice, ordinary, starts, counts)
    assert not runs[~ordinary].any()
    longest = len(LAWS[choice][0])
    for row, numbers in zip(runs, words, strict=True):
        for run in np.unique(row[row > 0]):
            columns = np.flatnonzero(row == run)
            assert (np.diff(columns) == 1).all()
            inside = np.unique(numbers[columns])
            assert len(inside) <= longest
            assert np.isin(numbers, inside).sum() == len(columns)  # no word in part
    found = (runs > 0).sum(axis=1)
    assert (found <= counts).all()
    # Half of a row in spans apart leaves no room for the last few.
    assert found.sum() / counts.sum() > (0.995 if rate == 0.15 else 0.9)


def test_what_exceeds_the_budget_ends_with_the_last_whole_word():
    # Words of 2, 3 and 4 tokens; with one law of three words a run of all three is drawn.
    starts = np.zeros((1, 9), bool)
    starts[0, [0, 2, 5]] = True
    law = np.array([0.0, 0.0, 1.0])
    for budget, expected in ((9, 9), (8, 5), (5, 5), (4, 2), (2, 2)):
        maskable = tf.ones((1, 9), tf.bool)
        chosen = choose_spans(maskable, tf.constant(starts), tf.constant([budget]), (0, 0), law)
        assert (chosen.numpy()[0, :expected] == 1).all()
        # What is left may hold one of the words after them.
        assert (chosen.numpy() > 0).sum() <= budget


def test_short_rows_are_filled_and_empty_ones_left():
    maskable = np.arange(6)[None] < np.array([[0], [1], [2], [6]])
    runs = runs_of("ngrams", maskable, np.ones_like(maskable), maskable.sum(axis=1))
    np.testing.assert_array_equal(runs > 0, maskable)
    # A single word longer than the budget.
    assert not runs_of("spans", maskable[3:], np.zeros((1, 6), bool), 5).any()


def test_same_seed_same_runs():
    ids = text_rows(20, 64)
    maskable, starts = ids >= 5, ids < 45
    for choice in LAWS:
        one, same, other = (runs_of(choice, maskable, starts, 9, seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, same)
        assert ((one > 0) != (other > 0)).any(axis=1).all()
