"""Runs of whole words to be asked for: ALBERT's n-grams and SpanBERT's spans."""

import numpy as np
import tensorflow as tf

from macaron_tf.objectives import draws
from macaron_tf.objectives.mask_choice import words_of


def ngram_lengths(longest: int = 3) -> np.ndarray:
    """p(n) = (1/n) / sum_k (1/k) for n = 1 to `longest` words: `(N,)` float64.

    References: Lan et al. 2020 (ALBERT), section 4.1.
    """
    weights = 1.0 / np.arange(1, longest + 1)
    return weights / weights.sum()


def span_lengths(longest: int = 10, p: float = 0.2) -> np.ndarray:
    """A geometric law cut off at `longest` words and brought back to 1: `(N,)` float64.

    With the defaults the mean is 3.8.

    References: Joshi et al. 2020 (SpanBERT), section 3.1.
    """
    weights = p * (1.0 - p) ** np.arange(longest)
    return weights / weights.sum()


def choose_spans(
    maskable: tf.Tensor,
    starts: tf.Tensor,
    counts: tf.Tensor,
    seed: tf.Tensor,
    lengths: np.ndarray,
    apart: bool = False,
) -> tf.Tensor:
    """Runs of whole words, one after the other, until a row's count is spent.

    Each draws its length, then its place, uniformly among all words from which so many are free.
    What would exceed the count is cut off after the last whole word that fits, as in ALBERT's
    released code (SpanBERT's also cuts within the word). Where no word has so many free ones after
    it, the next lengths are shorter: no two runs overlap, and none crosses a token that is not
    maskable.

    Args:
        maskable: `(B, L)` bool, L static.
        starts: `(B, L)` bool, True where a token begins a word.
        counts: `(B,)` int32, the greatest number of tokens to choose; fewer where the words that
            are left are longer than what is left of it.
        seed: `(2,)` or `(B, 2)` int.
        lengths: `(N,)`, probabilities of 1 to N words.
        apart: keep a word free between two runs, so that the tokens next to each are there to be
            seen. SpanBERT's released code joins runs that touch, for the same end; the lengths
            would then no longer follow their law.

    Returns:
        `(B, L)` int32: 0 where a token is left alone, else a number, one for each run.
    """
    rows, length = tf.shape(maskable)[0], maskable.shape[1]
    words, sizes = words_of(maskable, starts)  # (B, L) each
    before = _before(sizes)  # (B, L + 1), tokens before each word
    limits = tf.constant(np.cumsum(lengths)[:-1], tf.float32)  # (N - 1,)
    order, gap = tf.range(length), int(apart)
    # A round takes a word at least, or lowers the greatest length, so there are at most L + N.
    most = length + len(lengths)
    uniform = tf.transpose(draws.uniform(seed, rows, 2 * most))  # (2 (L + N), B)
    for_length, for_place = uniform[:most, :, None], uniform[most:]  # (L + N, B, 1), (L + N, B)

    def round_(number, left, longest, free, runs):
        drawn = 1 + tf.reduce_sum(tf.cast(for_length[number] >= limits, tf.int32), axis=-1)
        drawn = tf.minimum(drawn, longest)  # (B,)
        # (B, L): free words among those from a word on
        free_before = _before(tf.cast(free, tf.int32))
        ends = tf.minimum(order + drawn[:, None], length)
        ahead = tf.gather(free_before, ends, batch_dims=1) - free_before[:, :-1]
        fits = (ahead == drawn[:, None]) & free & (sizes <= left[:, None])
        places = tf.cumsum(tf.cast(fits, tf.int32), axis=-1)
        found = places[:, -1]
        at = tf.cast(for_place[number] * tf.cast(found, tf.float32), tf.int32)  # (B,)
        # The word of place number `at`; L where there is none.
        first = tf.reduce_sum(tf.cast(places <= at[:, None], tf.int32), axis=-1)
        # (B, N): tokens of the first 1, 2, ... words, of which whole ones are taken
        ends = tf.minimum(first[:, None] + tf.range(1, len(lengths) + 1), length)
        tokens = tf.gather(before, ends, batch_dims=1)
        tokens -= tf.gather(before, first[:, None], batch_dims=1)
        taken = (tokens <= left[:, None]) & (tf.range(len(lengths)) < drawn[:, None])
        taken &= found[:, None] > 0
        left -= tf.reduce_max(tf.where(taken, tokens, 0), axis=-1)
        # Not even one word: the row is done.
        left = tf.where((found > 0) | (drawn > 1), left, 0)
        last = first + tf.reduce_sum(tf.cast(taken, tf.int32), axis=-1)  # the word after
        inside = (order >= first[:, None]) & (order < last[:, None])  # (B, L)
        near = (order >= first[:, None] - gap) & (order < last[:, None] + gap)
        free &= ~(near & (found[:, None] > 0))
        longest = tf.where(found > 0, longest, tf.maximum(drawn - 1, 1))
        return number + 1, left, longest, free, tf.where(inside, number + 1, runs)

    _, _, _, _, runs = tf.while_loop(
        lambda number, left, longest, free, runs: tf.reduce_any(left > 0),
        round_,
        (0, counts, tf.fill([rows], len(lengths)), sizes > 0, tf.zeros_like(sizes)),
    )
    return tf.where(maskable, tf.gather(runs, words, batch_dims=1), 0)


def outer_boundaries(
    runs: tf.Tensor, columns: tf.Tensor, real: tf.Tensor, length: int
) -> dict[str, tf.Tensor]:
    """Where the runs of masked positions begin and end.

    Args:
        runs: `(B, P)` int32, which run of its row each position is in, from 0 on.
        columns: `(B, P)` int32, the positions, ascending.
        real: `(B, P)` bool.
        length: L.

    Returns:
        `left_boundaries` and `right_boundaries (B, P)` int32, the columns next to the run on either
        side (the row's first or last one where it has no more), and `span_places (B, P)` int32,
        from 0 on, within the run; all 0 where a position is not real.
    """
    rows, room = tf.shape(runs)[0], runs.shape[1]
    # (B, P) -> (B P,), a run being counted apart in each row
    segments = tf.reshape(runs + room * tf.range(rows)[:, None], [-1])

    def of_run(reduce, columns):
        reduced = reduce(tf.reshape(columns, [-1]), segments, rows * room)
        return tf.reshape(tf.gather(reduced, segments), [rows, room])  # (B P,) -> (B, P)

    first = of_run(tf.math.unsorted_segment_min, tf.where(real, columns, length))
    last = of_run(tf.math.unsorted_segment_max, tf.where(real, columns, -1))
    boundaries = {
        "left_boundaries": tf.maximum(first - 1, 0),
        "right_boundaries": tf.minimum(last + 1, length - 1),
        "span_places": columns - first,
    }
    return {name: tf.where(real, values, 0) for name, values in boundaries.items()}


def _before(counts: tf.Tensor) -> tf.Tensor:
    """The sum of what is before each column, and of all: `(B, L) -> (B, L + 1)`."""
    return tf.pad(tf.cumsum(counts, axis=-1), [[0, 0], [1, 0]])
