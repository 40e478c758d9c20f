"""Token embeddings, adaptive embeddings, and an encoder's input embeddings."""

import itertools
from collections.abc import Sequence

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.layers.dense import Dense
from macaron_tf.layers.norms import Dropout, normalization
from macaron_tf.layers.positions import LearnedPositions, SinusoidalPositions
from macaron_tf.layers.recording import Recording
from macaron_tf.variables import declare


class TiedEmbedding(Recording, keras.layers.Layer):
    """Token embeddings with a table E `(V, D)`. The layer can also compute the logits `x E^T`.

    `quantize("int8")` quantizes the table, as for Keras's `ReversibleEmbedding`.

    Args:
        scale: whether to multiply embeddings by sqrt(D), as in the original Transformer.
        initializer: initializer of the table. `None` means a normal distribution with standard
            deviation D^-1/2, so that both scaled embeddings and logits start at unit scale.

    Call arguments:
        ids: int `(B, L)`, or vectors `(..., D)` with `reverse`.
        reverse: whether to return the logits `x E^T`, `(..., V)`, instead of embeddings.

    References: Press and Wolf 2017; Vaswani et al. 2017, section 3.4.
    """

    takes_ids = True

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        scale: bool = True,
        initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.input_dim, self.output_dim = vocab_size, hidden_dim  # KerasHub reads these names
        if initializer is None:
            self.initializer = keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)

    def build(self, input_shape=None):
        shape = (self.vocab_size, self.hidden_dim)
        if self.quantization_mode:
            self.quantized_build(shape, self.quantization_mode)
        else:
            axes = ("vocab", "embed")
            self.table = self.add_weight(shape, self.initializer, name="table", axes=axes)

    def call(self, ids, reverse=False):
        if reverse:
            return self.logits(ids)
        vectors = ops.cast(ops.take(self.table, ids, axis=0), self.compute_dtype)  # (B, L, D)
        if self.quantization_mode:
            scales = ops.take(self.table_scale, ids, axis=0)[..., None]  # (B, L, 1)
            vectors = vectors / ops.cast(scales, vectors.dtype)
        return vectors * self.hidden_dim**0.5 if self.scale else vectors

    def logits(self, x):
        """Computes the logits `(..., V)` of `x (..., D)`."""
        return ops.matmul(x, ops.transpose(self.matrix(x.dtype)))

    def matrix(self, dtype):
        """Returns the table `(V, D)` in a float dtype. An int8 table is dequantized."""
        table = ops.cast(ops.convert_to_tensor(self.table), dtype)
        if not self.quantization_mode:
            return table
        return table / ops.cast(ops.convert_to_tensor(self.table_scale), dtype)[:, None]

    def quantized_build(self, input_shape, mode):
        if mode != "int8":
            raise self._not_implemented_error(self.quantize)
        scale_shape, options = input_shape[:1], {"trainable": False}
        self.table = self.add_weight(input_shape, "zeros", "int8", name="table", **options)
        self.table_scale = self.add_weight(scale_shape, "ones", name="table_scale", **options)
        self._is_quantized = True

    def quantize(self, mode=None, type_check=True, config=None):
        if mode != "int8":
            raise self._not_implemented_error(self.quantize)
        values, scales = keras.quantizers.AbsMaxQuantizer(axis=-1)(self.table, to_numpy=True)
        del self.table
        self.quantized_build(values.shape, mode)
        self.table.assign(values)
        self.table_scale.assign(scales[:, 0])
        self.dtype_policy = f"{mode}_from_{self.dtype_policy.name}"

    def quantized_call(self, *args, **kwargs):
        return self.call(*args, **kwargs)


def cluster_bounds(vocab_size: int, cutoffs: Sequence[int]) -> list[tuple[int, int]]:
    """Returns one pair per cluster: the first token id and the exclusive end."""
    bounds = (0, *cutoffs, vocab_size)
    if any(b <= a for a, b in itertools.pairwise(bounds)):
        raise ValueError(f"cutoffs={(*cutoffs,)} must ascend between 0 and vocab_size={vocab_size}")
    return list(itertools.pairwise(bounds))


