"""Heads of pre-training: from an encoder's sequence to tokens, or to which were replaced."""

import keras
from keras import ops

from macaron_tf.layers.dense import Dense
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.heads import truncated_normal
from macaron_tf.layers.norms import LayerNormalization


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


@keras.saving.register_keras_serializable(package="macaron_tf")
class MaskedLanguageHead(keras.layers.Layer):
    """Scores of every token: `LayerNorm(activation(x W + b)) T^t + bias`, T the embedding table.

    Args:
        vocab_size: V.
        activation: of the transformation.
        epsilon: of its LayerNorm.
        transform: whether there is a transformation, from D to the table's width E; XLM has none.
        initializer_range: standard deviation of W, cut off at two of them.

    Call arguments: `x (..., D)` and `table (V, E)`, the token embeddings; returns `(..., V)`.

    Raises:
        ValueError: (when built) no transformation, and E is not D.

    References: Devlin et al. 2018 (BERT), section 3.1 and its released code; with E below D, Lan
    et al. 2020 (ALBERT), section 3.1.
    """

    def __init__(
        self,
        vocab_size: int,
        activation="gelu",
        epsilon: float = 1e-12,
        transform: bool = True,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.activation = activation_named(activation)
        self.epsilon = epsilon
        self.transform = transform
        self.initializer_range = initializer_range

    def build(self, x_shape, table_shape):
        width = table_shape[-1]
        if self.transform:
            self.dense, self.norm = _transformation(self, x_shape, width, "dense", "norm")
        elif x_shape[-1] != width:
            raise ValueError(
                f"without a transformation the table, {width} wide, cannot score vectors of "
                f"{x_shape[-1]}: give transform=True or embeddings as wide as the encoder"
            )
        self.bias = self.add_weight(name="bias", shape=(self.vocab_size,), initializer="zeros")
        self.built = True

    def call(self, x, table):
        if self.transform:
            x = self.norm(self.dense(x))  # (..., E)
        return _scores(x, table, self.bias)

    def compute_output_shape(self, x_shape, table_shape=None):
        return (*x_shape[:-1], self.vocab_size)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "activation": keras.activations.serialize(self.activation),
            "epsilon": self.epsilon,
            "transform": self.transform,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(package="macaron_tf")
class SpanBoundaryHead(keras.layers.Layer):
    """Scores of a span's tokens from what is around it and the token's place in it.

    Twice `LayerNorm(activation(x W + b))` of `[h_left; h_right; p]`, then the embedding table and
    a bias of its own.

    Args:
        vocab_size: V.
        activation: of both transformations.
        epsilon: of their LayerNorms.
        max_span: number of places; a longer span's further tokens share the last. SpanBERT's
            released code leaves them out.
        place_dim: width of the places' vectors.
        initializer_range: standard deviation of all matrices, cut off at two of them.

    Call arguments: `left` and `right (..., D)`, the encoder's output next to the span; `places
    (...,)` int, from 0 on; `table (V, E)`, the token embeddings. Returns `(..., V)`.

    References: Joshi et al. 2020 (SpanBERT), section 3.2, and its released code.
    """

    def __init__(
        self,
        vocab_size: int,
        activation="gelu",
        epsilon: float = 1e-12,
        max_span: int = 20,
        place_dim: int = 200,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.activation = activation_named(activation)
        self.epsilon = epsilon
        self.max_span = max_span
        self.place_dim = place_dim
        self.initializer_range = initializer_range

    def build(self, left_shape, right_shape, places_shape, table_shape):
        width = left_shape[-1]
        self.places = self.add_weight(
            name="places",
            shape=(self.max_span, self.place_dim),
            initializer=truncated_normal(self.initializer_range),
        )
        shape = (*left_shape[:-1], 2 * width + self.place_dim)
        self.dense_0, self.norm_0 = _transformation(self, shape, width, "dense_0", "norm_0")
        shape = (*left_shape[:-1], width)
        self.dense_1, self.norm_1 = _transformation(
            self, shape, table_shape[-1], "dense_1", "norm_1"
        )
        self.bias = self.add_weight(name="bias", shape=(self.vocab_size,), initializer="zeros")
        self.built = True

    def call(self, left, right, places, table):
        places = ops.minimum(ops.cast(places, "int32"), self.max_span - 1)
        # A product with one-hot rows: a gather's gradient would add up the rows singly.
        one_hot = ops.one_hot(places, self.max_span, dtype=left.dtype)  # (..., max_span)
        vectors = ops.matmul(one_hot, ops.cast(self.places, left.dtype))  # (..., place_dim)
        x = ops.concatenate([left, right, vectors], axis=-1)  # (..., 2 D + place_dim)
        x = self.norm_0(self.dense_0(x))  # (..., D)
        x = self.norm_1(self.dense_1(x))  # (..., E)
        return _scores(x, table, self.bias)

    def compute_output_shape(
        self, left_shape, right_shape=None, places_shape=None, table_shape=None
    ):
        return (*left_shape[:-1], self.vocab_size)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "activation": keras.activations.serialize(self.activation),
            "epsilon": self.epsilon,
            "max_span": self.max_span,
            "place_dim": self.place_dim,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(package="macaron_tf")
class ReplacedTokenHead(keras.layers.Layer):
    """How sure it is of every token that it was replaced: `activation(x W + b) w + c`, a logit.

    Args:
        activation: of the transformation.
        initializer_range: standard deviation of the matrices, cut off at two of them.

    Call arguments: `x (..., D)`; returns `(...,)`, above 0 for "replaced".

    References: Clark et al. 2020 (ELECTRA), section 2 and its released code.
    """

    def __init__(self, activation="gelu", initializer_range: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.activation = activation_named(activation)
        self.initializer_range = initializer_range

    def build(self, input_shape):
        self.dense = Dense(
            input_shape[-1],
            activation=self.activation,
            kernel_initializer=truncated_normal(self.initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.dense.build(input_shape)
        self.answer = Dense(
            1,
            kernel_initializer=truncated_normal(self.initializer_range),
            dtype=self.dtype_policy,
            name="answer",
        )
        self.answer.build(input_shape)
        self.built = True

    def call(self, x):
        return ops.squeeze(self.answer(self.dense(x)), axis=-1)  # (..., D) -> (...,)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape[:-1])

    def get_config(self):
        return {
            **super().get_config(),
            "activation": keras.activations.serialize(self.activation),
            "initializer_range": self.initializer_range,
        }


def _transformation(
    head: keras.layers.Layer, shape, width: int, dense_name: str, norm_name: str
) -> tuple[Dense, LayerNormalization]:
    """`activation(x W + b)` from `shape` to `(..., width)`, and a LayerNorm, both built."""
    dense = Dense(
        width,
        activation=head.activation,
        kernel_initializer=truncated_normal(head.initializer_range),
        dtype=head.dtype_policy,
        name=dense_name,
    )
    dense.build(shape)
    norm = LayerNormalization(epsilon=head.epsilon, dtype=head.dtype_policy, name=norm_name)
    norm.build((*shape[:-1], width))
    return dense, norm


def _scores(x, table, bias):
    """`(..., E) x (E, V) + (V,) -> (..., V)`."""
    return ops.add(ops.matmul(x, ops.transpose(ops.cast(table, x.dtype))), bias)
