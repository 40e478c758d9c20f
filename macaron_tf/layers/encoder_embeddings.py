"""What an encoder reads: tokens, their positions, segments and languages."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.layers.dropout import Dropout
from macaron_tf.layers.embeddings import TiedEmbedding
from macaron_tf.layers.layer_norm import normalization
from macaron_tf.layers.positions import (
    SINUSOID_LAYOUTS,
    LearnedPositions,
    SinusoidalPositions,
)

POSITIONS = ("learned", "sinusoidal", "none")


@keras.saving.register_keras_serializable(package="macaron_tf")
class EncoderEmbeddings(keras.layers.Layer):
    """Token, position, segment and language vectors added up, normalized and dropped out.

    Args:
        vocab_size: V. embedding_dim: E, the encoder's D where it is not factorized.
        positions: `"learned"`, `"sinusoidal"` or `"none"`.
        max_length: greatest L, of learned positions.
        num_segments, num_languages: 0 for none.
        dropout: 0 to 1.
        epsilon, affine: of the LayerNorm.
        initializer_range: standard deviation of all tables, cut off at two of them.
        norm: whether there is a LayerNorm; of a GPT there is none.
        position_layout: of the sinusoids.
        tokens: the table of another layer, read as that one does; made where there is none.

    Call arguments: `token_ids (B, L)` int; `segment_ids` and `language_ids (B, L)`, 0 everywhere
    by default; `position_ids (B, L)` int, where positions do not simply count up; `vectors
    (B, L, E)`, in place of those of the tokens. Returns `(B, L, E)`.

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
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "embedding_dim": self.embedding_dim,
            "positions": self.positions,
            "max_length": self.max_length,
            "num_segments": self.num_segments,
            "num_languages": self.num_languages,
            "dropout": self.dropout,
            "epsilon": self.epsilon,
            "affine": self.affine,
            "initializer_range": self.initializer_range,
            "norm": self.norm,
            "position_layout": self.position_layout,
            # A shared table is the owner's to save and to hand in again.
            "tokens": None,
        }
