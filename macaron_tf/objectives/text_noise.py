"""BART's other noises: sentences shuffled, texts rotated, tokens masked or deleted."""

import math

import numpy as np
import tensorflow as tf

from macaron_tf.objectives import draws
from macaron_tf.objectives.corruption import lengths_of, packed
from macaron_tf.objectives.mask_choice import choose_tokens
from macaron_tf.special_ids import PAD


def shuffle_sentences(text: tf.Tensor, stops: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The sentences of each text in random order, every order being as likely.

    Args:
        text: `(B, R)` int, R static, padding at the end.
        stops: `(B, R)` bool, full stops: a sentence ends with one, or with several in a row.
        seed: `(2,)` or `(B, 2)` int.

    Returns:
        `(B, R)`.
    """
    more = tf.pad(stops[:, 1:], [[0, 0], [0, 1]])
    ends = tf.cast(stops & ~more, tf.int32)
    sentence = tf.cumsum(ends, axis=-1, exclusive=True)  # (B, R)
    keys = draws.uniform(seed, tf.shape(text)[0], text.shape[1])  # of sentences
    keys = tf.where(text != PAD, tf.gather(keys, sentence, batch_dims=1), 2.0)
    return tf.gather(text, tf.argsort(keys, axis=-1, stable=True), batch_dims=1)


def rotate(text: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Each text from one of its tokens on, drawn uniformly, and then what was before it.

    Args:
        text: `(B, R)` int, R static, padding at the end.
        seed: `(2,)` or `(B, 2)` int.

    Returns:
        `(B, R)`.
    """
    tokens = lengths_of(text)[:, None]  # (B, 1)
    columns = tf.range(text.shape[1])
    uniform = draws.uniform(seed, tf.shape(text)[0], 1)
    first = tf.cast(uniform * tf.cast(tokens, tf.float32), tf.int32)  # (B, 1)
    turned = (columns + first) % tf.maximum(tokens, 1)  # (B, R)
    return tf.where(columns < tokens, tf.gather(text, turned, batch_dims=1), PAD)


def replace_tokens(text: tf.Tensor, seed: tf.Tensor, rate: float, mask_id: int) -> tf.Tensor:
    """ceil(rate n) of n tokens, any of them, each behind a mask: `(B, R) -> (B, R)`."""
    chosen = _some(text, seed, rate)
    return tf.where(chosen, tf.constant(mask_id, text.dtype), text)


def delete_tokens(text: tf.Tensor, seed: tf.Tensor, rate: float) -> tf.Tensor:
    """Texts without ceil(rate n) of their n tokens, any of them: `(B, R) -> (B, R)`."""
    return packed(text, (text != PAD) & ~_some(text, seed, rate), text.shape[1])


def _some(text: tf.Tensor, seed: tf.Tensor, rate: float) -> tf.Tensor:
    """A uniform choice of ceil(rate n) tokens: `(B, R)` bool."""
    most = text.shape[1]
    counts = np.array([math.ceil(rate * n - 1e-9) for n in range(most + 1)], np.int32)
    return choose_tokens(text != PAD, tf.gather(tf.constant(counts), lengths_of(text)), seed) > 0
