"""Pooling of sequences, mixtures of layers, and heads for classification and spans."""

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.layers.dense import Dense
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.norms import Dropout, normalization
from macaron_tf.layers.recording import Recording


class Pooling(Recording, keras.layers.Layer):
    """Pools a sequence into one vector, in float32 under any policy because a cosine may follow.

    Args:
        mode: `"mean"` or `"max"` over real positions; `"cls"`, the first position; or `"last"`, the
            last real position, which has seen all others in a causal model.

    Call arguments: `x (B, L, D)` and optionally `mask (B, L)`, False at padding; without a real
    position the mean, the maximum and the last position are zeros. Returns `(B, D)` float32.

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3; the last position: Radford et
    al. 2018 (GPT), section 3.2.
    """

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
            chosen = (columns == last[:, None])[..., None]  # (B, L, 1)
            return ops.sum(ops.where(chosen, x, 0.0), axis=1)  # (B, D)
        if self.mode == "mean":
            count = ops.sum(ops.cast(real, "float32"), axis=1)  # (B, 1)
            # `where` instead of a product, because values at padding may be infinite.
            total = ops.sum(ops.where(real, x, 0.0), axis=1)  # (B, D)
            return ops.divide(total, ops.maximum(count, 1.0))
        # -1e30 instead of -inf, whose gradient is NaN if a row has no real position.
        greatest = ops.max(ops.where(real, x, -1e30), axis=1)  # (B, D)
        return ops.where(ops.any(real, axis=1), greatest, 0.0)

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be masked


class LayerMixture(Recording, keras.layers.Layer):
    """Trained mixture of J layers, `gamma sum_j softmax(s)_j h_j`; it starts as their mean.

    Args:
        normalize: whether each h_j is layer-normalized, without scale and offset, before the sum.

    Call arguments: `layers (..., J, D)`. Returns `(..., D)`.

    References: Peters et al. 2018 (ELMo), eq. 1, and the end of section 3.2.
    """

    def __init__(self, normalize: bool = False, **kwargs):
        super().__init__(**kwargs)

    def build(self, layers_shape):
        self.scores = self.add_weight(
            name="scores", shape=(layers_shape[-2],), initializer="zeros", autocast=False
        )
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        if self.normalize:
            self.norm = self.part(normalization, layers_shape, epsilon=1e-6, affine=False)

    @property
    def weights_of_layers(self):
        """The layers' weights `softmax(s)`, `(J,)` float32."""
        return ops.softmax(ops.convert_to_tensor(self.scores))

    def call(self, layers):
        weights = ops.cast(self.weights_of_layers, self.compute_dtype)
        if self.normalize:
            layers = self.norm(layers)
        return self.scale * ops.einsum("...jd,j->...d", layers, weights)


class Head(Recording, keras.layers.Layer):
    """Base class of heads, whose matrices start from a truncated normal distribution.

    Args:
        initializer_range: standard deviation of all matrices, truncated at two of them.
    """

    def __init__(self, initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)

    def built_dense(self, x_shape, units: int, name: str = "dense", **options) -> Dense:
        """A `Dense` layer with the head's initializer, built for `x_shape`."""
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        return self.dense_part(name, x_shape, units, initializer, **options)


class Pooler(Head):
    """BERT's pooler: `activation(x[0] W + b)`, where x[0] is the vector of [CLS].

    Args:
        activation: see `macaron_tf.layers.activation`; `"gelu"` in ELECTRA's classifier, `"relu"`
            in DistilBERT's.
        norm_type: `"unbiased"`: there is no b, and a LayerNorm without offset follows (ModernBERT);
            None: no norm.
        epsilon: see `normalization`.

    Call arguments: `x (B, L, D)`. Returns `(B, D)`.

    References: Devlin et al. 2018 (BERT), its released code.
    """

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

    def build(self, x_shape):
        shape, width = (x_shape[0], x_shape[-1]), x_shape[-1]
        options = {"activation": self.activation, "use_bias": self.norm_type != "unbiased"}
        self.dense, self.layer_norm = self.built_dense(shape, width, **options), None
        if self.norm_type:
            options = {"norm_type": self.norm_type, "epsilon": self.epsilon}
            self.layer_norm = self.part(normalization, shape, **options, name="norm")

    def call(self, x):
        y = self.dense(x[:, 0])  # (B, D)
        return self.layer_norm(y) if self.layer_norm else y

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be masked


class ClassificationHead(Head):
    """Dropout and a linear layer: scores of C classes, or the value of a regression if C = 1.

    Args:
        num_classes: C.

    Call arguments: `x (..., D)`. Returns `(..., C)`.
    """

    def __init__(self, num_classes: int, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)

    def build(self, x_shape):
        self.drop = Dropout(self.dropout, name="dropout")
        self.dense = self.built_dense(x_shape, self.num_classes)

    def call(self, x, training=None):
        return self.dense(self.drop(x, training=training))


class SpanHead(Head):
    """Scores of each position as the start and as the end of a span.

    Call arguments: `x (B, L, D)` and optionally `attention_mask (B, L)`, False where no span may
    start or end. Returns `(B, 2, L)` float32: start scores at index 0, end scores at 1.

    References: Devlin et al. 2018 (BERT), section 4.2.
    """

    def build(self, x_shape):
        self.dense = self.built_dense(x_shape, 2)

    def call(self, x, attention_mask=None):
        scores = ops.cast(ops.transpose(self.dense(x), (0, 2, 1)), "float32")  # (B, 2, L)
        if attention_mask is not None:
            scores = ops.where(attention_mask[:, None, :], scores, -1e9)
        return scores

    def compute_mask(self, x, mask=None):
        return None  # no position is left to be masked
