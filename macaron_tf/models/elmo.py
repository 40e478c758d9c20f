"""ELMo: a language model in each direction, whose layers are vectors of words in context."""

import keras
from keras import ops

from macaron_tf.layers.character_cnn import CharacterCNN
from macaron_tf.layers.dropout import Dropout
from macaron_tf.layers.recurrence import ProjectedLSTMStack
from macaron_tf.models.configured import ConfiguredModel
from macaron_tf.models.elmo_config import ElmoConfig
from macaron_tf.special_ids import PAD

CHARACTERS = 261  # 0 behind a word's end, the 256 bytes from 1 on, and four marks


@keras.saving.register_keras_serializable(package="macaron_tf")
class Elmo(ConfiguredModel):
    """A bidirectional language model: words are read by their characters, and predicted whole.

    Both directions share the character CNN and the table that scores the words.

    Args:
        config: see `ElmoConfig`.

    Call arguments: `characters (B, L, C)` int, see `macaron_tf.data.characters`; words of zeros
    are padding. Returns the layers `(B, L, 1 + num_layers, 2 P)`: of each word its own vector,
    twice, then each layer's forward and backward output beside each other.

    References: Peters et al. 2018, "Deep contextualized word representations", section 3.
    """

    config_class = ElmoConfig

    def __init__(self, config: ElmoConfig, name: str = "elmo", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = config
        policy = self.dtype_policy
        self.words = CharacterCNN(
            config.filters,
            config.projection_dim,
            CHARACTERS,
            config.char_dim,
            config.num_highways,
            dtype=policy,
            name="words",
        )
        self.forwards, self.backwards = (
            ProjectedLSTMStack(
                config.num_layers,
                config.lstm_dim,
                config.projection_dim,
                config.clip,
                backwards=name == "backwards",
                dropout=config.dropout,
                dtype=policy,
                name=name,
            )
            for name in ("forwards", "backwards")
        )
        self.drop = Dropout(config.dropout, dtype=policy)
        self.output_layer = keras.layers.Dense(config.vocab_size, dtype=policy, name="output")

    def build(self, input_shape=None):
        config = self.config
        self.words.build((None, None, config.max_characters))
        for stack in (self.forwards, self.backwards):
            stack.build((None, None, config.projection_dim))
        self.output_layer.build((None, config.projection_dim))
        self.built = True

    def both_ways(self, characters, training=None):
        """The words' own vectors `(B, L, P)`, and of each direction the list of its layers'."""
        mask = ops.any(ops.not_equal(characters, PAD), axis=-1)  # (B, L, C) -> (B, L)
        x = self.words(characters)
        forward = self.forwards(x, mask=mask, training=training)
        backward = self.backwards(x, mask=mask, training=training)
        return x, forward, backward

    def call(self, characters, training=None):
        x, forward, backward = self.both_ways(characters, training=training)
        pairs = zip([x, *forward], [x, *backward], strict=True)
        layers = [ops.concatenate(pair, axis=-1) for pair in pairs]  # (B, L, 2 P) each
        return ops.stack(layers, axis=2)

    def hidden_states(self, characters, training=None):
        """What the next and the previous word are predicted from: two of `(B, L, P)`."""
        _, forward, backward = self.both_ways(characters, training=training)
        return tuple(self.drop(h, training=training) for h in (forward[-1], backward[-1]))

    def scores(self, hidden):
        """Scores of every word of the vocabulary: `(..., P) -> (..., V)`."""
        return self.output_layer(hidden)

    def compute_output_shape(self, characters_shape):
        config = self.config
        return (*characters_shape[:2], 1 + config.num_layers, 2 * config.projection_dim)
