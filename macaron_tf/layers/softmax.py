"""Adaptive softmax: rare tokens are scored in narrower clusters."""

import itertools
from collections.abc import Sequence

from keras import ops

from macaron_tf.checks import check_count
from macaron_tf.layers.heads import Head


class AdaptiveSoftmax(Head):
    """Log-probabilities of tokens that are sorted by frequency, `(..., D) -> (..., V)`.

    The head scores the first `cutoffs[0]` tokens and, as one more entry each, the clusters of the
    others; the probability of a cluster's token is the cluster's times the token's within it.
    Cluster i (from 1) reads a projection of width D / divisor^i: with the papers' sizes most of
    the table's weights and products are saved. All clusters are computed for all rows, so that
    shapes are static.

    Args:
        vocab_size: V.
        cutoffs: first token of each cluster, ascending, such as (20_000, 40_000, 200_000).
        divisor: of the widths; 1 leaves them at D.

    Call arguments: `x (..., D)`. Like the heads that score by a `table`, it takes one, and returns
    its dtype.

    References: Grave et al. 2017, "Efficient softmax approximation for GPUs", section 4; Dai et
    al. 2019 (Transformer-XL), its released code.
    """

    def __init__(
        self,
        vocab_size: int,
        cutoffs: Sequence[int],
        divisor: int = 4,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(initializer_range, **kwargs)
        self.cutoffs = tuple(cutoffs)
        check_count("divisor", divisor)
        bounds = (0, *self.cutoffs, vocab_size)
        if not self.cutoffs or any(b <= a for a, b in itertools.pairwise(bounds)):
            raise ValueError(
                f"cutoffs={self.cutoffs} must ascend from 1 or more to below the {vocab_size} "
                "tokens of the vocabulary"
            )

    def build(self, x_shape, table_shape=None):
        width = x_shape[-1]
        sizes = [b - a for a, b in itertools.pairwise((*self.cutoffs, self.vocab_size))]
        self.head = self.built_dense(x_shape, self.cutoffs[0] + len(sizes), "head")
        self.projections, self.clusters = [], []
        for number, size in enumerate(sizes, start=1):
            inner = width // self.divisor**number
            if not inner:
                raise ValueError(
                    f"divisor={self.divisor} leaves no width to cluster {number} of vectors {width}"
                    " wide: take a smaller one, or fewer cutoffs"
                )
            self.projections.append(
                self.built_dense(x_shape, inner, f"projection_{number}", use_bias=False)
            )
            inner_shape = (*x_shape[:-1], inner)
            self.clusters.append(self.built_dense(inner_shape, size, f"cluster_{number}"))

    def call(self, x, table=None, transposed=False):
        head = ops.log_softmax(ops.cast(self.head(x), "float32"), axis=-1)
        first = self.cutoffs[0]
        parts = [head[..., :first]]
        clusters = zip(self.projections, self.clusters, strict=True)
        for column, (projection, cluster) in enumerate(clusters, start=first):
            within = ops.log_softmax(ops.cast(cluster(projection(x)), "float32"), axis=-1)
            parts.append(within + head[..., column : column + 1])  # (..., size) + (..., 1)
        dtype = self.compute_dtype if table is None else table.dtype
        return ops.cast(ops.concatenate(parts, axis=-1), dtype)
