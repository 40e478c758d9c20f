"""The head of a language model: from its vectors to scores of the next token."""

import keras
from keras import ops

from macaron_tf.layers.dense import Dense
from macaron_tf.layers.heads import truncated_normal


@keras.saving.register_keras_serializable(package="macaron_tf")
class NextTokenHead(keras.layers.Layer):
    """Scores of every token: `x T^t`, T the embedding table.

    Where the table is E wide and x is not, a matrix brings x to that width first.

    Args:
        vocab_size: V.
        use_bias: whether each token has a bias.
        initializer_range: standard deviation of the matrix, cut off at two of them.

    Call arguments: `x (..., D)` and `table (V, E)`, or its transpose `(E, V)` with
    `transposed=True`. Returns `(..., V)` of the table's dtype.

    References: Press and Wolf 2017; Radford et al. 2018 (GPT), eq. 2.
    """

    def __init__(
        self, vocab_size: int, use_bias: bool = False, initializer_range: float = 0.02, **kwargs
    ):
        # Not cast by the policy: cached decoding asks for float32 of bfloat16 models.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.use_bias = use_bias
        self.initializer_range = initializer_range

    def build(self, x_shape, table_shape):
        self.projection = self.bias = None
        if x_shape[-1] != table_shape[-1]:
            self.projection = Dense(
                table_shape[-1],
                use_bias=False,
                kernel_initializer=truncated_normal(self.initializer_range),
                dtype=self.dtype_policy,
                name="projection",
            )
            self.projection.build(x_shape)
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.vocab_size,), initializer="zeros")
        self.built = True

    def call(self, x, table, transposed=False):
        if self.projection:
            x = self.projection(x)  # (..., E)
        x = ops.cast(x, table.dtype)
        scores = ops.matmul(x, table if transposed else ops.transpose(table))  # (..., V)
        if self.bias is None:
            return scores
        return ops.add(scores, ops.cast(ops.convert_to_tensor(self.bias), scores.dtype))

    def compute_output_shape(self, x_shape, table_shape=None):
        return (*x_shape[:-1], self.vocab_size)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "use_bias": self.use_bias,
            "initializer_range": self.initializer_range,
        }
