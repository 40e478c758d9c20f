"""From a sequence of vectors to one."""

import keras
from keras import ops

from macaron_tf.checks import check_choice

POOLINGS = ("mean", "max", "cls", "last")


@keras.saving.register_keras_serializable(package="macaron_tf")
class Pooling(keras.layers.Layer):
    """A sequence in one vector, in float32 under any policy: what follows is a cosine.

    Args:
        mode: `"mean"` or `"max"` over the real positions, or the first, `"cls"`, or `"last"` one
            of them, which in a causal model has seen all others.

    Call arguments: `x (B, L, D)` and optionally `mask (B, L)`, False at padding, which counts for
    nothing; a row without a real position gives zeros. Returns `(B, D)` float32.

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3; the last one: Radford et al.
    2018 (GPT), section 3.2.
    """

    def __init__(self, mode: str = "mean", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.mode = check_choice("mode", mode, POOLINGS)

    def call(self, x, mask=None):
        x = ops.cast(x, "float32")
        if self.mode == "cls":
            return x[:, 0]  # (B, D)
        if mask is None:
            mask = ops.ones(ops.shape(x)[:2], "bool")
        real = ops.cast(mask, "bool")[..., None]  # (B, L, 1)
        if self.mode == "last":
            length = ops.shape(x)[1]
            places = ops.arange(length, dtype="int32")  # (L,)
            last = ops.max(ops.where(real[..., 0], places, -1), axis=1)  # (B,)
            chosen = (places == last[:, None])[..., None]  # (B, L, 1)
            return ops.sum(ops.where(chosen, x, 0.0), axis=1)  # (B, D)
        if self.mode == "mean":
            count = ops.sum(ops.cast(real, "float32"), axis=1)  # (B, 1)
            # A choice, not a product: what stands at padding may be infinite.
            total = ops.sum(ops.where(real, x, 0.0), axis=1)  # (B, D)
            return ops.divide(total, ops.maximum(count, 1.0))
        # -1e30: the greatest of no numbers would be -inf, and its gradient NaN.
        greatest = ops.max(ops.where(real, x, -1e30), axis=1)  # (B, D)
        return ops.where(ops.any(real, axis=1), greatest, 0.0)

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be hidden

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def compute_output_spec(self, x, mask=None):
        return keras.KerasTensor(self.compute_output_shape(x.shape), "float32")

    def get_config(self):
        return {**super().get_config(), "mode": self.mode}
