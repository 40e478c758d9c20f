"""What of a batch goes into an encoder."""

import tensorflow as tf

ENCODER_INPUTS = ("token_ids", "segment_ids", "language_ids", "position_ids")


def encoder_inputs(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """`token_ids`, and `segment_ids`, `language_ids` and `position_ids` where there are any.

    All `(B, L)`.
    """
    return {name: batch[name] for name in ENCODER_INPUTS if name in batch}
