"""Tests of the selection of masked tokens, whole words and spans."""

import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.objectives import MaskingConfig
from macaron_tf.objectives.masking.choice import (
    choose_spans,
    choose_tokens,
    choose_words,
    ngram_lengths,
    span_lengths,
)
from tests.toys import objectives as toy

CONFIG = MaskingConfig(choice="whole_words")


def masked_words(ids, seed):
    return toy.masked(ids, CONFIG, (5, seed), toy.WORD_VOCABULARY)


def test_all_sets_of_tokens_are_equally_likely():
    maskable = np.array([[False, True, True, False, True, True, True, False]] * 12_000)
    for count in (2, 3):
        chosen = choose_tokens(tf.constant(maskable), tf.fill([12_000], count), (3, count))
        chosen = chosen.numpy() > 0
        assert not (chosen & ~maskable).any()
        sets = [tuple(np.flatnonzero(row)) for row in chosen]
        draws = [sets.count(one) for one in itertools.combinations((1, 2, 4, 5, 6), count)]
        assert sum(draws) == 12_000
        assert scipy.stats.chisquare(draws).pvalue > 1e-4


def test_a_single_token_among_hundreds_is_found_and_a_row_without_any_left():
    maskable = np.zeros((3, 512), bool)
    maskable[0, 511] = maskable[1, :500] = True
    chosen = choose_tokens(tf.constant(maskable), tf.constant([1, 500, 0]), (0, 1)).numpy()
    np.testing.assert_array_equal(chosen > 0, maskable)


def test_all_pieces_of_a_word_or_none_and_the_budget_on_average():
    ids = toy.text_rows(200, 128)
    total = 0
    for seed in range(4):
        where = toy.masked_at(masked_words(ids, seed))
        for row, chosen in zip(ids, where, strict=True):
            numbers = toy.word_numbers(row)
            assert not chosen[numbers < 0].any()
            assert not np.isin(numbers[~chosen], numbers[chosen]).any()
        assert where.sum(axis=1).max() == round(0.15 * 126)
        total += where.sum()
    assert total / (4 * 200 * 126) == pytest.approx(0.15, rel=0.01)


def test_words_of_each_size_have_their_share():
    ids = toy.text_rows(400, 256, seed=1)
    where = toy.masked_at(masked_words(ids, 0))
    hits, words = np.zeros(6), np.zeros(6)  # by number of pieces
    for row, chosen in zip(ids, where, strict=True):
        _, first, sizes = np.unique(toy.word_numbers(row), return_index=True, return_counts=True)
        first, sizes = first[1:], sizes[1:]  # without the special tokens
        hits += np.bincount(sizes, chosen[first], minlength=6)
        words += np.bincount(sizes, minlength=6)
    shares = hits[1:4] / words[1:4]
    # Skipping words that no longer fit disfavours long words slightly, by a few positions in 38.
    np.testing.assert_allclose(shares, 0.15, atol=0.012)


def test_a_row_without_a_word_that_fits_is_left_alone():
    ids = np.array(
        [[toy.CLS, *toy.words_of([5]), toy.SEP], [toy.CLS, *toy.words_of([4, 1]), toy.SEP]], "int32"
    )
    where = toy.masked_at(masked_words(ids, 0))
    assert where.tolist() == [[False] * 7, [False] * 5 + [True, False]]


def test_a_word_does_not_reach_across_a_special_token():
    maskable = tf.constant([[True, True, False, True, True]])
    starts = tf.constant([[True, False, False, False, False]])
    seen = {
        tuple(choose_words(maskable, starts, tf.constant([2]), (0, seed)).numpy()[0].tolist())
        for seed in range(20)
    }
    assert seen == {(1, 1, 0, 0, 0), (0, 0, 0, 3, 3)}


def test_a_row_may_begin_within_a_word():
    starts = tf.constant([[False, False, True]])
    chosen = choose_words(tf.fill((1, 3), True), starts, tf.constant([3]), (0, 0))
    assert chosen.numpy().all()


