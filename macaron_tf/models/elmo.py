"""ELMo: a language model in each direction, whose layers are vectors of words in context."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import keras
from annotated_types import Ge
from keras import ops

from macaron_tf.layers.character_cnn import ELMO_FILTERS, CharacterCNN
from macaron_tf.layers.heads import LayerMixture
from macaron_tf.layers.lstm import ProjectedLSTMStack
from macaron_tf.layers.norms import Dropout
from macaron_tf.models.base import Model, padding_mask
from macaron_tf.settings import INT32, Count, Depth, Positive, Settings
from macaron_tf.settings import Dropout as DropoutRate

Filters = tuple[tuple[Count, Count], ...]


@dataclasses.dataclass(frozen=True)
class ElmoConfig(Settings):
    """A character CNN and a stack of LSTMs in each direction; the original's by default.

    Attributes:
        vocab_size: V, words that are predicted.
        lstm_dim: cells of an LSTM.
        projection_dim: P, width of a word's vector and of an LSTM's output.
        num_layers: LSTMs of each direction.
        clip: greatest absolute value of a cell and of an output; None = no limit.
        dropout: on the input of each LSTM, and on the vectors that are scored.
        max_characters: C, a word's bytes and the marks of its beginning and end.
        char_dim: width of a byte's embedding.
        filters: (width, number) of the CNN's filters.
        num_highways: highway layers after them.
    """

    causal: ClassVar[bool] = False
    longest: ClassVar[None] = None  # rows may be of any length
    summary: ClassVar[str] = "max"

    vocab_size: Count
    lstm_dim: Count = 4096
    projection_dim: Count = 512
    num_layers: Depth = 2
    clip: Positive | None = 3.0
    dropout: DropoutRate = 0.1
    max_characters: Annotated[int, Ge(3), INT32] = 50
    char_dim: Count = 16
    filters: Filters = ELMO_FILTERS
    num_highways: Depth | Literal[0] = 2

    def check(self):
        if not self.filters:
            raise self.error("filters=() must be one (width, number) or more")
        widest = max(width for width, _ in self.filters)
        if self.max_characters < widest:
            raise self.error(
                f"max_characters={self.max_characters} must be at least {widest}, the widest filter"
            )


CHARACTERS = 261  # 0 behind a word's end, the 256 bytes from 1 on, and four marks


class Elmo(Model):
    """A bidirectional language model: words are read by their characters, and predicted whole.

    Both directions share the character CNN and the table that scores the words.

    Call arguments: `characters (B, L, C)` int, see `macaron_tf.text.words`; words of zeros
    are padding. Returns the layers `(B, L, 1 + num_layers, 2 P)`: each word's own vector, twice,
    then each layer's forward and backward output side by side.

    References: Peters et al. 2018, "Deep contextualized word representations", section 3.
    """

    input_names = None

    def __init__(self, config: ElmoConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.words = CharacterCNN(
            output_dim=config.projection_dim,
            vocab_size=CHARACTERS,
            **config.options("filters", "char_dim", "num_highways"),
            name="words",
        )
        self.forwards, self.backwards = (
            ProjectedLSTMStack(
                units=config.lstm_dim,
                backwards=name == "backwards",
                **config.options("num_layers", "projection_dim", "clip", "dropout"),
                name=name,
            )
            for name in ("forwards", "backwards")
        )
        self.drop = Dropout(config.dropout)
        self.output_layer = keras.layers.Dense(config.vocab_size, name="output")

    def build(self, input_shape=None):
        config = self.config
        self.words.build((None, None, config.max_characters))
        for stack in (self.forwards, self.backwards):
            stack.build((None, None, config.projection_dim))
        self.output_layer.build((None, config.projection_dim))

    def both_ways(self, characters, training=None):
        """The words' own vectors `(B, L, P)`, and each direction's list of layers, alike."""
        mask = padding_mask({"token_ids": characters})  # (B, L)
        x = self.words(characters)
        forward = self.forwards(x, mask=mask, training=training)
        backward = self.backwards(x, mask=mask, training=training)
        return x, forward, backward

    def compute_mask(self, characters, previous_mask=None):
        return padding_mask({"token_ids": characters})

    def call(self, characters, training=None):
        x, forward, backward = self.both_ways(characters, training=training)
        pairs = zip([x, *forward], [x, *backward], strict=True)
        layers = [ops.concatenate(pair, axis=-1) for pair in pairs]  # (B, L, 2 P) each
        return ops.stack(layers, axis=2)

    def hidden_states(self, characters, training=None):
        """The vectors that predict the next and the previous word: two of `(B, L, P)`."""
        _, forward, backward = self.both_ways(characters, training=training)
        return tuple(self.drop(h, training=training) for h in (forward[-1], backward[-1]))

    def logits(self, hidden):
        """Scores of every word of the vocabulary: `(..., P) -> (..., V)`."""
        return self.output_layer(hidden)


@dataclasses.dataclass(frozen=True)
class WordEncoderConfig(Settings):
    """Settings of a `WordEncoder`.

    Attributes:
        elmo: of the language model; None = there is none.
        lstm_dim: units of the LSTM in each direction.
        word_dim, char_dim, filters: of the encoder's own `CharacterCNN`.
        max_characters: C, positions of a word.
        dropout: on the LSTM's inputs and outputs.
        elmo_place: where the language model's vectors stand: beside the LSTM's `"input"`, beside
            its `"output"`, or `"both"`, with weights of the layers of their own; or `"none"`.
        elmo_frozen: whether the language model is left as it is, or trained with the rest.
        elmo_norm: layer normalization of the language model's layers before they are weighted
            (section 3.2 of the paper). The first ones are of any scale, and saturate the LSTM:
            those of `elmo_tiny` after 1,500 updates have a standard deviation of 7.7.
    """

    section: ClassVar[str] = "words"
    causal: ClassVar[bool] = False
    initializer_range: ClassVar[float] = 0.1  # of a head's matrices, narrower than BERT's
    summary: ClassVar[str] = "max"  # of a text's vectors, see `Pooling`

    elmo: ElmoConfig | None = None
    lstm_dim: Count = 100
    word_dim: Count = 100
    char_dim: Count = 16
    filters: Filters = ((2, 32), (3, 64), (4, 64))
    max_characters: Count = 20
    dropout: DropoutRate = 0.3
    elmo_place: Literal["input", "output", "both", "none"] = "input"
    elmo_frozen: bool = True
    elmo_norm: bool = False

    @property
    def elmo_places(self) -> tuple[str, ...]:
        """`"input"`, `"output"` or both, where the language model's vectors stand."""
        places = {"both": ("input", "output"), "none": ()}
        return places.get(self.elmo_place, (self.elmo_place,)) if self.elmo else ()

    @property
    def hidden_dim(self) -> int:
        """D, width of the vectors."""
        beside = 2 * self.elmo.projection_dim if "output" in self.elmo_places else 0
        return 2 * self.lstm_dim + beside

    def check(self):
        if self.elmo and self.elmo.max_characters != self.max_characters:
            raise self.error(
                f"max_characters={self.max_characters}, but the language model has "
                f"{self.elmo.max_characters}"
            )