def cluster_width(width: int, divisor: int, cluster: int) -> int:
    """Returns the vector width in cluster `cluster`: `width / divisor^cluster`, rounded down."""
    cluster_dim = width // divisor**cluster
    if not cluster_dim:
        raise ValueError(f"divisor={divisor} leaves no width in cluster {cluster}: lower it")
    return cluster_dim


class AdaptiveEmbedding(Recording, keras.layers.Layer):
    """Adaptive input representations: embeddings that are narrower for rare tokens.

    Token ids are sorted by frequency and divided into clusters. Cluster i, counted from 0, has a
    table of width D / divisor^i and a matrix that projects the vectors to width D. The layer looks
    up every id of `ids (B, L)` in the tables of all clusters and keeps the vector from the id's own
    cluster, so that shapes are static.

    Args:
        cutoffs: first token id of each cluster except the first, in ascending order.
        divisor: factor between the widths of successive clusters.
        scale: whether to multiply embeddings by sqrt(D).
        initializer: initializer of the tables. The projections have an initializer that preserves
            the scale of the vectors.

    References: Baevski and Auli 2019, "Adaptive Input Representations for Neural Language
    Modeling", section 3; Dai et al. 2019 (Transformer-XL), released code.
    """

    takes_ids = True

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        cutoffs: Sequence[int],
        divisor: int = 4,
        scale: bool = False,
        initializer="random_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._bounds = cluster_bounds(vocab_size, cutoffs)

    def build(self, input_shape=None):
        self.clusters, self.projections = [], []
        for index, (start, end) in enumerate(self._bounds):
            width = cluster_width(self.hidden_dim, self.divisor, index)
            options = {"initializer": self.initializer.clone(), "name": f"cluster_{index}"}
            table = self.part(TiedEmbedding, None, end - start, width, scale=False, **options)
            declare(table.table, ("cluster", "embed"))
            self.clusters.append(table)
            options = {"kernel_initializer": "lecun_normal", "name": f"projection_{index}"}
            shape = (None, None, width)
            matrix = self.part(Dense, shape, self.hidden_dim, use_bias=False, **options)
            self.projections.append(matrix)

    def call(self, ids):
        x = 0.0
        parts = zip(self._bounds, self.clusters, self.projections, strict=True)
        for (start, end), table, matrix in parts:
            in_cluster = ops.logical_and(ids >= start, ids < end)[..., None]  # (B, L, 1)
            rows = ops.clip(ids - start, 0, end - start - 1)
            vectors = matrix(table(rows))  # (B, L) -> (B, L, D / divisor^i) -> (B, L, D)
            x = x + ops.where(in_cluster, vectors, 0.0)
        return x * self.hidden_dim**0.5 if self.scale else x

    def tables(self, dtype) -> list[tuple]:
        """Returns one pair per cluster: the table `(V_i, D / divisor^i)` and the projection.

        The projection `(D / divisor^i, D)` maps the table's vectors to width D.
        """
        parts = zip(self.clusters, self.projections, strict=True)
        return [(table.matrix(dtype), matrix.matrix(dtype)) for table, matrix in parts]

    def matrix(self, dtype):
        """Computes the vectors of all tokens, `(V, D)`, without the factor sqrt(D) of `scale`."""
        return ops.concatenate([ops.matmul(*pair) for pair in self.tables(dtype)], axis=0)


POSITIONS = ("learned", "sinusoidal", "none")


