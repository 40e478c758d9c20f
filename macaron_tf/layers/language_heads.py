"""Heads of language models: scores of next, masked and replaced tokens, and adaptive softmax."""

from collections.abc import Sequence

import keras
from keras import ops

from macaron_tf.errors import check_count
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.embeddings import TiedEmbedding, cluster_bounds, cluster_width
from macaron_tf.layers.heads import Head
from macaron_tf.layers.norms import normalization


class TableHead(Head):
    """Base class of heads that score vectors by the embedding table T: `x T^t + b`.

    Args:
        vocab_size: V.
        use_bias: whether there is a bias for each token.
    """

    def __init__(self, vocab_size: int, use_bias: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.bias = None

    def build_bias(self) -> None:
        """Adds the bias `(V,)`. Call it last in `build`, so that the bias is the last weight."""
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.vocab_size,), initializer="zeros", axes=("vocab",)
            )

    def scores(self, x, table, transposed: bool = False):
        """Scores in the table's dtype: `(..., E) x (E, V) + (V,) -> (..., V)`."""
        scores = ops.matmul(ops.cast(x, table.dtype), table if transposed else ops.transpose(table))
        if self.bias is None:
            return scores
        return ops.add(scores, ops.cast(ops.convert_to_tensor(self.bias), scores.dtype))


class NextTokenHead(TableHead):
    """Scores of all tokens as the next one; if x has not the table's width E, a matrix projects it.

    Args:
        vocab_size: V.
        use_bias: see `TableHead`.
        tied: whether tokens are scored by the embedding table; if not, the head has an
            `output_table` of its own (Llama).

    Call arguments: `x (..., D)` and `table (V, E)`, or its transpose `(E, V)` with
    `transposed=True`. Returns `(..., V)` in the table's dtype.

    References: Press and Wolf 2017; Radford et al. 2018 (GPT), eq. 2.
    """

    def __init__(self, vocab_size: int, use_bias: bool = False, tied: bool = True, **kwargs):
        # Without autocast, because cached decoding asks for float32 scores of bfloat16 models.
        super().__init__(vocab_size, use_bias, autocast=False, **kwargs)

    def build(self, x_shape, table_shape):
        self.projection = None
        if x_shape[-1] != table_shape[-1]:
            self.projection = self.built_dense(
                x_shape, table_shape[-1], "projection", use_bias=False
            )
        self.output_table = None
        if not self.tied:
            start = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
            options = {"scale": False, "initializer": start, "name": "output_table"}
            self.output_table = self.part(TiedEmbedding, None, *table_shape, **options)
        self.build_bias()

    def call(self, x, table, transposed=False):
        return self.scores(self.projection(x) if self.projection else x, table, transposed)


class TransformingHead(TableHead):
    """A `TableHead` that first transforms vectors: `LayerNorm(activation(x W + b))`.

    Args:
        activation: see `macaron_tf.layers.activation`.
        epsilon: see `normalization`.
        norm_type: `"layer"`, or `"unbiased"`: the matrix has no bias and the LayerNorm no offset
            (ModernBERT).
    """

    reads = ("activation",)

    def __init__(
        self,
        vocab_size: int,
        activation="gelu",
        epsilon: float = 1e-12,
        norm_type: str = "layer",
        **kwargs,
    ):
        super().__init__(vocab_size, **kwargs)
        self.activation = activation_named(activation)

    def transformation(self, x_shape, units: int, suffix: str = ""):
        """Returns a `Dense` layer with the activation, and a LayerNorm, both built."""
        shape, options = (*x_shape[:-1], units), {"use_bias": self.norm_type != "unbiased"}
        dense = self.built_dense(
            x_shape, units, f"dense{suffix}", activation=self.activation, **options
        )
        norm = self.part(normalization, shape, self.norm_type, self.epsilon, name=f"norm{suffix}")
        return dense, norm


