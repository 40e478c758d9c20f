"""Token embeddings, tied to the output projection, and the encoder's sum of embeddings."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.layers.norms import Dropout, normalization
from macaron_tf.layers.positions import SINUSOID_LAYOUTS, LearnedPositions, SinusoidalPositions
from macaron_tf.layers.recording import Recording


class TiedEmbedding(Recording, keras.layers.Layer):
    """One table for embedding tokens and for predicting them.

    Args:
        vocab_size: rows V of the table.
        hidden_dim: columns D.
        scale: multiply embeddings by sqrt(D), as the Transformer does.
        mask_zero: whether id 0 is padding, passed on to later layers as Keras's mask.
        initializer: of the table; None = N(0, D^-1/2), so that scaled vectors and logits both
            start at unit scale.

    Call arguments: `ids (B, L)` int; returns `(B, L, D)`. `logits(x)` gives `x E^T`, `(..., V)`.

    References: Press and Wolf 2017; Vaswani et al. 2017, section 3.4.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        scale: bool = True,
        mask_zero: bool = False,
        initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mask_zero = mask_zero
        self.vocab_size = vocab_size
        self.hidden_dim = hidden_dim
        self.scale = scale
        self.initializer = keras.initializers.get(
            initializer or keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)
        )

    def build(self, input_shape=None):
        self.table = self.add_weight(
            name="table",
            shape=(self.vocab_size, self.hidden_dim),
            initializer=self.initializer,
        )
        self.built = True

    def call(self, ids):
        vectors = ops.take(self.table, ids, axis=0)  # (B, L, D)
        vectors = ops.cast(vectors, self.compute_dtype)
        return vectors * self.hidden_dim**0.5 if self.scale else vectors

    def logits(self, x):
        """Scores of every token of the vocabulary: `(..., D) -> (..., V)`."""
        table = ops.cast(ops.convert_to_tensor(self.table), x.dtype)
        return ops.matmul(x, ops.transpose(table))

    def compute_mask(self, inputs, previous_mask=None):
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.hidden_dim)


POSITIONS = ("learned", "sinusoidal", "none")


class EncoderEmbeddings(Recording, keras.layers.Layer):
    """Token, position, segment and language vectors added up, normalized and dropped out.

    Args:
        vocab_size: V. embedding_dim: E, the encoder's D where it is not factorized.
        max_length: greatest L, of learned positions.
        num_segments, num_languages: 0 for none.
        epsilon, affine: of the LayerNorm.
        initializer_range: standard deviation of all tables, cut off at two of them.
        norm: whether there is a LayerNorm (GPT has none).
        position_layout: of the sinusoids.
        tokens: token embeddings shared with another layer; None = its own.

    Call arguments: `token_ids (B, L)` int; `segment_ids` and `language_ids (B, L)`, 0 everywhere
    by default; `position_ids (B, L)` int, for positions that do not simply count up; `vectors
    (B, L, E)`, instead of the tokens' embeddings. Returns `(B, L, E)`.

    References: Devlin et al. 2018 (BERT), figure 2; languages and positions that restart: Conneau
    and Lample 2019 (XLM), figure 1.
    """

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
        initializer_range: float = 0.02,
        norm: bool = True,
        position_layout: str = "interleaved",
        tokens: TiedEmbedding | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.positions = check_choice("positions", positions, POSITIONS)
        self.max_length = max_length
        self.num_segments = num_segments
        self.num_languages = num_languages
        self.dropout = dropout
        self.epsilon = epsilon
        self.affine = affine
        self.initializer_range = initializer_range
        self.norm = norm
        self.position_layout = check_choice("position_layout", position_layout, SINUSOID_LAYOUTS)
        self.tokens = tokens

    def build(self, input_shape=None, **shapes):
        policy, shape = self.dtype_policy, (None, None, self.embedding_dim)
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        if self.tokens is None:
            self.tokens = TiedEmbedding(
                self.vocab_size,
                self.embedding_dim,
                scale=False,
                initializer=initializer.clone(),
                dtype=policy,
                name="tokens",
            )
        self.position_layer = None
        if self.positions == "learned":
            self.position_layer = LearnedPositions(
                self.max_length, initializer=initializer.clone(), dtype=policy, name="positions"
            )
        elif self.positions == "sinusoidal":
            self.position_layer = SinusoidalPositions(
                layout=self.position_layout, dtype=policy, name="positions"
            )
        self.segments, self.languages = (
            self.add_weight(
                name=name, shape=(rows, self.embedding_dim), initializer=initializer.clone()
            )
            if rows
            else None
            for name, rows in (("segments", self.num_segments), ("languages", self.num_languages))
        )
        if not self.tokens.built:
            self.tokens.build()
        if self.position_layer:
            self.position_layer.build(shape)
        self.layer_norm = None
        if self.norm:
            self.layer_norm = normalization(
                epsilon=self.epsilon, affine=self.affine, dtype=policy, name="norm"
            )
            self.layer_norm.build(shape)
        self.drop = Dropout(self.dropout, dtype=policy, name="dropout")
        self.built = True

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
            if table is not None:
                ids = ops.zeros_like(token_ids) if ids is None else ids
                # A product with one-hot rows: a gather's gradient would add up B L rows singly.
                one_hot = ops.one_hot(ids, table.shape[0], dtype=x.dtype)  # (B, L, rows)
                x = ops.add(x, ops.matmul(one_hot, ops.cast(table, x.dtype)))
        if self.position_layer:
            x = self.position_layer(x, position_ids=position_ids)
        if self.layer_norm:
            x = self.layer_norm(x)
        return self.drop(x, training=training)

    def compute_output_shape(self, input_shape, **shapes):
        return (*input_shape, self.embedding_dim)

    def get_config(self):
        # A shared table is its owner's to save and to hand in again.
        return {**super().get_config(), "tokens": None}
