"""Pooling layers, mixtures of layers, and heads for classification and span prediction."""

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.layers.dense import Dense
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.norms import Dropout, normalization
from macaron_tf.layers.recording import Recording


def _no_mask(self, x, mask=None):
    return None  # the output has no positions to mask


class Pooling(Recording, keras.layers.Layer):
    """Pooling of a sequence `(B, L, D)` into one vector, `(B, D)`.

    The output is float32 under any dtype policy, so that cosine similarities of the vectors are
    precise.

    Args:
        mode: `"mean"` or `"max"` over real positions, `"cls"` (first position) or `"last"` (last
            real position). In a causal model, only the last position sees all positions.

    Call arguments:
        mask: boolean `(B, L)`, False at padding. For a sequence without real positions, `"mean"`,
            `"max"` and `"last"` return zeros.

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3; Radford et al. 2018 (GPT),
    section 3.2, for the last position.
    """

    input_rank = 3

    def __init__(self, mode: str = "mean", **kwargs):
        super().__init__(**kwargs)
        check_choice("mode", mode, ("mean", "max", "cls", "last"))

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
            is_last = (columns == last[:, None])[..., None]  # (B, L, 1)
            return ops.sum(ops.where(is_last, x, 0.0), axis=1)  # (B, D)
        if self.mode == "mean":
            count = ops.sum(ops.cast(real, "float32"), axis=1)  # (B, 1)
            # `where` replaces a product, because values at padding may be infinite.
            total = ops.sum(ops.where(real, x, 0.0), axis=1)  # (B, D)
            return ops.divide(total, ops.maximum(count, 1.0))
        # The gradient of -inf would be NaN in a row without real positions, so the fill value is
        # -1e30.
        maxima = ops.max(ops.where(real, x, -1e30), axis=1)  # (B, D)
        return ops.where(ops.any(real, axis=1), maxima, 0.0)

    compute_mask = _no_mask


class LayerMixture(Recording, keras.layers.Layer):
    """Trained weighted sum of J layers: `gamma sum_j softmax(s)_j h_j`.

    Maps `(..., J, D)` to `(..., D)`. At the start of training, the sum is the mean of the layers.
    With `normalize`, each h_j is layer-normalized before the sum, without scale and offset.

    References: Peters et al. 2018 (ELMo), eq. 1 and end of section 3.2.
    """

    def __init__(self, normalize: bool = False, **kwargs):
        super().__init__(**kwargs)

    def build(self, layers_shape):
        shape = (layers_shape[-2],)
        self.scores = self.add_weight(shape, "zeros", autocast=False, name="scores")
        self.scale = self.add_weight((), "ones", name="scale")
        if self.normalize:
            self.norm = self.part(normalization, layers_shape, epsilon=1e-6, affine=False)

    def call(self, layers):
        weights = ops.softmax(ops.convert_to_tensor(self.scores))  # (J,) float32
        weights = ops.cast(weights, self.compute_dtype)
        if self.normalize:
            layers = self.norm(layers)
        return self.scale * ops.einsum("...jd,j->...d", layers, weights)


class Head(Recording, keras.layers.Layer):
    """Base class of heads whose matrices have truncated normal initializers.

    The standard deviation is `initializer_range`. The truncation is at two standard deviations.
    """

    def __init__(self, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)

    def build_dense(self, x_shape, units: int, name: str = "dense", **options) -> Dense:
        """Builds a `Dense` layer with the head's initializer for inputs of shape `x_shape`."""
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        return self.dense_part(name, x_shape, units, initializer, **options)

    def build_transformation(self, x_shape, units: int, suffix: str = ""):
        """Builds a `Dense` layer with the activation, and the norm, if any; returns both."""
        options = {"activation": self.activation, "use_bias": self.norm_type != "unbiased"}
        dense = self.build_dense(x_shape, units, f"dense{suffix}", **options)
        if self.norm_type is None:
            return dense, None
        arguments = ((*x_shape[:-1], units), self.norm_type, self.epsilon)
        return dense, self.part(normalization, *arguments, name=f"norm{suffix}")


class Pooler(Head):
    """BERT's pooler: `activation(x[0] W + b)`, where x[0] is the vector of [CLS].

    Maps `x (B, L, D)` to `(B, D)`.

    Args:
        activation: name or function of the activation. ELECTRA's classifier uses `"gelu"`, and
            DistilBERT's classifier uses `"relu"`.
        norm_type: type of a norm after the activation. With `"unbiased"` (ModernBERT), the matrix
            has no bias and the LayerNorm has no offset. `None` means no norm.

    References: Devlin et al. 2018 (BERT), released code.
    """

    input_rank = 3

    def __init__(
        self,
        initializer_range: float = 0.02,
        activation="tanh",
        norm_type: str | None = None,
        epsilon: float = 1e-5,
        **kwargs,
    ):
        super().__init__(initializer_range, **kwargs)
        self.activation = activation_named(activation)

    def is_like(self, other: "Pooler") -> bool:
        """Returns whether `other` computes the same function if it has the same weights."""
        return (self.activation, self.norm_type) == (other.activation, other.norm_type)

    def build(self, x_shape):
        shape = (x_shape[0], x_shape[-1])
        self.dense, self.layer_norm = self.build_transformation(shape, x_shape[-1])

    def call(self, x):
        y = self.dense(x[:, 0])  # (B, D)
        return self.layer_norm(y) if self.layer_norm else y

    compute_mask = _no_mask


class ClassificationHead(Head):
    """Head with dropout and a linear layer, which computes class logits: `(..., D)` to `(..., C)`.

    `num_classes=1` means regression.
    """

    def __init__(self, num_classes: int, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)

    def build(self, x_shape):
        self.drop = Dropout(self.dropout, name="dropout")
        self.dense = self.build_dense(x_shape, self.num_classes)

    def call(self, x, training=None):
        return self.dense(self.drop(x, training=training))


class SpanHead(Head):
    """Head that scores each position as the start and as the end of a span.

    Call arguments:
        attention_mask: boolean `(B, L)`, False where a span may neither start nor end. Such
            positions get the score -1e9.

    The output is float32 `(B, 2, L)`, with start scores at index 0 and end scores at index 1.

    References: Devlin et al. 2018 (BERT), section 4.2.
    """

    input_rank = 3

    def build(self, x_shape):
        self.dense = self.build_dense(x_shape, 2)

    def call(self, x, attention_mask=None):
        scores = ops.cast(ops.transpose(self.dense(x), (0, 2, 1)), "float32")  # (B, 2, L)
        if attention_mask is not None:
            scores = ops.where(attention_mask[:, None, :], scores, -1e9)
        return scores

    compute_mask = _no_mask
