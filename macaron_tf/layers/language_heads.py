"""Heads that score tokens: next ones, masked ones, spans', and replaced ones."""

from keras import ops

from macaron_tf.layers.dense import Dense
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.heads import Head, truncated_normal
from macaron_tf.layers.norms import LayerNormalization


class NextTokenHead(Head):
    """Scores of every token: `x T^t`, T the embedding table.

    If the table is E wide and x is not, a matrix brings x to that width first.

    Args:
        vocab_size: V.
        use_bias: whether each token has a bias.

    Call arguments: `x (..., D)` and `table (V, E)`, or its transpose `(E, V)` with
    `transposed=True`. Returns `(..., V)` of the table's dtype.

    References: Press and Wolf 2017; Radford et al. 2018 (GPT), eq. 2.
    """

    def __init__(
        self, vocab_size: int, use_bias: bool = False, initializer_range: float = 0.02, **kwargs
    ):
        # Not cast by the policy: cached decoding asks for float32 scores of bfloat16 models.
        super().__init__(initializer_range, autocast=False, **kwargs)
        self.vocab_size = vocab_size
        self.use_bias = use_bias

    def build(self, x_shape, table_shape):
        self.projection = self.bias = None
        if x_shape[-1] != table_shape[-1]:
            self.projection = self.built_dense(
                x_shape, table_shape[-1], "projection", Dense, use_bias=False
            )
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


class TableHead(Head):
    """Base of the heads that transform vectors and score them by the embedding table, with a bias.

    Args:
        vocab_size: V.
        activation: of the transformation `LayerNorm(activation(x W + b))`.
        epsilon: of its LayerNorm.
    """

    def __init__(
        self,
        vocab_size: int,
        activation="gelu",
        epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(initializer_range, **kwargs)
        self.vocab_size = vocab_size
        self.activation = activation_named(activation)
        self.epsilon = epsilon

    def built_transformation(self, x_shape, units: int, suffix: str = ""):
        """A `Dense` layer with its activation, and a LayerNorm, both built."""
        dense = self.built_dense(
            x_shape, units, f"dense{suffix}", Dense, activation=self.activation
        )
        norm = LayerNormalization(
            epsilon=self.epsilon, dtype=self.dtype_policy, name=f"norm{suffix}"
        )
        norm.build((*x_shape[:-1], units))
        return dense, norm

    def build_bias(self):
        """The tokens' biases, `(V,)`."""
        self.bias = self.add_weight(name="bias", shape=(self.vocab_size,), initializer="zeros")

    def scores(self, x, table):
        """`(..., E) x (E, V) + (V,) -> (..., V)`."""
        return ops.add(ops.matmul(x, ops.transpose(ops.cast(table, x.dtype))), self.bias)

    def compute_output_shape(self, x_shape, *other_shapes, **named_shapes):
        return (*x_shape[:-1], self.vocab_size)


class MaskedLanguageHead(TableHead):
    """Scores of every token: `LayerNorm(activation(x W + b)) T^t + bias`, T the embedding table.

    Args:
        vocab_size, activation, epsilon: see `TableHead`.
        transform: whether there is a transformation, from D to the table's width E; XLM has none.

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
        **kwargs,
    ):
        super().__init__(vocab_size, activation, epsilon, **kwargs)
        self.transform = transform

    def build(self, x_shape, table_shape):
        width = table_shape[-1]
        if self.transform:
            self.dense, self.norm = self.built_transformation(x_shape, width)
        elif x_shape[-1] != width:
            raise ValueError(
                f"without a transformation the table, {width} wide, cannot score vectors of "
                f"{x_shape[-1]}: give transform=True or embeddings as wide as the encoder"
            )
        self.build_bias()
        self.built = True

    def call(self, x, table):
        if self.transform:
            x = self.norm(self.dense(x))  # (..., E)
        return self.scores(x, table)


class SpanBoundaryHead(TableHead):
    """Scores of a span's tokens from its outer boundaries and the token's position in the span.

    Twice `LayerNorm(activation(x W + b))` of `[h_left; h_right; p]`, then the embedding table and
    a bias.

    Args:
        vocab_size, activation, epsilon: see `TableHead`.
        max_span: number of positions; further tokens of a longer span share the last. SpanBERT's
            released code leaves them out.
        position_dim: width of the positions' vectors.

    Call arguments: `left` and `right (..., D)`, the encoder's output next to the span; `positions
    (...,)` int, from 0 on; `table (V, E)`, the token embeddings. Returns `(..., V)`.

    References: Joshi et al. 2020 (SpanBERT), section 3.2, and its released code.
    """

    def __init__(
        self,
        vocab_size: int,
        activation="gelu",
        epsilon: float = 1e-12,
        max_span: int = 20,
        position_dim: int = 200,
        **kwargs,
    ):
        super().__init__(vocab_size, activation, epsilon, **kwargs)
        self.max_span = max_span
        self.position_dim = position_dim

    def build(self, left_shape, right_shape, positions_shape, table_shape):
        *rows, width = left_shape
        self.positions = self.add_weight(
            name="positions",
            shape=(self.max_span, self.position_dim),
            initializer=truncated_normal(self.initializer_range),
        )
        self.dense_0, self.norm_0 = self.built_transformation(
            (*rows, 2 * width + self.position_dim), width, "_0"
        )
        self.dense_1, self.norm_1 = self.built_transformation(left_shape, table_shape[-1], "_1")
        self.build_bias()
        self.built = True

    def call(self, left, right, positions, table):
        positions = ops.minimum(ops.cast(positions, "int32"), self.max_span - 1)
        # A product with one-hot rows: a gather's gradient would add up the rows singly.
        one_hot = ops.one_hot(positions, self.max_span, dtype=left.dtype)  # (..., max_span)
        vectors = ops.matmul(one_hot, ops.cast(self.positions, left.dtype))  # (..., position_dim)
        x = ops.concatenate([left, right, vectors], axis=-1)  # (..., 2 D + position_dim)
        x = self.norm_0(self.dense_0(x))  # (..., D)
        x = self.norm_1(self.dense_1(x))  # (..., E)
        return self.scores(x, table)


class ReplacedTokenHead(Head):
    """The logit of every token having been replaced: `activation(x W + b) w + c`.

    Args:
        activation: of the transformation.

    Call arguments: `x (..., D)`; returns `(...,)`, above 0 for "replaced".

    References: Clark et al. 2020 (ELECTRA), section 2 and its released code.
    """

    def __init__(self, activation="gelu", initializer_range: float = 0.02, **kwargs):
        super().__init__(initializer_range, **kwargs)
        self.activation = activation_named(activation)

    def build(self, x_shape):
        self.dense = self.built_dense(
            x_shape, x_shape[-1], "dense", Dense, activation=self.activation
        )
        self.answer = self.built_dense(x_shape, 1, "answer", Dense)
        self.built = True

    def call(self, x):
        return ops.squeeze(self.answer(self.dense(x)), axis=-1)  # (..., D) -> (...,)

    def compute_output_shape(self, x_shape):
        return tuple(x_shape[:-1])
