"""Which tokens of a row are asked for: any, or whole words.

Every choice is `(B, L)` int32: 0 where a token is left alone, and otherwise a number, the same for
all that were chosen together, which stand side by side.
"""

import tensorflow as tf

from macaron_tf.objectives import draws


def choose_tokens(maskable: tf.Tensor, counts: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A uniform sample of each row's maskable tokens, without replacement.

    Columns are drawn one by one, repeats and columns that are not maskable being passed over until
    a row has its number: every set of that size is as likely. It takes a fifth of the time of
    sorting a random number for each token.

    Args:
        maskable: `(B, L)` bool, L static.
        counts: `(B,)` int32, how many to choose; no more than there are.
        seed: `(2,)` or `(B, 2)` int.

    Returns:
        `(B, L)` int32, `counts` of them above 0 in each row.
    """
    rows, length = tf.unstack(tf.shape(maskable))
    number_drawn = max(8, maskable.shape[1] // 4)  # a round; at 15% one nearly always suffices
    # Columns are drawn up to each row's last maskable one: padding would only be passed over.
    span = tf.reduce_max(tf.where(maskable, tf.range(length) + 1, 0), axis=-1, keepdims=True)
    span = tf.cast(span, tf.float32)  # (B, 1)
    starts = length * tf.range(rows)[:, None]  # (B, 1), of the rows among the B L tokens

    def round_(number, missing, used, first):
        uniform = draws.uniform(draws.fold_in(seed, number), rows, number_drawn)
        drawn = starts + tf.cast(uniform * span, tf.int32)  # (B, N)
        order = number * number_drawn + tf.range(number_drawn)  # (N,)
        orders = tf.broadcast_to(order, [rows, number_drawn])
        first = tf.minimum(first, tf.math.unsorted_segment_min(orders, drawn, rows * length))
        new = tf.cast(tf.gather(first, drawn) == order, tf.int32)  # (B, N)
        # One row of unknown number added to one is not known to be one: a loop minds.
        new = tf.ensure_shape(new, [counts.shape[0], number_drawn])
        needed = tf.cumsum(new, axis=-1, exclusive=True) < missing[:, None]
        used += tf.reduce_sum(tf.cast(needed, tf.int32), axis=-1)
        missing -= tf.minimum(missing, tf.reduce_sum(new, axis=-1))
        return number + 1, missing, used, first

    # (B L,): in which draw a token came first; one that is not maskable is never new.
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
    """Whole words in random order, a word that would exceed the row's count being passed over.

    The rule of BERT's released code. It fills the count wherever a word of the size that is left
    exists; where all words are longer than that, the row keeps fewer, or none.

    Args:
        maskable: `(B, L)` bool, L static. A word never reaches across a token that is not.
        starts: `(B, L)` bool, True where a token begins a word.
        counts: `(B,)` int32, the greatest number of tokens to choose.
        seed: `(2,)` or `(B, 2)` int.

    Returns:
        `(B, L)` int32, one number for all tokens of a word.
    """
    words, sizes = words_of(maskable, starts)  # (B, L) each
    order = _random_order(sizes > 0, seed)  # (B, L), of words
    chosen = _fill(tf.gather(sizes, order, batch_dims=1), counts)
    # (B, L) in random order -> (B, L) by word -> (B, L) by token
    chosen = tf.gather(chosen, tf.argsort(order, axis=-1), batch_dims=1)
    return tf.where(maskable & tf.gather(chosen, words, batch_dims=1), words + 1, 0)


def words_of(maskable: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The words of each row: which one each token is in, and how many tokens each has.

    Args:
        maskable: `(B, L)` bool. A token that is not is a word of size 0 by itself.
        starts: `(B, L)` bool, True where a token begins a word.

    Returns:
        `(B, L)` int32, the number of each token's word from 0 on, and `(B, L)` int32, the sizes of
        word 0, 1, ...; 0 where there is no such word.
    """
    rows, length = tf.unstack(tf.shape(maskable))
    after_special = tf.pad(~maskable[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    begins = tf.cast(starts | ~maskable | after_special, tf.int32)
    words = tf.cumsum(begins, axis=-1) - 1  # (B, L)
    # (B, L) -> (B L,), a word being counted apart in each row, -> (B, L)
    segments = tf.reshape(words + length * tf.range(rows)[:, None], [-1])
    ones = tf.reshape(tf.cast(maskable, tf.int32), [-1])
    sizes = tf.math.unsorted_segment_sum(ones, segments, rows * length)
    return words, tf.reshape(sizes, [rows, length])


def _random_order(eligible: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Indices `(B, L)` of each row in random order, those not eligible last."""
    scores = draws.uniform(seed, tf.shape(eligible)[0], eligible.shape[1])
    scores = tf.where(eligible, scores, -1.0)
    return tf.argsort(scores, axis=-1, direction="DESCENDING", stable=True)


def _fill(sizes: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Takes words one by one, passing over what no longer fits: `(B, L)` sizes to `(B, L)` bool.

    Not word by word: a round takes the longest prefix that fits, then drops every word larger
    than what is left, which can never fit again. A row of 512 tokens needs two or three rounds.
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
