"""A tagger of words, with or without a language model's vectors."""

import dataclasses

import keras
from keras import ops

from macaron_tf.checks import check_count, check_fraction
from macaron_tf.layers.character_cnn import CharacterCNN, check_filters
from macaron_tf.layers.dropout import Dropout
from macaron_tf.layers.layer_mixture import LayerMixture
from macaron_tf.models.configured import ConfiguredModel
from macaron_tf.models.elmo import CHARACTERS, Elmo
from macaron_tf.models.elmo_config import ElmoConfig
from macaron_tf.special_ids import PAD


@dataclasses.dataclass(frozen=True)
class WordTaggerConfig:
    """What a `WordTagger` is.

    Attributes:
        num_tags: T.
        elmo: of the language model; None = the tagger has none.
        lstm_dim: units of the tagger's LSTM in each direction.
        word_dim: width of a word's vector from the tagger's own character CNN.
        char_dim, filters: of that CNN, see `CharacterCNN`.
        max_characters: C, places of a word.
        dropout: on the LSTM's inputs and outputs.

    Raises:
        ValueError: a value is out of its range, or the language model has other places.
    """

    num_tags: int
    elmo: ElmoConfig | None = None
    lstm_dim: int = 100
    word_dim: int = 100
    char_dim: int = 16
    filters: tuple[tuple[int, int], ...] = ((2, 32), (3, 64), (4, 64))
    max_characters: int = 20
    dropout: float = 0.3

    def __post_init__(self):
        object.__setattr__(self, "filters", check_filters(self.filters))
        if isinstance(self.elmo, dict):  # as a saved model has it
            object.__setattr__(self, "elmo", ElmoConfig(**self.elmo))
        for name in ("num_tags", "lstm_dim", "word_dim", "char_dim", "max_characters"):
            check_count(name, getattr(self, name))
        check_fraction("dropout", self.dropout)
        if self.elmo and self.elmo.max_characters != self.max_characters:
            raise ValueError(
                f"max_characters={self.max_characters}, but the language model has "
                f"{self.elmo.max_characters}"
            )


@keras.saving.register_keras_serializable(package="macaron_tf")
class WordTagger(ConfiguredModel):
    """Vectors of words, `[x; ELMo]`, a bidirectional LSTM, and scores of each word's tags.

    x comes of the tagger's own character CNN. The language model is not trained: the tagger learns
    which of its layers to take, and how much of them.

    Args:
        config: see `WordTaggerConfig`.

    Call arguments: `characters (B, L, C)` int, see `macaron_tf.data.characters`; words of zeros are
    padding. Returns scores `(B, L, T)`.

    References: Peters et al. 2018 (ELMo), section 3.3.
    """

    config_class = WordTaggerConfig

    def __init__(self, config: WordTaggerConfig, name: str = "word_tagger", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = config
        policy = self.dtype_policy
        self.words = CharacterCNN(
            config.filters,
            config.word_dim,
            CHARACTERS,
            config.char_dim,
            num_highways=0,
            dtype=policy,
            name="words",
        )
        self.elmo = self.mixture = None
        if config.elmo:
            self.elmo = Elmo(config.elmo, dtype=policy)
            self.mixture = LayerMixture(dtype=policy, name="mixture")
        self.lstm = keras.layers.Bidirectional(
            keras.layers.LSTM(config.lstm_dim, return_sequences=True, dtype=policy),
            dtype=policy,
            name="lstm",
        )
        self.drops = [Dropout(config.dropout, dtype=policy) for _ in range(2)]
        self.output_layer = keras.layers.Dense(config.num_tags, dtype=policy, name="output")

    def build(self, input_shape=None):
        config = self.config
        self.words.build((None, None, config.max_characters))
        width = config.word_dim
        if self.elmo:
            self.elmo.build()
            self.elmo.trainable = False  # of the weights that there are now
            layers = self.elmo.compute_output_shape((None, None, config.max_characters))
            self.mixture.build(layers)
            width += layers[-1]
        self.lstm.build((None, None, width))
        self.output_layer.build((None, None, 2 * config.lstm_dim))
        self.built = True

    def hidden_states(self, characters, training=None):
        """What the tags are scored by: `(B, L, 2 lstm_dim)`."""
        mask = ops.any(ops.not_equal(characters, PAD), axis=-1)  # (B, L, C) -> (B, L)
        x = self.words(characters)  # (B, L, D)
        if self.elmo:
            # Without its dropout: it is not trained, and its vectors are the same each time.
            layers = ops.stop_gradient(self.elmo(characters, training=False))  # (B, L, J, 2 P)
            x = ops.concatenate([x, self.mixture(layers)], axis=-1)
        h = self.lstm(self.drops[0](x, training=training), mask=mask)
        return self.drops[1](h, training=training)

    def scores(self, hidden):
        """`(..., 2 lstm_dim) -> (..., T)`."""
        return self.output_layer(hidden)

    def call(self, characters, training=None):
        return self.scores(self.hidden_states(characters, training=training))

    def compute_output_shape(self, characters_shape):
        return (*characters_shape[:2], self.config.num_tags)