class EncoderEmbeddings(Recording, keras.layers.Layer):
    """Sum of token, position, segment and language embeddings, followed by LayerNorm and dropout.

    Args:
        embedding_dim: embedding width E. The width D of the hidden states may differ from E.
        positions: `"learned"`, `"sinusoidal"` or `"none"`.
        max_length: maximum sequence length for learned positions.
        position_offset: number of unused rows before the learned positions.
        num_segments: number of segment embeddings. A single one is added at every position,
            whatever the segment ids.
        initializer_range: standard deviation of the truncated normal initializer for all tables.
        norm: whether a LayerNorm follows the sum. GPT has no such norm.
        position_layout: order of sines and cosines (see `SinusoidalPositions`).
        scale: whether to multiply token embeddings by sqrt(E), unless `tokens` is given.
        tokens: token embeddings to use, such as embeddings shared with another layer. `None` means
            that the layer creates token embeddings.

    Call arguments:
        token_ids: int `(B, L)`.
        segment_ids: int `(B, L)`, 0 by default.
        language_ids: int `(B, L)`, 0 by default.
        position_ids: int `(B, L)`, 0 to L - 1 by default.
        vectors: vectors `(B, L, E)` that replace the token embeddings.

    References: Devlin et al. 2018 (BERT), figure 2; Conneau and Lample 2019 (XLM), figure 1, for
    languages and positions that restart.
    """

    takes_ids = True
    shared = ("tokens",)

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        positions: str = "learned",
        max_length: int = 512,
        num_segments: int = 2,
        num_languages: int = 0,
        dropout: float = 0.1,
        epsilon: float = 1e-12,
        affine: bool = True,
        norm_type: str = "layer",
        initializer_range: float = 0.02,
        norm: bool = True,
        position_layout: str = "interleaved",
        scale: bool = False,
        tokens: TiedEmbedding | AdaptiveEmbedding | None = None,
        position_offset: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_choice("positions", positions, POSITIONS)
        self.tokens = tokens

    def build(self, input_shape=None, **shapes):
        width = self.embedding_dim
        shape = (None, None, width)
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        self.position_layer = self.segments = self.languages = self.layer_norm = None
        if self.tokens is None:
            options = {"initializer": initializer.clone(), "name": "tokens"}
            self.tokens = TiedEmbedding(self.vocab_size, width, self.scale, **options)
        if not self.tokens.built:
            self.tokens.build()
        if self.positions == "learned":
            arguments = (self.max_length, initializer.clone(), self.position_offset)
            self.position_layer = self.part(LearnedPositions, shape, *arguments, name="positions")
        elif self.positions == "sinusoidal":
            options = {"layout": self.position_layout, "name": "positions"}
            self.position_layer = self.part(SinusoidalPositions, shape, **options)
        for name, count in (("segments", self.num_segments), ("languages", self.num_languages)):
            if count:
                table = self.add_weight((count, width), initializer.clone(), name=name)
                setattr(self, name, table)
        if self.norm:
            arguments = (self.norm_type, self.epsilon, self.affine)
            self.layer_norm = self.part(normalization, shape, *arguments, name="norm")
        self.drop = Dropout(self.dropout, name="dropout")

    def call(
        self,
        token_ids,
        segment_ids=None,
        language_ids=None,
        position_ids=None,
        vectors=None,
        training=None,
    ):
        x = self.tokens(token_ids) if vectors is None else vectors  # (B, L, E)
        for table, ids in ((self.segments, segment_ids), (self.languages, language_ids)):
            if table is self.segments is not None and self.num_segments == 1:
                x = x + ops.cast(table, x.dtype)
            elif table is not None:
                ids = ops.zeros_like(token_ids) if ids is None else ids
                # A one-hot product, because the gradient of a gather adds B L rows one at a time.
                one_hot = ops.one_hot(ids, table.shape[0], dtype=x.dtype)  # (B, L, rows)
                x = x + ops.matmul(one_hot, ops.cast(table, x.dtype))
        if self.position_layer:
            x = self.position_layer(x, position_ids=position_ids)
        x = self.layer_norm(x) if self.layer_norm else x
        return self.drop(x, training=training)
