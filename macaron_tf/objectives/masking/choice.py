"""Random choices of tokens, words and spans, with one seed for a batch or one for each row."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

# TensorFlow's default differs between devices; a named algorithm draws the same numbers on all.
_ALGORITHM = "philox"


def _by_seed(draw: Callable, seed: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """Calls `draw` with a seed `(2,)`, or with each of the seeds `(B, 2)`.

    Args:
        dtype: of the draws; None: the seed's.
    """
    seed = tf.convert_to_tensor(seed)
    return draw(seed) if seed.shape.rank == 1 else tf.map_fn(draw, seed, fn_output_signature=dtype)


def split(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Splits a seed, `(2,)` or `(B, 2)`, into `count` independent ones of the same shape."""
    seeds = _by_seed(lambda own: tf.random.split(own, count, alg=_ALGORITHM), seed)
    return tf.unstack(seeds, count, axis=-2)


def fold_in(seed: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    """Derives a seed from a seed and a number; its shape, `(2,)` or `(B, 2)`, stays."""
    seed = tf.convert_to_tensor(seed)
    number = number if seed.shape.rank == 1 else tf.cast(number, seed.dtype)
    fold = tf.random.experimental.stateless_fold_in
    return _by_seed(lambda own: fold(own, number, _ALGORITHM), seed)


def uniform(
    seed: tf.Tensor, rows: tf.Tensor | int, columns: int, below: int | None = None
) -> tf.Tensor:
    """Uniform draws `(B, N)`: float32 in [0, 1), or int32 from 0 to `below` - 1.

    Args:
        seed: `(2,)`, or `(B, 2)`; with a seed of its own, a row has the same draws in any batch.
        rows: B.
        columns: N.
    """
    seed = tf.convert_to_tensor(seed)
    dtype = tf.float32 if below is None else tf.int32
    shape = [rows, columns] if seed.shape.rank == 1 else [columns]

    def draw(seed):
        return tf.random.stateless_uniform(shape, seed, 0, below, dtype, alg=_ALGORITHM)

    return _by_seed(draw, seed, dtype)


def choose_tokens(maskable: tf.Tensor, counts: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Chooses maskable tokens of each row, uniformly and without replacement.

    Columns are drawn with replacement, and repeats and columns that are not maskable are skipped,
    until the row has enough. All sets of that size are then equally likely. This takes a fifth of
    the time of sorting a random number for each token.

    Args:
        maskable: `(B, L)` bool, L static.
        counts: `(B,)` int32, at most the number of maskable tokens.
        seed: `(2,)` or `(B, 2)` int.

    Returns:
        `(B, L)` int32, above 0 at the `counts` chosen tokens of each row.
    """
    rows, length = tf.unstack(tf.shape(maskable))
    number_drawn = max(8, maskable.shape[1] // 4)  # a round; at 15% one nearly always suffices
    # Draw up to each row's last maskable column only: draws of padding would be skipped.
    span = tf.reduce_max(tf.where(maskable, tf.range(length) + 1, 0), axis=-1, keepdims=True)
    span = tf.cast(span, tf.float32)  # (B, 1)
    starts = length * tf.range(rows)[:, None]  # (B, 1), each row's first index in (B L,)

    def round_(number, missing, used, first):
        draw = uniform(fold_in(seed, number), rows, number_drawn)
        drawn = starts + tf.cast(draw * span, tf.int32)  # (B, N)
        order = number * number_drawn + tf.range(number_drawn)  # (N,)
        orders = tf.broadcast_to(order, [rows, number_drawn])
        first = tf.minimum(first, tf.math.unsorted_segment_min(orders, drawn, rows * length))
        new = tf.cast(tf.gather(first, drawn) == order, tf.int32)  # (B, N)
        # Restore the static shape; tf.while_loop requires it.
        new = tf.ensure_shape(new, [counts.shape[0], number_drawn])
        needed = tf.cumsum(new, axis=-1, exclusive=True) < missing[:, None]
        used += tf.reduce_sum(tf.cast(needed, tf.int32), axis=-1)
        missing -= tf.minimum(missing, tf.reduce_sum(new, axis=-1))
        return number + 1, missing, used, first

    # (B L,): the number of a token's first draw; -1 where not maskable, so no draw of it is new.
    first = tf.reshape(tf.where(maskable, tf.int32.max, -1), [-1])
    _, _, used, first = tf.while_loop(
        lambda number, missing, used, first: tf.reduce_any(missing > 0),
        round_,
        (0, counts, tf.zeros_like(counts), first),
    )
    chosen = maskable & (tf.reshape(first, [rows, length]) < used[:, None])
    return tf.where(chosen, tf.range(length) + 1, 0)


def choose_words(
    maskable: tf.Tensor, starts: tf.Tensor, counts: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Chooses whole words in random order and skips words that would exceed the row's count.

    This is the rule of BERT's released code. If no word fits the rest of the count, fewer tokens
    are chosen. Arguments and result are those of `choose_spans`; all tokens of a word have the same
    number.
    """
    words, sizes = words_of(maskable, starts)  # (B, L) each
    scores = tf.where(sizes > 0, uniform(seed, tf.shape(sizes)[0], maskable.shape[1]), -1.0)
    order = tf.argsort(scores, axis=-1, direction="DESCENDING", stable=True)  # (B, L), of words
    chosen = _fill(tf.gather(sizes, order, batch_dims=1), counts)
    # (B, L) in random order -> (B, L) by word -> (B, L) by token
    chosen = tf.gather(chosen, tf.argsort(order, axis=-1), batch_dims=1)
    return tf.where(maskable & tf.gather(chosen, words, batch_dims=1), words + 1, 0)


def words_of(maskable: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers the words of each row from 0 on, and counts their maskable tokens.

    Arguments: see `choose_spans`.

    Returns:
        The number of each token's word, and the size of word 0, 1, ..., both `(B, L)` int32. A
        token that is not maskable is a word of size 0, and so is a number without a word.
    """
    after_special = tf.pad(~maskable[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    begins = tf.cast(starts | ~maskable | after_special, tf.int32)
    words = tf.cumsum(begins, axis=-1) - 1  # (B, L)
    return words, reduced_by_row(tf.cast(maskable, tf.int32), words, maskable.shape[1])


def reduced_by_row(
    values: tf.Tensor, groups: tf.Tensor, room: int, reduce=tf.math.unsorted_segment_sum
) -> tf.Tensor:
    """Sums the values of each group of a row: `(B, N)` to `(B, room)`.

    Args:
        groups: `(B, N)` int32 in [0, room), numbered separately in each row.
        reduce: a segment reduction, by default the sum.
    """
    rows = tf.shape(values)[0]
    groups = tf.reshape(groups + room * tf.range(rows)[:, None], [-1])  # (B, N) -> (B N,)
    return tf.reshape(reduce(tf.reshape(values, [-1]), groups, rows * room), [rows, room])


def numbers_by_count(table: np.ndarray, counted: tf.Tensor) -> tf.Tensor:
    """Looks up `table (L + 1, ...)` at each row's number of True in `(B, L)`: `(B, ...)`."""
    return tf.gather(tf.constant(table), tf.reduce_sum(tf.cast(counted, tf.int32), axis=-1))


def _fill(sizes: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Takes words in order, skipping those that no longer fit: `(B, L)` sizes to `(B, L)` bool.

    A round takes the longest prefix that fits, then drops every word larger than the remaining
    count, which can never fit again. A row of 512 tokens needs two or three rounds.
    """

    def round_(taken, open_, left):
        running = tf.cumsum(tf.where(open_, sizes, 0), axis=-1)
        prefix = open_ & (running <= left[:, None])
        left -= tf.reduce_sum(tf.where(prefix, sizes, 0), axis=-1)
        return taken | prefix, open_ & ~prefix & (sizes <= left[:, None]), left

    open_ = (sizes > 0) & (sizes <= counts[:, None])
    taken, _, _ = tf.while_loop(
        lambda taken, open_, left: tf.reduce_any(open_),
        round_,
        (tf.zeros_like(open_), open_, counts),
    )
    return taken


def ngram_lengths(longest: int = 3) -> np.ndarray:
    """Probabilities of 1 to `longest` words, p(n) = (1/n) / sum_k (1/k): `(N,)` float64.

    References: Lan et al. 2020 (ALBERT), section 4.1.
    """
    weights = 1.0 / np.arange(1, longest + 1)
    return weights / weights.sum()


def span_lengths(longest: int = 10, p: float = 0.2) -> np.ndarray:
    """Probabilities of 1 to `longest` words, geometric and normalized: `(N,)` float64.

    With the defaults the mean is 3.8 words.

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
    """Chooses runs of whole words, one after the other, until each row has its count of tokens.

    A run draws its length in words, then its first word, uniformly among all words that begin that
    many free words. A run that would exceed the count is cut after the last whole word that fits,
    as in ALBERT's released code; SpanBERT's also cuts within a word. If there are not that many
    free words in a row anywhere, later lengths are limited to fewer. Runs neither overlap nor
    contain a token that is not maskable.

    Args:
        maskable: `(B, L)` bool, L static.
        starts: `(B, L)` bool, True where a token begins a word.
        counts: `(B,)` int32, the greatest number of tokens to choose; fewer are chosen if the
            remaining words are longer than the remaining count.
        seed: `(2,)` or `(B, 2)` int.
        lengths: `(N,)`, probabilities of 1 to N words.
        apart: keep a word free between two runs, so that the tokens next to a run are visible.
            SpanBERT's released code instead joins runs that touch; their lengths then no longer
            follow `lengths`.

    Returns:
        `(B, L)` int32: the number of a chosen token's run, above 0; 0 at other tokens.
    """
    rows, length = tf.shape(maskable)[0], maskable.shape[1]
    words, sizes = words_of(maskable, starts)  # (B, L) each
    before = _before(sizes)  # (B, L + 1), tokens before each word
    limits = tf.constant(np.cumsum(lengths)[:-1], tf.float32)  # (N - 1,)
    order, gap = tf.range(length), int(apart)
    # Each round chooses a word or lowers the greatest length: there are at most L + N rounds.
    most = length + len(lengths)
    draw = tf.transpose(uniform(seed, rows, 2 * most))  # (2 (L + N), B)
    for_length, for_first = draw[:most, :, None], draw[most:]  # (L + N, B, 1), (L + N, B)

    def round_(number, left, longest, free, runs):
        drawn = 1 + tf.reduce_sum(tf.cast(for_length[number] >= limits, tf.int32), axis=-1)
        drawn = tf.minimum(drawn, longest)  # (B,)
        # (B, L): free words among the `drawn` words from each word on
        free_before = _before(tf.cast(free, tf.int32))
        ends = tf.minimum(order + drawn[:, None], length)
        ahead = tf.gather(free_before, ends, batch_dims=1) - free_before[:, :-1]
        fits = (ahead == drawn[:, None]) & free & (sizes <= left[:, None])
        numbers = tf.cumsum(tf.cast(fits, tf.int32), axis=-1)
        found = numbers[:, -1]
        at = tf.cast(for_first[number] * tf.cast(found, tf.float32), tf.int32)  # (B,)
        # The first word that fits after `at` others; L where there is none.
        first = tf.reduce_sum(tf.cast(numbers <= at[:, None], tf.int32), axis=-1)
        # (B, N): tokens of the first 1, 2, ... words; only whole words are taken
        ends = tf.minimum(first[:, None] + tf.range(1, len(lengths) + 1), length)
        tokens = tf.gather(before, ends, batch_dims=1)
        tokens -= tf.gather(before, first[:, None], batch_dims=1)
        taken = (tokens <= left[:, None]) & (tf.range(len(lengths)) < drawn[:, None])
        taken &= found[:, None] > 0
        left -= tf.reduce_max(tf.where(taken, tokens, 0), axis=-1)
        # Not even one word fits: the row is done.
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
    """The columns next to each masked position's run, and the position's place in the run.

    Args:
        runs: `(B, P)` int32, number of each position's run, from 0 on in each row.
        columns: `(B, P)` int32, the positions' columns, ascending.
        real: `(B, P)` bool, False at padding.
        length: L of the rows.

    Returns:
        `left_boundaries` and `right_boundaries (B, P)` int32, the columns before and after the run,
        limited to the row's first and last one; and `span_positions (B, P)` int32, the place in the
        run, from 0 on. All are 0 at padding.
    """
    ends = (
        (tf.math.unsorted_segment_min, tf.where(real, columns, length)),
        (tf.math.unsorted_segment_max, tf.where(real, columns, -1)),
    )
    first, last = (  # (B, P) each
        tf.gather(reduced_by_row(values, runs, runs.shape[1], reduce), runs, batch_dims=1)
        for reduce, values in ends
    )
    boundaries = {
        "left_boundaries": tf.maximum(first - 1, 0),
        "right_boundaries": tf.minimum(last + 1, length - 1),
        "span_positions": columns - first,
    }
    return {name: tf.where(real, values, 0) for name, values in boundaries.items()}


def _before(counts: tf.Tensor) -> tf.Tensor:
    """Exclusive cumulative sums, and the total in the last column: `(B, L) -> (B, L + 1)`."""
    return tf.pad(tf.cumsum(counts, axis=-1), [[0, 0], [1, 0]])