class MaskedLanguageHead(TransformingHead):
    """Scores of all tokens at masked positions: `LayerNorm(activation(x W + b)) T^t + bias`.

    T is the embedding table.

    Args:
        transform: whether the dense layer and the LayerNorm transform x from width D to the table's
            E (XLM has none).

    Call arguments: `x (..., D)` and `table (V, E)`. Returns `(..., V)`.

    References: Devlin et al. 2018 (BERT), section 3.1 and its released code; E below D: Lan et al.
    2020 (ALBERT), section 3.1.
    """

    def __init__(self, vocab_size: int, transform: bool = True, **kwargs):
        super().__init__(vocab_size, **kwargs)

    def build(self, x_shape, table_shape):
        width = table_shape[-1]
        if self.transform:
            self.dense, self.norm = self.transformation(x_shape, width)
        elif x_shape[-1] != width:
            raise ValueError(
                f"without a transformation a table {width} wide cannot score vectors {x_shape[-1]} "
                "wide: give transform=True, or embeddings as wide as the encoder"
            )
        self.build_bias()

    def call(self, x, table):
        return self.scores(self.norm(self.dense(x)) if self.transform else x, table)


class SpanBoundaryHead(TransformingHead):
    """Scores of a masked span's tokens, from the vectors next to the span and positions inside it.

    `[h_left; h_right; p]` is transformed twice, then scored by the embedding table.

    Args:
        max_span: number of position vectors; later positions of longer spans use the last one.
            SpanBERT's released code leaves such positions out.
        position_dim: width of the position vectors p.

    Call arguments: `left` and `right (..., D)`, the encoder's outputs before and after the span;
    `positions (...,)` int, from 0 on; `table (V, E)`. Returns `(..., V)`.

    References: Joshi et al. 2020 (SpanBERT), section 3.2, and its released code.
    """

    def __init__(self, vocab_size: int, max_span: int = 20, position_dim: int = 200, **kwargs):
        super().__init__(vocab_size, **kwargs)

    def build(self, left_shape, right_shape, positions_shape, table_shape):
        *rows, width = left_shape
        self.positions = self.add_weight(
            name="positions",
            shape=(self.max_span, self.position_dim),
            initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_range),
        )
        joined_shape = (*rows, 2 * width + self.position_dim)
        self.dense_0, self.norm_0 = self.transformation(joined_shape, width, "_0")
        self.dense_1, self.norm_1 = self.transformation(left_shape, table_shape[-1], "_1")
        self.build_bias()

    def call(self, left, right, positions, table):
        positions = ops.minimum(ops.cast(positions, "int32"), self.max_span - 1)
        # One-hot rows, because a gather's gradient would add the rows one at a time.
        one_hot = ops.one_hot(positions, self.max_span, dtype=left.dtype)  # (..., max_span)
        vectors = ops.matmul(one_hot, ops.cast(self.positions, left.dtype))  # (..., position_dim)
        x = ops.concatenate([left, right, vectors], axis=-1)  # (..., 2 D + position_dim)
        x = self.norm_0(self.dense_0(x))  # (..., D)
        return self.scores(self.norm_1(self.dense_1(x)), table)  # (..., E) -> (..., V)


class ReplacedTokenHead(Head):
    """The logit that each token has been replaced: `activation(x W + b) w + c`.

    Call arguments: `x (..., D)`. Returns `(...,)`; above 0 means replaced.

    References: Clark et al. 2020 (ELECTRA), section 2 and its released code.
    """

    reads = ("activation",)

    def __init__(self, activation="gelu", **kwargs):
        super().__init__(**kwargs)
        self.activation = activation_named(activation)

    def build(self, x_shape):
        self.dense = self.built_dense(x_shape, x_shape[-1], activation=self.activation)
        self.answer = self.built_dense(x_shape, 1, "answer")

    def call(self, x):
        return ops.squeeze(self.answer(self.dense(x)), axis=-1)  # (..., D) -> (...,)