def test_pieces_of_a_masked_word_draw_their_own_fates():
    ids = np.array([[toy.CLS, *toy.words_of([4] * 30), toy.SEP]] * 50, "int32")
    where = toy.masked_at(masked_words(ids, 0))
    assert where.sum() == 50 * 16  # 4 words, for 18 of 120 pieces
    hidden = (masked_words(ids, 0)["token_ids"] == 4)[where].reshape(-1, 4)
    # With independent draws per token, all 4 tokens of a word become [MASK] once in 2.4 words.
    assert 0.3 < hidden.all(axis=1).mean() < 0.52


LAWS = {"ngrams": (ngram_lengths(), False), "spans": (span_lengths(), True)}
BUDGET = 39  # tokens of a row: 15% of 256, rounded up


def runs_of(choice, maskable, starts, budget, seed=0):
    """Returns the span index of each token: `(B, L)`.

    `budget` is the number of tokens to choose, as one number or one number per row.
    """
    lengths, apart = LAWS[choice]
    counts = np.broadcast_to(np.int32(budget), len(maskable))
    chosen = choose_spans(
        tf.constant(maskable), tf.constant(starts), tf.constant(counts), (1, seed), lengths, apart
    )
    return chosen.numpy()


def test_the_laws_are_those_of_the_papers():
    np.testing.assert_allclose(ngram_lengths(), [6 / 11, 3 / 11, 2 / 11])
    law = span_lengths()
    np.testing.assert_allclose(law[1:] / law[:-1], 0.8)
    assert law.sum() == pytest.approx(1.0)
    assert law @ np.arange(1, 11) == pytest.approx(3.8, abs=0.005)


@pytest.fixture(scope="module")
def single():
    """Returns a dict mapping "ngrams" and "spans" to the span indices of rows of one-token words.

    Each row has 254 words. There are over 10^5 spans of each type.
    """
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
    assert (sizes > 0).sum() > 100_000
    # The budget never cuts the first three spans of a row.
    law, early = LAWS[choice][0], sizes[:, :3].ravel()
    found = np.bincount(early, minlength=len(law) + 1)[1:]
    assert scipy.stats.chisquare(found, len(early) * law).pvalue > 1e-4


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
    ids = toy.text_rows(300, 128)
    ids[:100, 40] = ids[100:200, 41] = 3  # [SEP] between two segments
    config = MaskingConfig(rate=rate, choice=choice)
    batch = toy.masked(ids, config, (5, 0), toy.WORD_VOCABULARY)
    ordinary = ids >= 5
    assert (batch["masked_labels"][batch["masked_weights"] > 0] >= 5).all()
    counts = config.counts(128)[ordinary.sum(axis=1)]
    words = np.stack([toy.word_numbers(row) for row in ids])
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
            assert np.isin(numbers, inside).sum() == len(columns)  # no partial words
    found = (runs > 0).sum(axis=1)
    assert (found <= counts).all()
    # If half of a row is masked in separate spans, the last few do not fit.
    assert found.sum() / counts.sum() > (0.995 if rate == 0.15 else 0.9)


def test_what_exceeds_the_budget_ends_with_the_last_whole_word():
    # Words have 2, 3 and 4 tokens; a law with three words only draws a span of all three.
    starts = np.zeros((1, 9), bool)
    starts[0, [0, 2, 5]] = True
    law = np.array([0.0, 0.0, 1.0])
    for budget, expected in ((9, 9), (8, 5), (5, 5), (4, 2), (2, 2)):
        maskable = tf.ones((1, 9), tf.bool)
        chosen = choose_spans(maskable, tf.constant(starts), tf.constant([budget]), (0, 0), law)
        assert (chosen.numpy()[0, :expected] == 1).all()
        # The rest of the budget may hold one of the later words.
        assert (chosen.numpy() > 0).sum() <= budget


def test_short_rows_are_filled_and_empty_ones_left():
    maskable = np.arange(6)[None] < np.array([[0], [1], [2], [6]])
    runs = runs_of("ngrams", maskable, np.ones_like(maskable), maskable.sum(axis=1))
    np.testing.assert_array_equal(runs > 0, maskable)
    # A single word longer than the budget.
    assert not runs_of("spans", maskable[3:], np.zeros((1, 6), bool), 5).any()
