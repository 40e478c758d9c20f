"""What of a batch goes into an encoder."""

import tensorflow as tf

ENCODER_INPUTS = ("token_ids", "segment_ids")


def encoder_inputs(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """`token_ids (B, L)`, and `segment_ids (B, L)` where the batch has them."""
    return {name: batch[name] for name in ENCODER_INPUTS if name in batch}