class AdaptiveSoftmax(TableHead):
    """Adaptive softmax, log-probabilities of tokens sorted by frequency: `(..., D) -> (..., V)`.

    The head scores the first `cutoffs[0]` tokens, and each cluster of the other tokens as one
    entry. The probability of a token in a cluster is the cluster's probability times that of the
    token within the cluster. Cluster i, from 1, reads a projection of width D / divisor^i. With the
    papers' sizes this saves most of the parameters and of the computation. All clusters are
    computed for all rows, so that shapes are static.

    With `tied`, tokens are scored by the embedding tables, and x is projected to the clusters'
    widths by the transposed projections of the embeddings. The layer's own weights are then a bias
    for each token, the clusters' entries in the head and, with a divisor above 1, the head's
    projection, as in Transformer-XL's released code.

    Args:
        vocab_size: V.
        cutoffs: first token id of each cluster, ascending, such as (20_000, 40_000, 200_000).
        divisor: factor by which each cluster is narrower than the one before; 1: all have width D.
        tied: whether tokens are scored by the call argument `table`.

    Call arguments: `x (..., D)`; `table`, needed if `tied`: `(V, D)`, or with a divisor above 1
    `AdaptiveEmbedding.tables`. Returns `(..., V)`, in the dtype of `table` if one is given.

    References: Grave et al. 2017, "Efficient softmax approximation for GPUs", section 4; Dai et
    al. 2019 (Transformer-XL), its released code; tied: Baevski and Auli 2019, section 3.
    """

    def __init__(
        self,
        vocab_size: int,
        cutoffs: Sequence[int],
        divisor: int = 4,
        tied: bool = False,
        **kwargs,
    ):
        super().__init__(vocab_size, autocast=False, **kwargs)  # as `NextTokenHead`
        self.cutoffs = tuple(cutoffs)
        check_count("divisor", divisor)
        self._bounds = cluster_bounds(vocab_size, cutoffs)

    def build(self, x_shape, table_shape=None):
        width, (_, *clusters) = x_shape[-1], self._bounds
        if self.tied:
            self.projection = None
            if self.divisor > 1:
                self.projection = self.built_dense(x_shape, width, "projection", use_bias=False)
            self.entries = self.built_dense(x_shape, len(clusters), "entries")
            self.build_bias()
            return
        self.head = self.built_dense(x_shape, self.cutoffs[0] + len(clusters), "head")
        self.projections, self.clusters = [], []
        for number, (start, end) in enumerate(clusters, start=1):
            inner = cluster_width(width, self.divisor, number)
            self.projections.append(
                self.built_dense(x_shape, inner, f"projection_{number}", use_bias=False)
            )
            inner_shape = (*x_shape[:-1], inner)
            self.clusters.append(self.built_dense(inner_shape, end - start, f"cluster_{number}"))

    def call(self, x, table=None, transposed=False):
        head, *clusters = self._tied_scores(x, table) if self.tied else self._scores(x)
        head, first = ops.log_softmax(head, axis=-1), self.cutoffs[0]
        parts = [head[..., :first]]
        for column, scores in enumerate(clusters, start=first):
            within = ops.log_softmax(scores, axis=-1)
            parts.append(within + head[..., column : column + 1])  # (..., size) + (..., 1)
        dtype = self.compute_dtype if table is None else keras.tree.flatten(table)[0].dtype
        return ops.cast(ops.concatenate(parts, axis=-1), dtype)

    def _scores(self, x) -> list:
        """Scores of the head `(..., cutoffs[0] + clusters)`, then scores within each cluster."""
        clusters = zip(self.projections, self.clusters, strict=True)
        within = [cluster(projection(x)) for projection, cluster in clusters]
        return [_wide(scores) for scores in (self.head(x), *within)]

    def _tied_scores(self, x, table) -> list:
        """Same as `_scores`, by the embedding tables."""
        scores = []
        for number, (start, end) in enumerate(self._bounds):
            own, matrix = (table[start:end], None) if self.divisor == 1 else table[number]
            inner = ops.cast(x, own.dtype)
            if number and matrix is not None:
                inner = ops.matmul(inner, ops.transpose(matrix))  # (..., D) -> (..., D / divisor^i)
            elif self.projection:
                inner = ops.cast(self.projection(x), own.dtype)
            bias = ops.cast(ops.convert_to_tensor(self.bias)[start:end], own.dtype)
            found = _wide(ops.add(ops.matmul(inner, ops.transpose(own)), bias))
            if not number:
                found = ops.concatenate([found, _wide(self.entries(inner))], axis=-1)
            scores.append(found)
        return scores


def _wide(scores):
    """Casts scores to float32 at least, because a bfloat16 softmax is too coarse."""
    return ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
