"""Random choices of tokens, words and spans, with one seed per batch or one seed per row.

B is the batch size and L the row length.
"""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

# TensorFlow's default algorithm depends on the device. A fixed algorithm gives equal draws on all
# devices.
_ALGORITHM = "philox"


def _by_seed(draw: Callable, seed: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """Calls `draw` with a seed `(2,)`, or maps and stacks it over the B seeds of `(B, 2)`."""
    seed = tf.convert_to_tensor(seed)
    return draw(seed) if seed.shape.rank == 1 else tf.map_fn(draw, seed, fn_output_signature=dtype)


def split(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Splits a seed, `(2,)` or `(B, 2)` int, into `count` independent seeds of the same shape."""
    seeds = _by_seed(lambda row_seed: tf.random.split(row_seed, count, alg=_ALGORITHM), seed)
    return tf.unstack(seeds, count, axis=-2)


def fold_in(seed: tf.Tensor, value: tf.Tensor | int) -> tf.Tensor:
    """Derives a new seed of the same shape, `(2,)` or `(B, 2)` int, from a seed and an integer."""
    seed = tf.convert_to_tensor(seed)
    value = value if seed.shape.rank == 1 else tf.cast(value, seed.dtype)
    fold = tf.random.experimental.stateless_fold_in
    return _by_seed(lambda row_seed: fold(row_seed, value, _ALGORITHM), seed)


def uniform(
    seed: tf.Tensor, rows: tf.Tensor | int, columns: int, below: int | None = None
) -> tf.Tensor:
    """Draws uniform random `(rows, columns)`: float32 in [0, 1), or int32 from 0 to `below` - 1.

    With one seed per row, `(B, 2)` instead of `(2,)`, a row does not depend on the other rows.
    """
    seed = tf.convert_to_tensor(seed)
    dtype = tf.float32 if below is None else tf.int32
    shape = [rows, columns] if seed.shape.rank == 1 else [columns]
    options = {"minval": 0, "maxval": below, "dtype": dtype, "alg": _ALGORITHM}
    return _by_seed(functools.partial(tf.random.stateless_uniform, shape, **options), seed, dtype)


def choose_tokens(maskable: tf.Tensor, counts: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Chooses maskable tokens of each row uniformly, without replacement.

    It draws positions with replacement, and skips repeated and not maskable ones, until the row has
    enough. All sets of this size are then equally likely. This rejection sampling can take a fifth
    of the time of sorting one random number per token.

    `maskable` is bool `(B, L)`, and `counts (B,)` is at most its number of True values. The result
    is `(B, L)` int32, the position plus 1 at chosen tokens, and 0 elsewhere.
    """
    rows, length = tf.unstack(tf.shape(maskable))
    # Draws per round. At a masking rate of 15%, one round is nearly always enough.
    num_draws = max(8, maskable.shape[1] // 4)
    # Do not draw columns after each row's last maskable column, because they would be skipped.
    span = tf.reduce_max(tf.where(maskable, tf.range(length) + 1, 0), axis=-1, keepdims=True)
    span = tf.cast(span, tf.float32)  # (B, 1)
    starts = length * tf.range(rows)[:, None]  # (B, 1), each row's first index in (B L,)

    def round_(round_index, missing, used, first):
        draw = uniform(fold_in(seed, round_index), rows, num_draws)
        drawn = starts + tf.cast(draw * span, tf.int32)  # (B, N)
        order = round_index * num_draws + tf.range(num_draws)  # (N,)
        orders = tf.broadcast_to(order, [rows, num_draws])
        first = tf.minimum(first, tf.math.unsorted_segment_min(orders, drawn, rows * length))
        new = tf.cast(tf.gather(first, drawn) == order, tf.int32)  # (B, N)
        # tf.while_loop requires the static shape, which tf.gather loses.
        new = tf.ensure_shape(new, [counts.shape[0], num_draws])
        needed = tf.cumsum(new, axis=-1, exclusive=True) < missing[:, None]
        used += tf.reduce_sum(tf.cast(needed, tf.int32), axis=-1)
        missing -= tf.minimum(missing, tf.reduce_sum(new, axis=-1))
        return round_index + 1, missing, used, first

    # (B L,): index of the first draw of each token; -1 at tokens that are not maskable, so that
    # no draw of such a token counts as new.
    first = tf.reshape(tf.where(maskable, tf.int32.max, -1), [-1])
    _, _, used, first = tf.while_loop(
        lambda round_index, missing, used, first: tf.reduce_any(missing > 0),
        round_,
        (0, counts, tf.zeros_like(counts), first),
    )
    chosen = maskable & (tf.reshape(first, [rows, length]) < used[:, None])
    return tf.where(chosen, tf.range(length) + 1, 0)


def choose_words(
    maskable: tf.Tensor, starts: tf.Tensor, counts: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Chooses whole words in random order, as BERT's released code does.

    Words with more tokens than the remaining count are skipped, so fewer than `counts (B,)` tokens
    may be chosen. The bool `starts (B, L)` is True where a token begins a word. The result is
    `(B, L)` int32, the word index plus 1 at chosen tokens, and 0 elsewhere.
    """
    words, sizes = words_of(maskable, starts)  # (B, L) each
    scores = tf.where(sizes > 0, uniform(seed, tf.shape(sizes)[0], maskable.shape[1]), -1.0)
    order = tf.argsort(scores, axis=-1, direction="DESCENDING", stable=True)  # (B, L), word indices
    chosen = _fill(tf.gather(sizes, order, batch_dims=1), counts)
    # (B, L) in random order -> (B, L) by word -> (B, L) by token
    chosen = tf.gather(chosen, tf.argsort(order, axis=-1), batch_dims=1)
    return tf.where(maskable & tf.gather(chosen, words, batch_dims=1), words + 1, 0)


def words_of(maskable: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the word index of each token, and the number of maskable tokens of each word.

    Both are `(B, L)` int32. The index counts from 0 in each row. The second has the sizes of word
    0, 1, ... of the row, and then zeros. A token that is not maskable is a word of size 0.
    """
    after_special = tf.pad(~maskable[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    begins = tf.cast(starts | ~maskable | after_special, tf.int32)
    words = tf.cumsum(begins, axis=-1) - 1  # (B, L)
    return words, reduced_by_row(tf.cast(maskable, tf.int32), words, maskable.shape[1])


def reduced_by_row(
    values: tf.Tensor, groups: tf.Tensor, num_groups: int, reduce=tf.math.unsorted_segment_sum
) -> tf.Tensor:
    """Reduces the values of each group in each row: `(B, N)` to `(B, num_groups)`.

    `groups (B, N)` has the group index of each value, from 0 to `num_groups` - 1 in each row.
    """
    rows = tf.shape(values)[0]
    groups = tf.reshape(groups + num_groups * tf.range(rows)[:, None], [-1])  # (B, N) -> (B N,)
    reduced = reduce(tf.reshape(values, [-1]), groups, rows * num_groups)
    return tf.reshape(reduced, [rows, num_groups])


def lookup_by_count(table: np.ndarray, mask: tf.Tensor) -> tf.Tensor:
    """Returns the entry of `table (L + 1, ...)` for each row's count of True in `(B, L)`."""
    return tf.gather(tf.constant(table), tf.reduce_sum(tf.cast(mask, tf.int32), axis=-1))


def _fill(sizes: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Takes words in order until each row's token count is used up, skipping words that do not fit.

    Each round takes the longest prefix that fits, and drops the words with more tokens than remain:
    two or three rounds for 512 tokens. `sizes (B, L)` are tokens per word; True is a taken word.
    """

    def round_(taken, candidates, remaining):
        running = tf.cumsum(tf.where(candidates, sizes, 0), axis=-1)
        prefix = candidates & (running <= remaining[:, None])
        remaining -= tf.reduce_sum(tf.where(prefix, sizes, 0), axis=-1)
        return taken | prefix, candidates & ~prefix & (sizes <= remaining[:, None]), remaining

    candidates = (sizes > 0) & (sizes <= counts[:, None])
    taken, _, _ = tf.while_loop(
        lambda taken, candidates, remaining: tf.reduce_any(candidates),
        round_,
        (tf.zeros_like(candidates), candidates, counts),
    )
    return taken


def ngram_lengths(max_length: int = 3) -> np.ndarray:
    """Returns n-gram lengths' probabilities, proportional to 1/n (Lan et al. 2020, section 4.1)."""
    weights = 1.0 / np.arange(1, max_length + 1)
    return weights / weights.sum()


def span_lengths(max_length: int = 10, p: float = 0.2) -> np.ndarray:
    """Returns the probabilities of span lengths from 1 to `max_length` words.

    The span length has a geometric distribution with parameter p, truncated. With the defaults, the
    mean is 3.8 words.

    References: Joshi et al. 2020 (SpanBERT), section 3.1.
    """
    weights = p * (1.0 - p) ** np.arange(max_length)
    return weights / weights.sum()


def choose_spans(
    maskable: tf.Tensor,
    starts: tf.Tensor,
    counts: tf.Tensor,
    seed: tf.Tensor,
    lengths: np.ndarray,
    apart: bool = False,
) -> tf.Tensor:
    """Chooses spans of whole words, one span after another, until each row has enough tokens.

    For each span, a length n in words is drawn, then the first word, uniformly among all words that
    fit the remaining count and begin n consecutive free words. If there is none, all further spans
    of the row have fewer than n words. A span that would exceed the count is cut after the last
    whole word that fits, as in ALBERT's released code. SpanBERT's code also cuts within a word.
    Spans do not overlap. The result is `(B, L)` int32, a positive number that identifies the span
    at chosen tokens, and 0 elsewhere.

    Args:
        starts: `(B, L)` bool, True where a token begins a word.
        counts: `(B,)` int32, maximum number of tokens to choose.
        lengths: `(N,)`, probabilities of the span lengths 1 to N, in words.
        apart: whether to keep at least one unmasked word between two spans. SpanBERT's released
            code merges adjacent spans, so its span lengths do not follow `lengths`.
    """
    rows, length = tf.shape(maskable)[0], maskable.shape[1]
    words, sizes = words_of(maskable, starts)  # (B, L) each
    before = _exclusive_cumsum(sizes)  # (B, L + 1), tokens before each word
    limits = tf.constant(np.cumsum(lengths)[:-1], tf.float32)  # (N - 1,)
    word_indices, gap = tf.range(length), int(apart)
    # Each round chooses a word or lowers the maximum length, so there are at most L + N rounds.
    max_rounds = length + len(lengths)
    uniform_draws = tf.transpose(uniform(seed, rows, 2 * max_rounds))  # (2 (L + N), B)
    length_draws = uniform_draws[:max_rounds, :, None]  # (L + N, B, 1)
    first_draws = uniform_draws[max_rounds:]  # (L + N, B)

    def round_(round_index, remaining, max_length, free, span_ids):
        above_limits = tf.cast(length_draws[round_index] >= limits, tf.int32)
        num_words = 1 + tf.reduce_sum(above_limits, axis=-1)
        num_words = tf.minimum(num_words, max_length)  # (B,)
        # (B, L): free words among the `num_words` words from each word on
        free_before = _exclusive_cumsum(tf.cast(free, tf.int32))
        ends = tf.minimum(word_indices + num_words[:, None], length)
        free_ahead = tf.gather(free_before, ends, batch_dims=1) - free_before[:, :-1]
        fits = (free_ahead == num_words[:, None]) & free & (sizes <= remaining[:, None])
        ranks = tf.cumsum(tf.cast(fits, tf.int32), axis=-1)
        num_fitting = ranks[:, -1]
        pick = first_draws[round_index] * tf.cast(num_fitting, tf.float32)
        pick = tf.cast(pick, tf.int32)  # (B,)
        # Index of the fitting word number `pick`; L if no word fits.
        first = tf.reduce_sum(tf.cast(ranks <= pick[:, None], tf.int32), axis=-1)
        # (B, N): number of tokens in the span's first 1, 2, ... words
        ends = tf.minimum(first[:, None] + tf.range(1, len(lengths) + 1), length)
        tokens = tf.gather(before, ends, batch_dims=1)
        tokens -= tf.gather(before, first[:, None], batch_dims=1)
        taken = (tokens <= remaining[:, None]) & (tf.range(len(lengths)) < num_words[:, None])
        taken &= num_fitting[:, None] > 0
        remaining -= tf.reduce_max(tf.where(taken, tokens, 0), axis=-1)
        # If not even a span of one word fits, the row is done.
        remaining = tf.where((num_fitting > 0) | (num_words > 1), remaining, 0)
        last = first + tf.reduce_sum(tf.cast(taken, tf.int32), axis=-1)  # the word after the span
        inside = (word_indices >= first[:, None]) & (word_indices < last[:, None])  # (B, L)
        blocked = (word_indices >= first[:, None] - gap) & (word_indices < last[:, None] + gap)
        free &= ~(blocked & (num_fitting[:, None] > 0))
        max_length = tf.where(num_fitting > 0, max_length, tf.maximum(num_words - 1, 1))
        span_ids = tf.where(inside, round_index + 1, span_ids)
        return round_index + 1, remaining, max_length, free, span_ids

    _, _, _, _, span_ids = tf.while_loop(
        lambda round_index, remaining, max_length, free, span_ids: tf.reduce_any(remaining > 0),
        round_,
        (0, counts, tf.fill([rows], len(lengths)), sizes > 0, tf.zeros_like(sizes)),
    )
    return tf.where(maskable, tf.gather(span_ids, words, batch_dims=1), 0)


def outer_boundaries(
    span_ids: tf.Tensor, columns: tf.Tensor, real: tf.Tensor, length: int
) -> dict[str, tf.Tensor]:
    """Finds the boundary tokens of each masked span, and each masked token's position in its span.

    `span_ids (B, P)` is the span index of each of at most P masked tokens, from 0 in each row, and
    `columns (B, P)` their ascending positions in a row of L = `length`. `real (B, P)` is False at
    padding.

    The results are `(B, P)` int32, 0 at padding: `left_boundaries` and `right_boundaries`, the
    positions before and after the span, clipped to [0, L - 1], and `span_positions` within the
    span, from 0.
    """

    def end_of(outside, reduce):
        values = tf.where(real, columns, outside)
        ends = reduced_by_row(values, span_ids, span_ids.shape[1], reduce)
        return tf.gather(ends, span_ids, batch_dims=1)  # (B, P)

    first = end_of(length, tf.math.unsorted_segment_min)
    last = end_of(-1, tf.math.unsorted_segment_max)
    boundaries = {
        "left_boundaries": tf.maximum(first - 1, 0),
        "right_boundaries": tf.minimum(last + 1, length - 1),
        "span_positions": columns - first,
    }
    return {name: tf.where(real, values, 0) for name, values in boundaries.items()}


def _exclusive_cumsum(counts: tf.Tensor) -> tf.Tensor:
    """Computes cumulative sums `(B, L + 1)` of `(B, L)`, with a leading 0 in each row."""
    return tf.pad(tf.cumsum(counts, axis=-1), [[0, 0], [1, 0]])
