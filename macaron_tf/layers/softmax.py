"""Adaptive softmax: rare tokens are scored in narrower clusters."""

import itertools
from collections.abc import Sequence

import keras
from keras import ops

from macaron_tf.checks import check_count


@keras.saving.register_keras_serializable(package="macaron_tf")
class AdaptiveSoftmax(keras.layers.Layer):
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
        initializer_range: standard deviation of all matrices, cut off at two of them.

    Call arguments: `x (..., D)`; it takes the place of a head that scores by a `table`, of
    which it needs no more than the type to return.

    Raises:
        ValueError: cutoffs that do not ascend from 1 to below V, or a divisor that leaves no width.

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
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.cutoffs = tuple(cutoffs)
        self.divisor = divisor
        self.initializer_range = initializer_range
        check_count("divisor", divisor)
        bounds = (0, *self.cutoffs, vocab_size)
        if not self.cutoffs or any(b <= a for a, b in itertools.pairwise(bounds)):
            raise ValueError(
                f"cutoffs={self.cutoffs} must ascend from 1 or more to below the {vocab_size} "
                "tokens of the vocabulary"
            )

    def build(self, x_shape, table_shape=None):
        width = x_shape[-1]
        sizes = [
            end - start
            for start, end in zip(self.cutoffs, (*self.cutoffs[1:], self.vocab_size), strict=True)
        ]
        self.head = self._dense(self.cutoffs[0] + len(sizes), "head")
        self.head.build(x_shape)
        self.projections, self.clusters = [], []
        for number, size in enumerate(sizes, start=1):
            inner = width // self.divisor**number
            if not inner:
                raise ValueError(
                    f"divisor={self.divisor} leaves no width to cluster {number} of vectors {width}"
                    " wide: take a smaller one, or fewer cutoffs"
                )
            projection = self._dense(inner, f"projection_{number}", use_bias=False)
            cluster = self._dense(size, f"cluster_{number}")
            projection.build(x_shape)
            cluster.build((*x_shape[:-1], inner))
            self.projections.append(projection)
            self.clusters.append(cluster)
        self.built = True

    def _dense(self, units: int, name: str, use_bias: bool = True) -> keras.layers.Dense:
        return keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_range),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, x, table=None, transposed=False):
        head = ops.log_softmax(ops.cast(self.head(x), "float32"), axis=-1)
        parts = [head[..., : self.cutoffs[0]]]
        for number, (projection, cluster) in enumerate(
            zip(self.projections, self.clusters, strict=True)
        ):
            within = ops.cast(cluster(projection(x)), "float32")
            # (..., size) + (..., 1)
            place = self.cutoffs[0] + number
            parts.append(ops.log_softmax(within, axis=-1) + head[..., place : place + 1])
        dtype = self.compute_dtype if table is None else table.dtype
        return ops.cast(ops.concatenate(parts, axis=-1), dtype)

    def compute_output_shape(self, x_shape, table_shape=None):
        return (*x_shape[:-1], self.vocab_size)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "cutoffs": self.cutoffs,
            "divisor": self.divisor,
            "initializer_range": self.initializer_range,
        }
