"""Words as rows of characters, which are bytes: in the graph, so that a served model has it too."""

import tensorflow as tf

from macaron_tf.special_ids import PAD

SENTENCE_START, SENTENCE_END = "<S>", "</S>"
# 0 stands behind a word's end, byte n is n + 1.
_WORD_START, _WORD_END, _OF_SENTENCE_START, _OF_SENTENCE_END = range(257, 261)


def split_words(texts: tf.Tensor) -> tf.RaggedTensor:
    """Texts cut at white space and around every character that is no letter, mark or digit.

    Args:
        texts: `(B,)` strings, UTF-8.

    Returns:
        `(B, words)` strings.
    """
    apart = tf.strings.regex_replace(texts, r"([^\p{L}\p{M}\p{N}\s])", r" \1 ")
    return tf.strings.split(apart)


def with_ends(words: tf.RaggedTensor) -> tf.RaggedTensor:
    """Sentences `(B, words)` between the words that mark their two ends."""
    count = words.nrows()
    start, end = (tf.fill([count, 1], mark) for mark in (SENTENCE_START, SENTENCE_END))
    return tf.concat([start, words, end], axis=1)


def character_ids(words: tf.Tensor, places: int) -> tf.Tensor:
    """The characters of words between the marks of a word's two ends.

    Args:
        words: `(...)` strings; the empty one is padding. The two marks of a sentence's ends are
            one character each.
        places: C; a word of more than C - 2 bytes is cut.

    Returns:
        `(..., C)` int32: the mark of the beginning, the bytes plus 1, the mark of the end, zeros;
        padding is all zeros.
    """
    flat = tf.reshape(words, [-1])  # (...) -> (N,)
    kept = tf.strings.substr(flat, 0, places - 2)
    # decode_raw puts zeros behind the bytes: ones, once the bytes are counted from 1.
    ids = tf.cast(tf.io.decode_raw(kept, tf.uint8, fixed_length=places - 2), tf.int32) + 1
    length = tf.strings.length(kept)[:, None]  # (N, 1)
    for mark, character in (
        (SENTENCE_START, _OF_SENTENCE_START),
        (SENTENCE_END, _OF_SENTENCE_END),
    ):
        is_mark = (flat == mark)[:, None]
        ids = tf.where(is_mark, character, ids)
        length = tf.where(is_mark, 1, length)
    place = tf.range(places)[None]  # (1, C)
    ids = tf.pad(ids, [[0, 0], [1, 1]])  # (N, C - 2) -> (N, C)
    ids = tf.where(place == 0, _WORD_START, tf.where(place == length + 1, _WORD_END, ids))
    ids = tf.where((place <= length + 1) & (flat != "")[:, None], ids, PAD)
    return tf.reshape(ids, tf.concat([tf.shape(words), [places]], axis=0))
