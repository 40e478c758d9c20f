"""Heads: from an encoder's sequence to answers."""

import keras
from keras import ops

from macaron_tf.layers.dropout import Dropout


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
    """BERT's: normal, cut off at two standard deviations."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


@keras.saving.register_keras_serializable(package="macaron_tf")
class Pooler(keras.layers.Layer):
    """The sequence in one vector: `tanh(x[0] W + b)` of the [CLS] position.

    Args:
        initializer_range: standard deviation of the matrix, cut off at two of them.

    Call arguments: `x (B, L, D)`; returns `(B, D)`.

    References: Devlin et al. 2018 (BERT), its released code.
    """

    def __init__(self, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.initializer_range = initializer_range

    def build(self, input_shape):
        self.dense = keras.layers.Dense(
            input_shape[-1],
            activation="tanh",
            kernel_initializer=truncated_normal(self.initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.dense.build((input_shape[0], input_shape[-1]))
        self.built = True

    def call(self, x):
        return self.dense(x[:, 0])  # (B, D)

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be hidden

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {**super().get_config(), "initializer_range": self.initializer_range}


@keras.saving.register_keras_serializable(package="macaron_tf")
class ClassificationHead(keras.layers.Layer):
    """Scores of C classes from one vector, or, with C = 1, a regression's value.

    Args:
        num_classes: C.
        dropout: on the vector, 0 to 1.
        initializer_range: standard deviation of the matrix, cut off at two of them.

    Call arguments: `x (B, D)`; returns `(B, C)`.
    """

    def __init__(
        self, num_classes: int, dropout: float = 0.0, initializer_range: float = 0.02, **kwargs
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_classes = num_classes
        self.dropout = dropout
        self.initializer_range = initializer_range

    def build(self, input_shape):
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.dense = keras.layers.Dense(
            self.num_classes,
            kernel_initializer=truncated_normal(self.initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.dense.build(input_shape)
        self.built = True

    def call(self, x, training=None):
        return self.dense(self.drop(x, training=training))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.num_classes)

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "dropout": self.dropout,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(package="macaron_tf")
class SpanHead(keras.layers.Layer):
    """Scores of every position as the start and as the end of each of N spans.

    Args:
        num_spans: N; 1 for question answering.
        initializer_range: standard deviation of the matrix, cut off at two of them.

    Call arguments: `x (B, L, D)` and optionally `attention_mask (B, L)`, False where no span may
    start or end. Returns float32 `(B, N, 2, L)`: start at index 0, end at 1.

    References: Devlin et al. 2018 (BERT), section 4.2.
    """

    def __init__(self, num_spans: int = 1, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_spans = num_spans
        self.initializer_range = initializer_range

    def build(self, input_shape):
        self.dense = keras.layers.Dense(
            2 * self.num_spans,
            kernel_initializer=truncated_normal(self.initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.dense.build(input_shape)
        self.built = True

    def call(self, x, attention_mask=None):
        # (B, L, 2 N) -> (B, L, N, 2) -> (B, N, 2, L)
        scores = ops.reshape(self.dense(x), (-1, ops.shape(x)[1], self.num_spans, 2))
        scores = ops.cast(ops.transpose(scores, (0, 2, 3, 1)), "float32")
        if attention_mask is not None:
            scores = ops.where(attention_mask[:, None, None, :], scores, -1e9)
        return scores

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be hidden

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_spans, 2, input_shape[1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_spans": self.num_spans,
            "initializer_range": self.initializer_range,
        }
