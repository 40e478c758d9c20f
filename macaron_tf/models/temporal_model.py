"""A network over plain sequences: vectors or ids in, scores out."""

import keras
from keras import ops

from macaron_tf.layers.dropout import Dropout
from macaron_tf.layers.embeddings import TiedEmbedding
from macaron_tf.models.configured import ConfiguredModel
from macaron_tf.models.tcn import TemporalConvolution
from macaron_tf.models.temporal_config import TemporalConfig

_RECURRENT = {
    "lstm": keras.layers.LSTM,
    "gru": keras.layers.GRU,
    "rnn": keras.layers.SimpleRNN,
}


@keras.saving.register_keras_serializable(package="macaron_tf")
class TemporalModel(ConfiguredModel):
    """A TCN, or Keras's LSTM, GRU or simple RNN, between an input and scores.

    Args:
        config: see `TemporalConfig`.

    Call arguments: `inputs`, vectors `(B, L, C)` or ids `(B, L)`, with padding at the end if any.
    Returns scores `(B, L, O)`, or `(B, O)` with `config.last_only`; none sees a later position.

    References: Bai et al. 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent
    Networks for Sequence Modeling", section 4.
    """

    config_class = TemporalConfig

    def __init__(self, config: TemporalConfig, name: str = "temporal_model", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = config
        policy = self.dtype_policy
        self.embedding = None
        if config.vocab_size:
            self.embedding = TiedEmbedding(
                config.vocab_size,
                config.embedding_dim,
                scale=False,
                # Small, as scores of the same table have to start small.
                initializer=keras.initializers.RandomNormal(stddev=0.1),
                dtype=policy,
                name="embedding",
            )
            self.embedding_drop = Dropout(config.embedding_dropout, dtype=policy)
        self.drops = []
        if config.mixer == "tcn":
            self.mixers = [
                TemporalConvolution(
                    config.widths,
                    config.kernel_size,
                    dropout=config.dropout,
                    spatial_dropout=config.spatial_dropout,
                    last_only=config.last_only,
                    dtype=policy,
                    name="tcn",
                )
            ]
        else:
            last = len(config.widths) - 1
            self.mixers = [
                _RECURRENT[config.mixer](
                    width,
                    return_sequences=number < last or not config.last_only,
                    dtype=policy,
                    name=f"{config.mixer}_{number}",
                )
                for number, width in enumerate(config.widths)
            ]
            self.drops = [Dropout(config.dropout, dtype=policy) for _ in config.widths]
        if config.tied:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(config.output_dim,), initializer="zeros"
            )
        else:
            self.output_layer = keras.layers.Dense(config.output_dim, dtype=policy, name="output")

    def build(self, input_shape=None):
        config = self.config
        if self.embedding:
            self.embedding.build()
        width = config.embedding_dim if self.embedding else config.input_dim
        for layer in self.mixers:
            layer.build((None, None, width))
            width = layer.units if self.drops else config.widths[-1]
        if not config.tied:
            self.output_layer.build((None, width))
        self.built = True

    def hidden_states(self, inputs, training=None):
        """What the scores are made of: `(B, L, D)`, or `(B, D)` with `last_only`."""
        x = inputs
        if self.embedding:
            x = self.embedding_drop(self.embedding(inputs), training=training)  # (B, L, E)
        for number, layer in enumerate(self.mixers):
            x = layer(x, training=training)
            if self.drops:
                x = self.drops[number](x, training=training)
        return x

    def scores(self, hidden):
        """`(..., D) -> (..., O)`."""
        if self.config.tied:
            return self.embedding.logits(hidden) + ops.cast(self.output_bias, hidden.dtype)
        return self.output_layer(hidden)

    def call(self, inputs, training=None):
        return self.scores(self.hidden_states(inputs, training=training))

    def compute_output_shape(self, input_shape):
        shape = input_shape[:1] if self.config.last_only else input_shape[:2]
        return (*shape, self.config.output_dim)
