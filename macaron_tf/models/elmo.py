"""ELMo: a bidirectional LSTM language model, and models that use its layers as word vectors."""

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
    """Configuration of ELMo, a character CNN and LSTMs in both directions; defaults as published.

    Attributes:
        vocab_size: V, the number of words that the model predicts.
        lstm_dim: number of cells of an LSTM.
        projection_dim: P, the width of a word's vector and of an LSTM's output.
        num_layers: number of LSTMs in each direction.
        clip: greatest absolute value of cells and outputs; None: no limit.
        dropout: dropout rate of each LSTM's input, and of the vectors that are scored.
        max_characters: C, the bytes of a word together with the marks of its beginning and end.
        char_dim: width of a byte's embedding.
        filters: (width, number) of the CNN's filters.
        num_highways: number of highway layers after the filters.
    """

    causal: ClassVar[bool] = False
    longest: ClassVar[None] = None  # rows may have any length
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
            raise self.error("filters=() is empty: give one (width, number) or more")
        widest = max(width for width, _ in self.filters)
        if self.max_characters < widest:
            raise self.error(
                f"max_characters={self.max_characters} must be at least {widest}, the width of the "
                "widest filter"
            )


CHARACTERS = 261  # 0 pads words, then come the 256 bytes and four marks


class Elmo(Model):
    """ELMo, a bidirectional language model that reads words by characters and predicts words.

    Both directions share the character CNN and the matrix that scores words.

    Call arguments: `characters (B, L, C)` int, see `macaron_tf.text.words`; words of zeros are
    padding. Returns the layers `(B, L, 1 + num_layers, 2 P)`: the CNN's word vectors twice, then
    each layer's forward and backward output, concatenated.

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
        """The CNN's word vectors, and a list of the layers' outputs for each direction.

        All of them are `(B, L, P)`.
        """
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
        """The vectors that predict the next and the previous word, a pair of `(B, L, P)`."""
        _, forward, backward = self.both_ways(characters, training=training)
        return tuple(self.drop(h, training=training) for h in (forward[-1], backward[-1]))

    def logits(self, hidden):
        """Scores of all words of the vocabulary: `(..., P) -> (..., V)`."""
        return self.output_layer(hidden)


@dataclasses.dataclass(frozen=True)
class WordEncoderConfig(Settings):
    """Configuration of a `WordEncoder`.

    Attributes:
        elmo: configuration of the ELMo language model; None: there is none.
        lstm_dim: units of the LSTM in each direction.
        word_dim, char_dim, filters: sizes of the encoder's own `CharacterCNN`.
        max_characters: C, the characters per word.
        dropout: dropout rate of the LSTM's inputs and outputs.
        elmo_place: where ELMo's vectors are concatenated: to the LSTM's `"input"`, to its
            `"output"`, to `"both"`, with separate weights of the layers, or `"none"`.
        elmo_frozen: whether ELMo's weights are frozen, or trained with the rest.
        elmo_norm: whether ELMo's layers are layer-normalized before they are weighted (section 3.2
            of the paper). Without it they may saturate the LSTM: those of `elmo_tiny` have a
            standard deviation of 7.7 after 1,500 updates.
    """

    section: ClassVar[str] = "words"
    causal: ClassVar[bool] = False
    initializer_range: ClassVar[float] = 0.1  # for heads, whose input is narrower than BERT's
    summary: ClassVar[str] = "max"  # a text is summarized by maxima, see `Pooling`

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
        """Where ELMo's vectors are concatenated: `"input"`, `"output"`, both or neither."""
        places = {"both": ("input", "output"), "none": ()}
        return places.get(self.elmo_place, (self.elmo_place,)) if self.elmo else ()

    @property
    def hidden_dim(self) -> int:
        """D, the width of the output."""
        beside = 2 * self.elmo.projection_dim if "output" in self.elmo_places else 0
        return 2 * self.lstm_dim + beside

    def check(self):
        if self.elmo and self.elmo.max_characters != self.max_characters:
            raise self.error(
                f"max_characters={self.max_characters} differs from the language model's: set it "
                f"to {self.elmo.max_characters}"
            )


class WordEncoder(Model):
    """A bidirectional LSTM over word vectors `[x; ELMo]`.

    x is the output of the encoder's own character CNN. ELMo's vectors may also be concatenated to
    the LSTM's output, `[h; ELMo]`, see `WordEncoderConfig`. For each of the two places, the encoder
    learns its own weights of ELMo's layers.

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
        # A vocabulary of one word, because the encoder does not need ELMo's scores.
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
        """Copies the weights of another ELMo of the same configuration, if this encoder has one."""
        if self.elmo:
            for name in ("words", "forwards", "backwards"):
                getattr(self.elmo, name).set_weights(getattr(elmo, name).get_weights())

    compute_mask = Elmo.compute_mask

    def call(self, characters, training=None):
        return self.hidden_states(characters, training=training)

    def hidden_states(self, characters, training=None):
        mask = padding_mask({"token_ids": characters})  # (B, L)
        layers = None
        if self.elmo and self.config.elmo_frozen:
            # Frozen, so without dropout: it returns the same vectors each time.
            layers = ops.stop_gradient(self.elmo(characters, training=False))  # (B, L, J, 2 P)
        elif self.elmo:
            layers = self.elmo(characters, training=training)

        def beside(vectors, place):
            """Appends ELMo's vectors, if they are used here: `(B, L, D)` to `(B, L, D + 2 P)`."""
            if place not in self.mixtures:
                return vectors
            return ops.concatenate([vectors, self.mixtures[place](layers)], axis=-1)

        x = beside(self.words(characters), "input")
        # cuDNN rejects rows without any word, so rows of padding get one.
        mask = ops.logical_or(mask, ops.equal(ops.arange(ops.shape(mask)[1]), 0))
        h = self.lstm(self.drops[0](x, training=training), mask=mask)
        return self.drops[1](beside(h, "output"), training=training)


@dataclasses.dataclass(frozen=True)
class WordTaggerConfig(WordEncoderConfig):
    """Configuration of a `WordTagger`.

    Attributes:
        num_tags: T, the number of tags.
    """

    num_tags: Count = dataclasses.field(kw_only=True)


class WordTagger(WordEncoder):
    """A `WordEncoder` with a linear layer that scores each word's tags.

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
        """Scores of the tags: `(..., D) -> (..., T)`."""
        return self.output_layer(hidden)
