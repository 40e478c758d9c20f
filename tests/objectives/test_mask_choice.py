import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.objectives import MaskingConfig, mask_tokens
from macaron_tf.objectives.masking.choice import _fill, choose_tokens, choose_words
from tests.objectives.masking_toy import (
    CLS,
    SEP,
    WORD_VOCABULARY,
    text_rows,
    word_numbers,
    words_of,
)

CONFIG = MaskingConfig(choice="whole_words")


def masked_positions(ids, seed, config=CONFIG):
    batch = mask_tokens({"token_ids": tf.constant(ids)}, (5, seed), config, WORD_VOCABULARY)
    weights, positions = batch["masked_weights"].numpy(), batch["masked_positions"].numpy()
    where = np.zeros(ids.shape, bool)
    rows, places = np.nonzero(weights)
    where[rows, positions[rows, places]] = True
    return where


def test_all_sets_of_tokens_are_equally_likely():
    maskable = np.array([[False, True, True, False, True, True, True, False]] * 12_000)
    for count in (2, 3):
        chosen = (
            choose_tokens(tf.constant(maskable), tf.fill([12_000], count), (3, count)).numpy() > 0
        )
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
    ids = text_rows(200, 128)
    total = 0
    for seed in range(4):
        where = masked_positions(ids, seed)
        for row, chosen in zip(ids, where, strict=True):
            numbers = word_numbers(row)
            assert not chosen[numbers < 0].any()
            for number in set(numbers[chosen]):
                assert chosen[numbers == number].all()
        assert where.sum(axis=1).max() == round(0.15 * 126)
        total += where.sum()
    assert total / (4 * 200 * 126) == pytest.approx(0.15, rel=0.01)


def test_words_of_each_size_have_their_share():
    ids = text_rows(400, 256, seed=1)
    where = masked_positions(ids, 0)
    shares = []
    for size in (1, 2, 3):
        hits = draws = 0
        for row, chosen in zip(ids, where, strict=True):
            numbers = word_numbers(row)
            for number in np.unique(numbers[numbers >= 0]):
                of_word = numbers == number
                if of_word.sum() == size:
                    draws, hits = draws + 1, hits + int(chosen[of_word][0])
        shares.append(hits / draws)
    # Passing over what no longer fits costs long words a little: a few places in 38.
    np.testing.assert_allclose(shares, 0.15, atol=0.012)


@pytest.mark.parametrize("seed", range(3))
def test_rounds_choose_what_one_word_after_the_other_does(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 8, (200, 30)).astype("int32")
    counts = rng.integers(0, 25, 200).astype("int32")
    expected = np.zeros(sizes.shape, bool)
    for row in range(200):
        left = counts[row]
        for place, size in enumerate(sizes[row]):
            if 0 < size <= left:
                expected[row, place] = True
                left -= size
    np.testing.assert_array_equal(_fill(tf.constant(sizes), tf.constant(counts)), expected)


def test_a_row_without_a_word_that_fits_is_left_alone():
    ids = np.array([[CLS, *words_of([5]), SEP], [CLS, *words_of([4, 1]), SEP]], "int32")
    where = masked_positions(ids, 0)
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
    ids = np.array([[CLS, *words_of([4] * 30), SEP]] * 50, "int32")
    where = masked_positions(ids, 0)
    assert where.sum() == 50 * 16  # 4 words, for 18 of 120 pieces
    batch = mask_tokens({"token_ids": tf.constant(ids)}, (5, 0), CONFIG, WORD_VOCABULARY)
    hidden = (batch["token_ids"].numpy() == 4)[where].reshape(-1, 4)
    # All 4 pieces share a fate of their word's once in 2.4 words if they draw apart.
    assert 0.3 < hidden.all(axis=1).mean() < 0.52
