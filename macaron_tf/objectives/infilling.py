"""BART's text infilling: spans of words give way to one mask each, and masks stand for nothing."""

import math

import numpy as np
import tensorflow as tf

from macaron_tf.objectives import draws
from macaron_tf.objectives.corruption import lengths_of
from macaron_tf.objectives.mask_choice import choose_tokens, words_of
from macaron_tf.special_ids import PAD

# Draws beyond the budget, which spans of no word do not spend: all of 16 are such at mean 3 in
# one of e^48 rows, whose budget is then not spent.
_SPARE = 16


def poisson_limits(mean: float) -> np.ndarray:
    """P(X <= k) for k = 0, 1, ... up to where the rest is below 1e-7: `(N,)` float32."""
    probabilities, k, rest = [math.exp(-mean)], 0, 1.0 - math.exp(-mean)
    while rest > 1e-7:
        k += 1
        probabilities.append(probabilities[-1] * mean / k)
        rest -= probabilities[-1]
    return np.cumsum(probabilities).astype(np.float32)


def draw_spans(
    budget: tf.Tensor, seed: tf.Tensor, mean: float, most: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Spans until their words are the budget; what exceeds it is cut off the last one.

    Args:
        budget: `(B,)` int32, words, at most `most`.
        seed: `(2,)` or `(B, 2)` int.
        mean: of the Poisson law of the lengths.
        most: the greatest budget.

    Returns:
        Lengths `(B, M)` int32, and which are drawn `(B, M)` bool, the first ones of a row; lengths
        of 0 among them.
    """
    room = most + _SPARE
    uniform = draws.uniform(seed, tf.shape(budget)[0], room)  # (B, M)
    limits = tf.constant(poisson_limits(mean))
    lengths = tf.reshape(
        tf.searchsorted(limits, tf.reshape(uniform, [-1]), side="right"), tf.shape(uniform)
    )
    left = budget[:, None] - tf.cumsum(lengths, axis=-1, exclusive=True)
    drawn = left > 0
    return tf.where(drawn, tf.minimum(lengths, left), 0), drawn


def infill(
    text: tf.Tensor,
    starts: tf.Tensor,
    seed: tf.Tensor,
    rate: float,
    mean: float,
    mask_id: int,
) -> tf.Tensor:
    """Hides ceil(rate W) of a text's W words in spans, each behind one mask.

    Lengths are drawn from a Poisson law until the budget is spent; a span of no word is a mask
    more. Every order of the spans among the words that are left is as likely: no two overlap, so
    that each keeps its length and its mask. (The released code draws places of spans that may
    overlap, whose masks then melt into one, and hides fewer words than the budget.)

    A text never grows beyond R tokens: spans of no word for which there is no room are left out,
    which happens to texts of a few words only.

    Args:
        text: `(B, R)` int, R static, padding at the end.
        starts: `(B, R)` bool, True where a token begins a word.
        seed: `(2,)` or `(B, 2)` int.
        rate: part of the words. mean: words of a span. mask_id: id of the mask.

    Returns:
        `(B, R)`, packed to the left.

    References: Lewis et al. 2020 (BART), section 2.2.
    """
    rows, room = tf.shape(text)[0], text.shape[1]
    of_lengths, of_order, of_places = draws.split(seed, 3)
    columns = tf.range(room)
    _, sizes = words_of(text != PAD, starts)  # (B, R), tokens of word 0, 1, ...
    words = tf.reduce_sum(tf.cast(sizes > 0, tf.int32), axis=-1)  # (B,)
    budgets = np.array([math.ceil(rate * n - 1e-9) for n in range(room + 1)], np.int32)
    budget = tf.gather(tf.constant(budgets), words)
    lengths, drawn = draw_spans(budget, of_lengths, mean, int(budgets[-1]))  # (B, M) each
    hidden = tf.reduce_sum(lengths, axis=-1)  # (B,), words
    inserts = tf.cast(drawn & (lengths == 0), tf.int32)
    spans = tf.reduce_sum(tf.cast(lengths > 0, tf.int32), axis=-1)
    spare = room - lengths_of(text) + hidden - spans
    drawn &= (inserts == 0) | (tf.cumsum(inserts, axis=-1) <= spare[:, None])
    masks = tf.reduce_sum(tf.cast(drawn, tf.int32), axis=-1)
    # The last one drawn is the one that was cut: in random order it may stand anywhere.
    order = draws.uniform(of_order, rows, drawn.shape[1])
    order = tf.argsort(tf.where(drawn, order, 2.0), axis=-1)
    lengths = tf.gather(lengths, order, batch_dims=1)

    # What is left of the text is a row of slots: a word each, or a mask.
    slots = words - hidden + masks  # (B,)
    masked = choose_tokens(columns < slots[:, None], masks, of_places) > 0  # (B, R)
    before = tf.cumsum(tf.cast(masked, tf.int32), axis=-1, exclusive=True)  # masks
    at = tf.minimum(before, lengths.shape[1] - 1)
    length = tf.where(masked, tf.gather(lengths, at, batch_dims=1), 0)
    word = columns - before + tf.cumsum(length, axis=-1, exclusive=True)  # of a slot that has one
    word = tf.minimum(word, room - 1)
    size = tf.where(masked, 1, tf.gather(sizes, word, batch_dims=1))
    size = tf.where(columns < slots[:, None], size, 0)  # (B, R), tokens of a slot
    ends = tf.cumsum(size, axis=-1)

    # From slots to tokens: which slot each column is in, and where in it.
    wide = tf.broadcast_to(columns, tf.shape(text))
    slot = tf.minimum(tf.searchsorted(ends, wide, side="right"), room - 1)  # (B, R)

    def of_slot(values):
        return tf.gather(values, slot, batch_dims=1)

    first = tf.gather(tf.cumsum(sizes, axis=-1, exclusive=True), of_slot(word), batch_dims=1)
    token = tf.clip_by_value(first + columns - of_slot(ends - size), 0, room - 1)
    ids = tf.gather(text, token, batch_dims=1)
    ids = tf.where(of_slot(masked), tf.constant(mask_id, text.dtype), ids)
    return tf.where(columns < ends[:, -1:], ids, PAD)
