"""Texts that a client sends, checked in-graph."""

import tensorflow as tf


def checked_text(texts: tf.Tensor) -> tf.Tensor:
    """The texts `(B,)`, or an InvalidArgumentError where one is not UTF-8."""
    mended = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    whole = tf.debugging.Assert(
        tf.reduce_all(tf.equal(mended, texts)), ["a text is not UTF-8: send it as UTF-8"]
    )
    with tf.control_dependencies([whole]):
        return tf.identity(texts)
