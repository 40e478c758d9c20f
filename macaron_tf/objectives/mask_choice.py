"""Which tokens of a row are asked for: any, or whole words."""

import tensorflow as tf

# Named, so that every device draws the same numbers from a seed.
ALGORITHM = "philox"


def choose_tokens(maskable: tf.Tensor, counts: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A uniform sample of each row's maskable tokens, without replacement.

    Columns are drawn one by one, repeats and columns that are not maskable being passed over until
    a row has its number: every set of that size is as likely. It takes a fifth of the time of
    sorting a random number for each token.

    Args:
        maskable: `(B, L)` bool.
        counts: `(B,)` int32, how many to choose; no more than there are.
        seed: `(2,)` int.

    Returns:
        `(B, L)` bool, `counts` of them True in each row.
    """
    rows, length = tf.unstack(tf.shape(maskable))
    draws = max(8, maskable.shape[1] // 4)  # a round; at 15% one round nearly always suffices
    # Columns are drawn up to each row's last maskable one: padding would only be passed over.
    span = tf.reduce_max(tf.where(maskable, tf.range(length) + 1, 0), axis=-1, keepdims=True)
    span = tf.cast(span, tf.float32)  # (B, 1)
    starts = length * tf.range(rows)[:, None]  # (B, 1), of the rows among the B L tokens

    def round_(number, missing, used, first):
        seeds = tf.random.experimental.stateless_fold_in(seed, number, ALGORITHM)
        uniform = tf.random.stateless_uniform([rows, draws], seeds, alg=ALGORITHM)
        drawn = starts + tf.cast(uniform * span, tf.int32)  # (B, N)
        order = number * draws + tf.range(draws)  # (N,)
        orders = tf.broadcast_to(order, [rows, draws])
        first = tf.minimum(first, tf.math.unsorted_segment_min(orders, drawn, rows * length))
        new = tf.cast(tf.gather(first, drawn) == order, tf.int32)  # (B, N)
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
    return maskable & (tf.reshape(first, [rows, length]) < used[:, None])


def choose_words(
    maskable: tf.Tensor, starts: tf.Tensor, counts: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Whole words in random order, a word that would exceed the row's count being passed over.

    The rule of BERT's released code. It fills the count wherever a word of the size that is left
    exists; where all words are longer than that, the row keeps fewer, or none.

    Args:
        maskable: `(B, L)` bool. A word never reaches across a token that is not.
        starts: `(B, L)` bool, True where a token begins a word.
        counts: `(B,)` int32, the greatest number of tokens to choose.
        seed: `(2,)` int.

    Returns:
        `(B, L)` bool, True for all tokens of a word or for none.
    """
    # A token that is not maskable opens a word of its own; pieces that go on after it stay in it.
    begins = tf.cast(starts | ~maskable, tf.int32)
    words = tf.cumsum(begins, axis=-1) - begins[:, :1]  # (B, L), the first is 0
    sizes = _sizes(words, maskable)  # (B, L), of word 0, 1, ... of each row; 0 = no word
    order = _random_order(sizes > 0, seed)  # (B, L), of words
    chosen = _fill(tf.gather(sizes, order, batch_dims=1), counts)
    # (B, L) in random order -> (B, L) by word -> (B, L) by token
    chosen = tf.gather(chosen, tf.argsort(order, axis=-1), batch_dims=1)
    return maskable & tf.gather(chosen, words, batch_dims=1)


def _random_order(eligible: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Indices `(B, L)` of each row in random order, those not eligible last."""
    scores = tf.random.stateless_uniform(tf.shape(eligible), seed, alg=ALGORITHM)
    scores = tf.where(eligible, scores, -1.0)
    return tf.argsort(scores, axis=-1, direction="DESCENDING", stable=True)


def _sizes(words: tf.Tensor, maskable: tf.Tensor) -> tf.Tensor:
    """Number of maskable tokens of each word, `(B, L)`, from the word of each token `(B, L)`."""
    rows, length = tf.unstack(tf.shape(words))
    # (B, L) -> (B L,), a word being counted apart in each row, -> (B, L)
    segments = tf.reshape(words + length * tf.range(rows)[:, None], [-1])
    ones = tf.reshape(tf.cast(maskable, tf.int32), [-1])
    return tf.reshape(tf.math.unsorted_segment_sum(ones, segments, rows * length), [rows, length])


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
