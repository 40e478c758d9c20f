"""Token embeddings whose table is also the output projection."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="macaron_tf")
class TiedEmbedding(keras.layers.Layer):
    """One table for reading tokens in and for predicting them.

    Args:
        vocab_size: rows V of the table.
        hidden_dim: columns D.
        scale: whether read-in vectors are multiplied by sqrt(D), as the Transformer does.
        mask_zero: whether id 0 is padding that later layers are told of by Keras's masks.
        initializer: of the table; the default is N(0, D^-1/2), so that scaled vectors and logits
            both start at unit scale.

    Call arguments: `ids (B, L)` int; returns `(B, L, D)`. `logits(x)` gives `x E^T`, `(..., V)`.

    References: Press and Wolf 2017; Vaswani et al. 2017, section 3.4.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        scale: bool = True,
        mask_zero: bool = False,
        initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mask_zero = mask_zero
        self.vocab_size = vocab_size
        self.hidden_dim = hidden_dim
        self.scale = scale
        self.initializer = keras.initializers.get(
            initializer or keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)
        )

    def build(self, input_shape=None):
        self.table = self.add_weight(
            name="table",
            shape=(self.vocab_size, self.hidden_dim),
            initializer=self.initializer,
        )
        self.built = True

    def call(self, ids):
        vectors = ops.take(self.table, ids, axis=0)  # (B, L, D)
        vectors = ops.cast(vectors, self.compute_dtype)
        return vectors * self.hidden_dim**0.5 if self.scale else vectors

    def logits(self, x):
        """Scores of every token of the vocabulary: `(..., D) -> (..., V)`."""
        table = ops.cast(ops.convert_to_tensor(self.table), x.dtype)
        return ops.matmul(x, ops.transpose(table))

    def compute_mask(self, inputs, previous_mask=None):
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.hidden_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "hidden_dim": self.hidden_dim,
            "scale": self.scale,
            "mask_zero": self.mask_zero,
            "initializer": keras.initializers.serialize(self.initializer),
        }
