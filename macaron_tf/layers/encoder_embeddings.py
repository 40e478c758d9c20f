"""What an encoder reads: tokens, their positions and their segments."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.layers.dropout import Dropout
from macaron_tf.layers.embeddings import TiedEmbedding
from macaron_tf.layers.layer_norm import LayerNormalization
from macaron_tf.layers.positions import LearnedPositions, SinusoidalPositions

POSITIONS = ("learned", "sinusoidal", "none")


@keras.saving.register_keras_serializable(package="macaron_tf")
class EncoderEmbeddings(keras.layers.Layer):
    """Token, position and segment vectors added up, normalized and dropped out, as BERT does.

    Args:
        vocab_size: V. hidden_dim: D.
        positions: `"learned"`, `"sinusoidal"` or `"none"`.
        max_length: greatest L, of learned positions.
        num_segments: 0 for none.
        dropout: 0 to 1.
        epsilon, affine: of the LayerNorm.
        initializer_range: standard deviation of all tables, cut off at two of them.

    Call arguments: `token_ids (B, L)` int and `segment_ids (B, L)` int, 0 everywhere by default.
    Returns `(B, L, D)`.

    References: Devlin et al. 2018 (BERT), figure 2.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        positions: str = "learned",
        max_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        epsilon: float = 1e-12,
        affine: bool = True,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_dim = hidden_dim
        self.positions = check_choice("positions", positions, POSITIONS)
        self.max_length = max_length
        self.num_segments = num_segments
        self.dropout = dropout
        self.epsilon = epsilon
        self.affine = affine
        self.initializer_range = initializer_range

    def build(self, input_shape=None, segment_shape=None):
        policy, shape = self.dtype_policy, (None, None, self.hidden_dim)
        initializer = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        self.tokens = TiedEmbedding(
            self.vocab_size,
            self.hidden_dim,
            scale=False,
            initializer=initializer.clone(),
            dtype=policy,
            name="tokens",
        )
        self.position_layer = self.segments = None
        if self.positions == "learned":
            self.position_layer = LearnedPositions(
                self.max_length, initializer=initializer.clone(), dtype=policy, name="positions"
            )
        elif self.positions == "sinusoidal":
            self.position_layer = SinusoidalPositions(dtype=policy, name="positions")
        if self.num_segments:
            self.segments = self.add_weight(
                name="segments",
                shape=(self.num_segments, self.hidden_dim),
                initializer=initializer.clone(),
            )
        self.tokens.build()
        if self.position_layer:
            self.position_layer.build(shape)
        self.norm = LayerNormalization(
            epsilon=self.epsilon,
            center=self.affine,
            scale=self.affine,
            dtype=policy,
            name="norm",
        )
        self.norm.build(shape)
        self.drop = Dropout(self.dropout, dtype=policy, name="dropout")
        self.built = True

    def call(self, token_ids, segment_ids=None, training=None):
        x = self.tokens(token_ids)  # (B, L, D)
        if self.num_segments:
            segment_ids = ops.zeros_like(token_ids) if segment_ids is None else segment_ids
            # A product with one-hot rows: the gradient of a gather would add up B L rows singly.
            one_hot = ops.one_hot(segment_ids, self.num_segments, dtype=x.dtype)  # (B, L, 2)
            x = ops.add(x, ops.matmul(one_hot, ops.cast(self.segments, x.dtype)))
        if self.position_layer:
            x = self.position_layer(x)
        return self.drop(self.norm(x), training=training)

    def compute_output_shape(self, input_shape, segment_shape=None):
        return (*input_shape, self.hidden_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "hidden_dim": self.hidden_dim,
            "positions": self.positions,
            "max_length": self.max_length,
            "num_segments": self.num_segments,
            "dropout": self.dropout,
            "epsilon": self.epsilon,
            "affine": self.affine,
            "initializer_range": self.initializer_range,
        }
