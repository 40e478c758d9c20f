"""Random choices of tokens, words and spans, by one seed for all rows or one for each."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

# Named, so that every device draws the same numbers from a seed.
_ALGORITHM = "philox"


def _by_seed(draw: Callable, seed: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """A draw of a seed `(2,)`, or one for each of `(B, 2)`; `dtype`: if not the seed's."""
    seed = tf.convert_to_tensor(seed)
    return draw(seed) if seed.shape.rank == 1 else tf.map_fn(draw, seed, fn_output_signature=dtype)


def split(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Independent seeds of the given seed's shape, `(2,)` or `(B, 2)`."""
    seeds = _by_seed(lambda own: tf.random.split(own, count, alg=_ALGORITHM), seed)
    return tf.unstack(seeds, count, axis=-2)


def fold_in(seed: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    """The seed of round `number` of a loop, of the given seed's shape, `(2,)` or `(B, 2)`."""
    seed = tf.convert_to_tensor(seed)
    number = number if seed.shape.rank == 1 else tf.cast(number, seed.dtype)
    fold = tf.random.experimental.stateless_fold_in
    return _by_seed(lambda own: fold(own, number, _ALGORITHM), seed)


def uniform(
    seed: tf.Tensor, rows: tf.Tensor | int, columns: int, below: int | None = None
) -> tf.Tensor:
    """Uniform draws `(B, N)`: float32 in [0, 1), or int32 from 0 to `below` - 1.

    Args:
        seed: `(2,)`, or `(B, 2)`: a row's numbers are then the same in any batch.
        rows: B. columns: N.
    """
    seed = tf.convert_to_tensor(seed)
    dtype = tf.float32 if below is None else tf.int32
    shape = [rows, columns] if seed.shape.rank == 1 else [columns]

    def draw(seed):
        return tf.random.stateless_uniform(shape, seed, 0, below, dtype, alg=_ALGORITHM)

    return _by_seed(draw, seed, dtype)


def choose_tokens(maskable: tf.Tensor, counts: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A uniform sample of each row's maskable tokens, without replacement.

    Columns are drawn one by one, skipping repeats and columns that are not maskable, until a row
    has its number: all sets of that size are equally likely. It takes a fifth of the time of
    sorting a random number for each token.

    Args:
        maskable: `(B, L)` bool, L static.
        counts: `(B,)` int32, at most the number of maskable tokens.
        seed: `(2,)` or `(B, 2)` int.

    Returns:
        `(B, L)` int32, `counts` of them above 0 in each row.
    """
    rows, length = tf.unstack(tf.shape(maskable))
    number_drawn = max(8, maskable.shape[1] // 4)  # a round; at 15% one nearly always suffices
    # Up to each row's last maskable column: padding would only be skipped.
    span = tf.reduce_max(tf.where(maskable, tf.range(length) + 1, 0), axis=-1, keepdims=True)
    span = tf.cast(span, tf.float32)  # (B, 1)
    starts = length * tf.range(rows)[:, None]  # (B, 1), of the rows among the B L tokens

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

    # (B L,): the number of a token's first draw; one that is not maskable is never new.
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
    """Whole words in random order, skipping words that would exceed the row's count.

    The rule of BERT's released code. It fills the count if a word of the remaining size exists;
    if all words are longer, the row keeps fewer tokens, or none. Arguments and result: see
    `choose_spans`; all tokens of a word have one number.
    """
    words, sizes = words_of(maskable, starts)  # (B, L) each
    scores = tf.where(sizes > 0, uniform(seed, tf.shape(sizes)[0], maskable.shape[1]), -1.0)
    order = tf.argsort(scores, axis=-1, direction="DESCENDING", stable=True)  # (B, L), of words
    chosen = _fill(tf.gather(sizes, order, batch_dims=1), counts)
    # (B, L) in random order -> (B, L) by word -> (B, L) by token
    chosen = tf.gather(chosen, tf.argsort(order, axis=-1), batch_dims=1)
    return tf.where(maskable & tf.gather(chosen, words, batch_dims=1), words + 1, 0)


def words_of(maskable: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The number of each token's word from 0 on, and the sizes of word 0, 1, ..., `(B, L)` int32.

    Sizes are 0 where there is no such word. A token that is not maskable is a word of size 0.
    Arguments: see `choose_spans`.
    """
    after_special = tf.pad(~maskable[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    begins = tf.cast(starts | ~maskable | after_special, tf.int32)
    words = tf.cumsum(begins, axis=-1) - 1  # (B, L)
    return words, reduced_by_row(tf.cast(maskable, tf.int32), words, maskable.shape[1])


def reduced_by_row(
    values: tf.Tensor, groups: tf.Tensor, room: int, reduce=tf.math.unsorted_segment_sum
) -> tf.Tensor:
    """Sums, or reduces otherwise, the values of each group of a row: `(B, N)` to `(B, room)`.

    Args:
        groups: `(B, N)` int32 from 0 to `room` - 1, numbered separately in each row.
    """
    rows = tf.shape(values)[0]
    groups = tf.reshape(groups + room * tf.range(rows)[:, None], [-1])  # (B, N) -> (B N,)
    return tf.reshape(reduce(tf.reshape(values, [-1]), groups, rows * room), [rows, room])


def numbers_by_count(table: np.ndarray, counted: tf.Tensor) -> tf.Tensor:
    """Looks up `table (L + 1, ...)` at the number of True of each row `(B, L)`: `(B, ...)`."""
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
    """p(n) = (1/n) / sum_k (1/k) for n = 1 to `longest` words: `(N,)` float64.

    References: Lan et al. 2020 (ALBERT), section 4.1.
    """
    weights = 1.0 / np.arange(1, longest + 1)
    return weights / weights.sum()


def span_lengths(longest: int = 10, p: float = 0.2) -> np.ndarray:
    """A geometric distribution cut off at `longest` words and normalized: `(N,)` float64.

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

    Each draws its length, then its first word, uniformly among all words from which so many are
    free. A run that would exceed the count is cut off after the last whole word that fits, as in
    ALBERT's released code (SpanBERT's also cuts within the word). If no word has so many free ones
    after it, the next lengths are shorter: no two runs overlap, and none crosses a token that is
    not maskable.

    Args:
        maskable: `(B, L)` bool, L static.
        starts: `(B, L)` bool, True where a token begins a word.
        counts: `(B,)` int32, the greatest number of tokens to choose; fewer are chosen if the
            remaining words are longer than the remaining count.
        seed: `(2,)` or `(B, 2)` int.
        lengths: `(N,)`, probabilities of 1 to N words.
        apart: keep a word free between two runs, so that the tokens next to each are visible.
            SpanBERT's released code joins runs that touch instead, after which the lengths no
            longer follow their distribution.

    Returns:
        `(B, L)` int32: 0 at tokens that are not chosen, else a number, one for each run.
    """
    rows, length = tf.shape(maskable)[0], maskable.shape[1]
    words, sizes = words_of(maskable, starts)  # (B, L) each
    before = _before(sizes)  # (B, L + 1), tokens before each word
    limits = tf.constant(np.cumsum(lengths)[:-1], tf.float32)  # (N - 1,)
    order, gap = tf.range(length), int(apart)
    # A round takes a word at least, or lowers the greatest length, so there are at most L + N.
    most = length + len(lengths)
    draw = tf.transpose(uniform(seed, rows, 2 * most))  # (2 (L + N), B)
    for_length, for_first = draw[:most, :, None], draw[most:]  # (L + N, B, 1), (L + N, B)

    def round_(number, left, longest, free, runs):
        drawn = 1 + tf.reduce_sum(tf.cast(for_length[number] >= limits, tf.int32), axis=-1)
        drawn = tf.minimum(drawn, longest)  # (B,)
        # (B, L): free words among those from a word on
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
    """The columns around the runs of masked positions.

    Args:
        runs: `(B, P)` int32, the run of its row that each position is in, from 0 on.
        columns: `(B, P)` int32, the positions, ascending.
        real: `(B, P)` bool.

    Returns:
        `left_boundaries` and `right_boundaries (B, P)` int32, the columns next to the run on either
        side (the row's first or last one where it has no more), and `span_positions (B, P)`
        int32, from 0 on, within the run; all 0 where a position is not real.
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
    """The sum before each column, and the sum of all: `(B, L) -> (B, L + 1)`."""
    return tf.pad(tf.cumsum(counts, axis=-1), [[0, 0], [1, 0]])
