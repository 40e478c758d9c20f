"""ELMo: a language model in each direction, whose layers are vectors of words in context."""

import dataclasses

import keras
from keras import ops

from macaron_tf.checks import check_count, check_fraction
from macaron_tf.layers.character_cnn import ELMO_FILTERS, CharacterCNN, check_filters
from macaron_tf.layers.heads import LayerMixture
from macaron_tf.layers.lstm import ProjectedLSTMStack
from macaron_tf.layers.norms import Dropout
from macaron_tf.models.config import ConfiguredModel
from macaron_tf.special_ids import PAD


@dataclasses.dataclass(frozen=True)
class ElmoConfig:
    """A character CNN and a stack of LSTMs in each direction; the original's by default.

    Attributes:
        vocab_size: V, words that are predicted.
        lstm_dim: cells of an LSTM.
        projection_dim: P, width of a word's vector and of an LSTM's output.
        num_layers: LSTMs of each direction.
        clip: greatest absolute value of a cell and of an output.
        dropout: on what goes into each LSTM, and on what the scores are made of.
        max_characters: places for a word's bytes and the marks of its beginning and end.
        char_dim: width of a byte's embedding.
        filters: (width, number) of the CNN's filters.
        num_highways: highway layers after them.

    Raises:
        ValueError: a value is out of its range.
    """

    vocab_size: int
    lstm_dim: int = 4096
    projection_dim: int = 512
    num_layers: int = 2
    clip: float | None = 3.0
    dropout: float = 0.1
    max_characters: int = 50
    char_dim: int = 16
    filters: tuple[tuple[int, int], ...] = ELMO_FILTERS
    num_highways: int = 2

    def __post_init__(self):
        object.__setattr__(self, "filters", check_filters(self.filters))
        for name in ("vocab_size", "lstm_dim", "projection_dim", "num_layers", "char_dim"):
            check_count(name, getattr(self, name))
        widest = max((width for width, _ in self.filters), default=0)
        check_count("max_characters", self.max_characters, least=max(widest, 3))
        check_fraction("dropout", self.dropout)


CHARACTERS = 261  # 0 behind a word's end, the 256 bytes from 1 on, and four marks


@keras.saving.register_keras_serializable(package="macaron_tf")
class Elmo(ConfiguredModel):
    """A bidirectional language model: words are read by their characters, and predicted whole.

    Both directions share the character CNN and the table that scores the words.

    Args:
        config: see `ElmoConfig`.

    Call arguments: `characters (B, L, C)` int, see `macaron_tf.text.words`; words of zeros
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

    Call arguments: `characters (B, L, C)` int, see `macaron_tf.text.words`; words of zeros are
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
