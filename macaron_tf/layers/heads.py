"""Heads: from an encoder's sequence to answers."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.layers.norms import Dropout

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


@keras.saving.register_keras_serializable(package="macaron_tf")
class LayerMixture(keras.layers.Layer):
    """`gamma sum_j softmax(s)_j h_j`; it starts as the layers' mean.

    Call arguments: `layers (..., J, D)`, the J layers of each position. Returns `(..., D)`.

    References: Peters et al. 2018 (ELMo), eq. 1.
    """

    def build(self, layers_shape):
        self.scores = self.add_weight(
            name="scores", shape=(layers_shape[-2],), initializer="zeros", autocast=False
        )
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        self.built = True

    @property
    def weights_of_layers(self):
        """`softmax(s)`, `(J,)` float32."""
        return ops.softmax(ops.convert_to_tensor(self.scores))

    def call(self, layers):
        weights = ops.cast(self.weights_of_layers, self.compute_dtype)
        return self.scale * ops.einsum("...jd,j->...d", layers, weights)

    def compute_output_shape(self, layers_shape):
        return (*layers_shape[:-2], layers_shape[-1])


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
