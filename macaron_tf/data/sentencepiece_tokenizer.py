"""SentencePiece inside a graph."""

import tensorflow as tf
import tensorflow_text


def living_tokenizer(
    tokenizer: tensorflow_text.SentencepieceTokenizer | None, proto: bytes
) -> tensorflow_text.SentencepieceTokenizer:
    """The tokenizer of a model: the one given, or a new one where TensorFlow has dropped it.

    Its resource belongs to the kernel that made it, which TensorFlow lets go of whenever a seed is
    set (`keras.utils.set_random_seed`).

    Args:
        tokenizer: made earlier; None at the first time.
        proto: the model's bytes.
    """
    # A graph may be under construction: the resource has to outlive it.
    with tf.init_scope():
        if tokenizer is not None:
            try:
                tokenizer.tokenize([""])
                return tokenizer
            except tf.errors.NotFoundError:
                pass
        return tensorflow_text.SentencepieceTokenizer(model=proto, out_type=tf.int32)