class WordEncoder(Model):
    """A bidirectional LSTM over words' vectors `[x; ELMo]`.

    x is the output of the encoder's own character CNN. The language model's vectors may also stand
    beside the LSTM's output, `[h; ELMo]`, see `WordEncoderConfig`. For each place the encoder
    learns anew how to weight the language model's layers.

    Call arguments: `characters (B, L, C)` int, see `macaron_tf.text.words`; words of zeros are
    padding. Returns `(B, L, D)`.

    References: Peters et al. 2018 (ELMo), section 3.3.
    """

    input_names = None

    def __init__(self, config: WordEncoderConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.words = CharacterCNN(
            config.filters,
            config.word_dim,
            CHARACTERS,
            config.char_dim,
            num_highways=0,
            name="words",
        )
        # Its table of scores, of a word each, is not needed here.
        self.elmo = None
        if config.elmo_places:
            self.elmo = Elmo(dataclasses.replace(config.elmo, vocab_size=1), name="elmo")
            self.elmo.trainable = not config.elmo_frozen
            self.elmo.output_layer.trainable = False
        self.mixtures = {
            place: LayerMixture(config.elmo_norm, name=name)
            for place, name in (("input", "mixture"), ("output", "output_mixture"))
            if place in config.elmo_places
        }
        self.lstm = keras.layers.Bidirectional(
            keras.layers.LSTM(config.lstm_dim, return_sequences=True), name="lstm"
        )
        self.drops = [Dropout(config.dropout) for _ in range(2)]

    def build(self, input_shape=None):
        config = self.config
        self.words.build((None, None, config.max_characters))
        width = config.word_dim
        if self.elmo:
            self.elmo.build()
            layers, vector = 1 + config.elmo.num_layers, 2 * config.elmo.projection_dim
            for place, mixture in self.mixtures.items():
                mixture.build((None, None, layers, vector))
                width += vector if place == "input" else 0
        self.lstm.build((None, None, width))

    def take_over(self, elmo: Elmo) -> None:
        """Gives the encoder's language model the weights of another of its configuration."""
        if self.elmo:
            for name in ("words", "forwards", "backwards"):
                getattr(self.elmo, name).set_weights(getattr(elmo, name).get_weights())

    compute_mask = Elmo.compute_mask

    def call(self, characters, training=None):
        return self.hidden_states(characters, training=training)

    def hidden_states(self, characters, training=None):
        """`call`'s vectors."""
        mask = padding_mask({"token_ids": characters})  # (B, L)
        layers = None
        if self.elmo and self.config.elmo_frozen:
            # Without dropout: it is not trained, and its vectors are the same each time.
            layers = ops.stop_gradient(self.elmo(characters, training=False))  # (B, L, J, 2 P)
        elif self.elmo:
            layers = self.elmo(characters, training=training)

        def beside(vectors, place):
            """`(B, L, D) -> (B, L, D + 2 P)`, or as they are."""
            if place not in self.mixtures:
                return vectors
            return ops.concatenate([vectors, self.mixtures[place](layers)], axis=-1)

        x = beside(self.words(characters), "input")
        # cuDNN refuses rows without a word, as rows of padding are: they get one.
        mask = ops.logical_or(mask, ops.equal(ops.arange(ops.shape(mask)[1]), 0))
        h = self.lstm(self.drops[0](x, training=training), mask=mask)
        return self.drops[1](beside(h, "output"), training=training)


@dataclasses.dataclass(frozen=True)
class WordTaggerConfig(WordEncoderConfig):
    """Settings of a `WordTagger`.

    Attributes:
        num_tags: T.
    """

    num_tags: Count = dataclasses.field(kw_only=True)


class WordTagger(WordEncoder):
    """A `WordEncoder`, and a linear layer: scores of each word's tags.

    Call arguments: `characters (B, L, C)`, see `WordEncoder`. Returns scores `(B, L, T)`.
    """

    def __init__(self, config: WordTaggerConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.output_layer = keras.layers.Dense(config.num_tags, name="output")

    def build(self, input_shape=None):
        super().build()
        self.output_layer.build((None, self.config.hidden_dim))

    def call(self, characters, training=None):
        return self.logits(self.hidden_states(characters, training=training))

    def logits(self, hidden):
        """Scores `(..., T)` of `hidden_states`."""
        return self.output_layer(hidden)
