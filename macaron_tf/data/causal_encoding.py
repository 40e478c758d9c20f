"""One text or two to the rows of a causal model: in-graph, so that training and serving agree."""

from collections.abc import Callable

import tensorflow as tf

from macaron_tf.data.pair_encoding import encode_pairs
from macaron_tf.data.piece_vocabulary import PieceVocabulary


def encode_causal(
    vocabulary: PieceVocabulary, first: tf.Tensor, second: tf.Tensor | None, max_length: int
) -> dict[str, tf.Tensor]:
    """Texts to `start a extract` or `start a delimiter b extract`, else as `encode_pairs`.

    Only the last position has seen all of a text; its token stands nowhere else. Start and
    delimiter are [CLS] and [SEP], which begin a row and end a document in pre-training, and the
    token to extract from is [MASK], which a language model has not met: as new as the paper's.

    Args:
        vocabulary, first, second, max_length: as there.

    Returns:
        As there.

    Raises:
        UserError: as there.

    References: Radford et al. 2018 (GPT), figure 1 and section 3.3.
    """
    encoded = encode_pairs(vocabulary, first, second, max_length)
    token_ids = encoded["token_ids"]  # (B, L)
    lengths = tf.reduce_sum(tf.cast(token_ids != vocabulary.pad_id, tf.int32), axis=1)  # (B,)
    last = tf.range(tf.shape(token_ids)[1]) == lengths[:, None] - 1  # (B, L)
    extract = tf.constant(vocabulary.mask_id, token_ids.dtype)
    return {**encoded, "token_ids": tf.where(last, extract, token_ids)}


def row_encoder(causal: bool) -> Callable[..., dict[str, tf.Tensor]]:
    """What makes the rows of a causal model, or of one that sees both sides."""
    return encode_causal if causal else encode_pairs
