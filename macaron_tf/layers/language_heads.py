"""Heads that predict next, masked or replaced tokens, and the adaptive softmax."""

from collections.abc import Sequence

import keras
from keras import ops

from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.embeddings import TiedEmbedding, cluster_bounds, cluster_width
from macaron_tf.layers.heads import Head


class TableHead(Head):
    """Base class of heads that compute logits from the embedding table T: `x T^t + b`."""

    def __init__(self, vocab_size: int, use_bias: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.bias = None

    def build_bias(self) -> None:
        """Adds the bias `(V,)` if `use_bias`, as the last weight, at the end of `build`."""
        if self.use_bias:
            shape, axes = (self.vocab_size,), ("vocab",)
            self.bias = self.add_weight(shape, "zeros", name="bias", axes=axes)

    def scores(self, x, table, transposed: bool = False):
        """Computes logits in the dtype of `table`: `(..., E) x (E, V) + (V,) -> (..., V)`.

        `table` is `(V, E)`, or `(E, V)` if `transposed` is True.
        """
        scores = ops.matmul(ops.cast(x, table.dtype), table if transposed else ops.transpose(table))
        if self.bias is None:
            return scores
        return ops.add(scores, ops.cast(ops.convert_to_tensor(self.bias), scores.dtype))


class NextTokenHead(TableHead):
    """Head that computes the logits of the next token, `(..., V)`: `x T^t + b`.

    If the width of x differs from the width E of the table T, a matrix first projects x to width E.

    Args:
        tied: whether T is the embedding table. Otherwise, the head has a separate `output_table`,
            as in Llama.

    Call arguments:
        x: `(..., D)`.
        table: embedding table `(V, E)` if `tied`. Otherwise, the matrix of `output_table`. The
            logits have the dtype of `table`.
        transposed: whether `table` is `(E, V)` instead of `(V, E)`.

    References: Press and Wolf 2017; Radford et al. 2018 (GPT), eq. 2.
    """

    def __init__(self, vocab_size: int, use_bias: bool = False, tied: bool = True, **kwargs):
        # Autocast is off because cached decoding asks for float32 scores of bfloat16 models.
        super().__init__(vocab_size, use_bias, autocast=False, **kwargs)

    def build(self, x_shape, table_shape):
        self.projection = None
        if x_shape[-1] != (width := table_shape[-1]):
            self.projection = self.build_dense(x_shape, width, "projection", use_bias=False)
        self.output_table = None
        if not self.tied:
            initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
            arguments = (*table_shape, False, initializer)
            self.output_table = self.part(TiedEmbedding, None, *arguments, name="output_table")
        self.build_bias()

    def call(self, x, table, transposed=False):
        return self.scores(self.projection(x) if self.projection else x, table, transposed)


class TransformingHead(TableHead):
    """Base class of heads that first transform vectors by `LayerNorm(activation(x W + b))`.

    With `norm_type="unbiased"`, the matrix has no bias and the LayerNorm has no offset
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


class MaskedLanguageHead(TransformingHead):
    """Head that computes the logits of masked tokens.

    The logits are `LayerNorm(activation(x W + b)) T^t + bias`, `(..., V)`, for `x (..., D)` and
    the embedding table T `(V, E)`. Without `transform`, x is not transformed, as in XLM.

    References: Devlin et al. 2018 (BERT), section 3.1 and released code; Lan et al. 2020 (ALBERT),
    section 3.1, for E below D.
    """

    def __init__(self, vocab_size: int, transform: bool = True, **kwargs):
        super().__init__(vocab_size, **kwargs)

    def build(self, x_shape, table_shape):
        width = table_shape[-1]
        if self.transform:
            self.dense, self.norm = self.build_transformation(x_shape, width)
        self.build_bias()

    def call(self, x, table):
        return self.scores(self.norm(self.dense(x)) if self.transform else x, table)


class SpanBoundaryHead(TransformingHead):
    """Head that predicts the tokens in a masked span from the span's boundaries (SpanBERT).

    The input is `[h_left; h_right; p]`: the vectors next to the span, and a trained vector p for
    the position within the span. Two dense layers transform the input, and the logits are the
    product with the embedding table.

    Args:
        max_span: number of position vectors. In a longer span, all further positions use the last
            position vector. SpanBERT's released code does not predict such positions.
        position_dim: width of the position vectors.

    Call arguments:
        left: `(..., D)`, the encoder's output at the position before the span.
        right: `(..., D)`, the encoder's output at the position after the span.
        positions: int `(...,)`, positions within the span, from 0.
        table: embedding table `(V, E)`. The output has shape `(..., V)`.

    References: Joshi et al. 2020 (SpanBERT), section 3.2, and released code.
    """

    def __init__(self, vocab_size: int, max_span: int = 20, position_dim: int = 200, **kwargs):
        super().__init__(vocab_size, **kwargs)

    def build(self, left_shape, right_shape, positions_shape, table_shape):
        *rows, width = left_shape
        shape = (self.max_span, self.position_dim)
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        self.positions = self.add_weight(shape, initializer, name="positions")
        joined_shape = (*rows, 2 * width + self.position_dim)
        self.dense_0, self.norm_0 = self.build_transformation(joined_shape, width, "_0")
        self.dense_1, self.norm_1 = self.build_transformation(left_shape, table_shape[-1], "_1")
        self.build_bias()

    def call(self, left, right, positions, table):
        positions = ops.minimum(ops.cast(positions, "int32"), self.max_span - 1)
        # A one-hot product, because the gradient of a gather adds the rows one at a time.
        one_hot = ops.one_hot(positions, self.max_span, dtype=left.dtype)  # (..., max_span)
        vectors = ops.matmul(one_hot, ops.cast(self.positions, left.dtype))  # (..., position_dim)
        x = ops.concatenate([left, right, vectors], axis=-1)  # (..., 2 D + position_dim)
        x = self.norm_0(self.dense_0(x))  # (..., D)
        return self.scores(self.norm_1(self.dense_1(x)), table)  # (..., E) -> (..., V)


class ReplacedTokenHead(Head):
    """Head that detects replaced tokens, with the logit `activation(x W + b) w + c`.

    Maps `(..., D)` to logits `(...,)`. A logit above 0 means that the token was replaced.

    References: Clark et al. 2020 (ELECTRA), section 2 and released code.
    """

    reads = ("activation",)

    def __init__(self, activation="gelu", **kwargs):
        super().__init__(**kwargs)
        self.activation = activation_named(activation)

    def build(self, x_shape):
        self.dense = self.build_dense(x_shape, x_shape[-1], activation=self.activation)
        self.answer = self.build_dense(x_shape, 1, "answer")

    def call(self, x):
        return ops.squeeze(self.answer(self.dense(x)), axis=-1)  # (..., D) -> (...,)


class AdaptiveSoftmax(TableHead):
    """Adaptive softmax, which computes log-probabilities of tokens that are sorted by frequency.

    The head scores the `cutoffs[0]` most frequent tokens, and each cluster of rarer tokens as a
    single entry. The probability of a rare token is the probability of its cluster times the
    probability of the token within the cluster. Cluster i, counted from 1, reads a projection of x
    to width D / divisor^i. At the sizes in the papers, the layer has far fewer parameters than a
    full softmax and needs far less computation. The layer computes all clusters at all positions,
    so that shapes are static.

    With `tied`, the scores are products with the embedding tables, and the transposed projections
    of the embeddings project x to the widths of the clusters. The layer's own weights are then only
    a bias per token, a dense layer for the cluster entries and, if `divisor` is above 1, a
    projection of x for the scores of the frequent tokens and the cluster entries. Transformer-XL's
    released code uses the same parameters.

    Args:
        cutoffs: first token id of each cluster in ascending order, such as `(20_000, 40_000,
            200_000)`.
        divisor: factor between the widths of successive clusters.
        tied: whether to compute the scores from the call argument `table`.

    Call arguments:
        x: `(..., D)`.
        table: embedding table `(V, D)`, or the output of `AdaptiveEmbedding.tables` if `divisor` is
            above 1. Required if `tied`. The logits have its dtype, or the compute dtype without
            `table`.

    References: Grave et al. 2017, "Efficient softmax approximation for GPUs", section 4; Dai et al.
    2019 (Transformer-XL), released code; Baevski and Auli 2019, section 3, for tied tables.
    """

    def __init__(
        self,
        vocab_size: int,
        cutoffs: Sequence[int],
        divisor: int = 4,
        tied: bool = False,
        **kwargs,
    ):
        super().__init__(vocab_size, autocast=False, **kwargs)  # see `NextTokenHead`
        self.cutoffs = tuple(cutoffs)
        self._bounds = cluster_bounds(vocab_size, cutoffs)

    def build(self, x_shape, table_shape=None):
        width, (_, *clusters) = x_shape[-1], self._bounds
        if self.tied:
            self.projection = None
            if self.divisor > 1:
                self.projection = self.build_dense(x_shape, width, "projection", use_bias=False)
            self.entries = self.build_dense(x_shape, len(clusters), "entries")
            self.build_bias()
            return
        self.head = self.build_dense(x_shape, self.cutoffs[0] + len(clusters), "head")
        self.projections, self.clusters = [], []
        for index, (start, end) in enumerate(clusters, start=1):
            cluster_dim, name = cluster_width(width, self.divisor, index), f"projection_{index}"
            self.projections.append(self.build_dense(x_shape, cluster_dim, name, use_bias=False))
            inner_shape = (*x_shape[:-1], cluster_dim)
            self.clusters.append(self.build_dense(inner_shape, end - start, f"cluster_{index}"))

    def call(self, x, table=None, transposed=False):
        head, *clusters = self._tied_scores(x, table) if self.tied else self._scores(x)
        head, num_frequent = ops.log_softmax(head, axis=-1), self.cutoffs[0]
        parts = [head[..., :num_frequent]]
        for column, scores in enumerate(clusters, start=num_frequent):
            log_probs = ops.log_softmax(scores, axis=-1)
            parts.append(log_probs + head[..., column : column + 1])  # (..., size) + (..., 1)
        dtype = self.compute_dtype if table is None else keras.tree.flatten(table)[0].dtype
        return ops.cast(ops.concatenate(parts, axis=-1), dtype)

    def _scores(self, x) -> list:
        """Returns the scores `(..., cutoffs[0] + number of clusters)`, then each cluster's scores.

        All are float32 or wider.
        """
        clusters = zip(self.projections, self.clusters, strict=True)
        cluster_scores = [cluster(projection(x)) for projection, cluster in clusters]
        return [_widen(scores) for scores in (self.head(x), *cluster_scores)]

    def _tied_scores(self, x, table) -> list:
        scores = []
        for index, (start, end) in enumerate(self._bounds):
            table_rows, projection = (table[start:end], None) if self.divisor == 1 else table[index]
            projected = ops.cast(x, table_rows.dtype)
            if index and projection is not None:
                # (..., D) -> (..., D / divisor^i)
                projected = ops.matmul(projected, ops.transpose(projection))
            elif self.projection:
                projected = ops.cast(self.projection(x), table_rows.dtype)
            bias = ops.cast(ops.convert_to_tensor(self.bias)[start:end], table_rows.dtype)
            cluster_scores = _widen(ops.add(ops.matmul(projected, ops.transpose(table_rows)), bias))
            if not index:
                entries = _widen(self.entries(projected))
                cluster_scores = ops.concatenate([cluster_scores, entries], axis=-1)
            scores.append(cluster_scores)
        return scores


def _widen(scores):
    """Casts scores to float32 or wider, because a softmax in bfloat16 is too coarse."""
    return ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
