"""Heads: from an encoder's sequence to answers."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.recording import Recording

POOLINGS = ("mean", "max", "cls", "last")


class Pooling(Recording, keras.layers.Layer):
    """A sequence as one vector, in float32 under any policy, since a cosine may follow.

    Args:
        mode: `"mean"` or `"max"` over the real positions; `"cls"`, the first position; or `"last"`,
            the last real one, which in a causal model has seen all others.

    Call arguments: `x (B, L, D)` and optionally `mask (B, L)`, False at padding, which is ignored;
    a row without a real position gives zeros. Returns `(B, D)` float32.

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
            columns = ops.arange(ops.shape(x)[1], dtype="int32")  # (L,)
            last = ops.max(ops.where(real[..., 0], columns, -1), axis=1)  # (B,)
            chosen = (columns == last[:, None])[..., None]  # (B, L, 1)
            return ops.sum(ops.where(chosen, x, 0.0), axis=1)  # (B, D)
        if self.mode == "mean":
            count = ops.sum(ops.cast(real, "float32"), axis=1)  # (B, 1)
            # A choice, not a product: values at padding may be infinite.
            total = ops.sum(ops.where(real, x, 0.0), axis=1)  # (B, D)
            return ops.divide(total, ops.maximum(count, 1.0))
        # -1e30: the maximum of no numbers would be -inf, and its gradient NaN.
        greatest = ops.max(ops.where(real, x, -1e30), axis=1)  # (B, D)
        return ops.where(ops.any(real, axis=1), greatest, 0.0)

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be masked

    def compute_output_shape(self, x_shape):
        return (x_shape[0], x_shape[-1])

    def compute_output_spec(self, x, mask=None):
        return keras.KerasTensor(self.compute_output_shape(x.shape), "float32")


class LayerMixture(Recording, keras.layers.Layer):
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
    """BERT's initializer: normal, cut off at two standard deviations."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


class Head(Recording, keras.layers.Layer):
    """Base of the heads: matrices start as truncated normals.

    Args:
        initializer_range: standard deviation of all matrices, cut off at two of them.
    """

    def __init__(self, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.initializer_range = initializer_range

    def built_dense(
        self, x_shape, units: int, name: str = "dense", dense=keras.layers.Dense, **options
    ) -> keras.layers.Dense:
        """A `Dense` layer, built for `x_shape`."""
        layer = dense(
            units,
            kernel_initializer=truncated_normal(self.initializer_range),
            dtype=self.dtype_policy,
            name=name,
            **options,
        )
        layer.build(x_shape)
        return layer


class Pooler(Head):
    """BERT's pooler, a sequence as one vector: `tanh(x[0] W + b)` of the [CLS] position.

    Call arguments: `x (B, L, D)`; returns `(B, D)`.

    References: Devlin et al. 2018 (BERT), its released code.
    """

    def build(self, x_shape):
        self.dense = self.built_dense((x_shape[0], x_shape[-1]), x_shape[-1], activation="tanh")
        self.built = True

    def call(self, x):
        return self.dense(x[:, 0])  # (B, D)

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be masked

    def compute_output_shape(self, x_shape):
        return (x_shape[0], x_shape[-1])


class ClassificationHead(Head):
    """Scores of C classes from a vector, or, with C = 1, a regression's value.

    Args:
        num_classes: C.
        dropout: on the vector.

    Call arguments: `x (..., D)`; returns `(..., C)`.
    """

    def __init__(
        self, num_classes: int, dropout: float = 0.0, initializer_range: float = 0.02, **kwargs
    ):
        super().__init__(initializer_range, **kwargs)
        self.num_classes = num_classes
        self.dropout = dropout

    def build(self, x_shape):
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.dense = self.built_dense(x_shape, self.num_classes)
        self.built = True

    def call(self, x, training=None):
        return self.dense(self.drop(x, training=training))

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.num_classes)


class SpanHead(Head):
    """Scores of every position as the start and as the end of each of N spans.

    Args:
        num_spans: N; 1 for question answering.

    Call arguments: `x (B, L, D)` and optionally `attention_mask (B, L)`, False where no span may
    start or end. Returns float32 `(B, N, 2, L)`: start at index 0, end at 1.

    References: Devlin et al. 2018 (BERT), section 4.2.
    """

    def __init__(self, num_spans: int = 1, initializer_range: float = 0.02, **kwargs):
        super().__init__(initializer_range, **kwargs)
        self.num_spans = num_spans

    def build(self, x_shape):
        self.dense = self.built_dense(x_shape, 2 * self.num_spans)
        self.built = True

    def call(self, x, attention_mask=None):
        # (B, L, 2 N) -> (B, L, N, 2) -> (B, N, 2, L)
        scores = ops.reshape(self.dense(x), (-1, ops.shape(x)[1], self.num_spans, 2))
        scores = ops.cast(ops.transpose(scores, (0, 2, 3, 1)), "float32")
        if attention_mask is not None:
            scores = ops.where(attention_mask[:, None, None, :], scores, -1e9)
        return scores

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be masked

    def compute_output_shape(self, x_shape):
        return (x_shape[0], self.num_spans, 2, x_shape[1])
