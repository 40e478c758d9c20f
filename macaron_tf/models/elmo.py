"""ELMo, a bidirectional LSTM language model, and models with ELMo's word vectors."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import keras
from annotated_types import Ge
from keras import ops

from macaron_tf.layers.character_cnn import ELMO_FILTERS, CharacterCNN
from macaron_tf.layers.heads import LayerMixture
from macaron_tf.layers.lstm import ProjectedLSTMStack
from macaron_tf.layers.norms import Dropout
from macaron_tf.models.base import Network, padding_mask
from macaron_tf.settings import INT32, Count, Depth, Positive, Settings
from macaron_tf.settings import Dropout as DropoutRate

Filters = tuple[tuple[Count, Count], ...]


@dataclasses.dataclass(frozen=True)
class ElmoConfig(Settings):
    """Configuration of ELMo. The defaults are the published sizes.

    Attributes:
        vocab_size: number of words V that the model predicts.
        lstm_dim: number of LSTM cells in each layer and direction.
        projection_dim: width P of a word vector and of an LSTM's output.
        num_layers: number of LSTM layers in each direction.
        clip: maximum absolute value in LSTM cells and outputs. `None` means no limit.
        dropout: dropout rate applied to LSTM inputs and to the vectors before the softmax.
        max_characters: maximum number of bytes C in a word, including the start and end marks.
        char_dim: width of a byte embedding.
        filters: pairs of filter width and number of filters in the character CNN.
        num_highways: number of highway layers after the filters.
    """

    pad_id: ClassVar[int] = 0  # words of zeros are padding

    causal: ClassVar[bool] = False
    longest: ClassVar[None] = None  # sequences may have any length
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
            raise self.error("filters=() is empty: give at least one (width, number) pair")


CHARACTERS = 261  # padding (0), the 256 bytes, and four marks


class Elmo(Network):
    """ELMo, a bidirectional language model that reads characters and predicts words.

    Both directions share the character CNN and the output matrix.

    Call arguments:
        characters: int `(B, L, C)` (see `macaron_tf.text.words`). Words of zeros are padding.

    The output `(B, L, 1 + num_layers, 2 P)` contains all layers. The first layer is the word vector
    from the CNN, repeated for both directions. Each other layer is the concatenation of the forward
    and the backward output.

    References: Peters et al. 2018, "Deep contextualized word representations", section 3.
    """

    input_names = None
    input_rank = 3

    def __init__(self, config: ElmoConfig, **kwargs):
        super().__init__(config, **kwargs)
        options = config.options("filters", "char_dim", "num_highways")
        options |= {"output_dim": config.projection_dim, "vocab_size": CHARACTERS}
        self.words = CharacterCNN(**options, name="words")
        options = config.options("num_layers", "projection_dim", "clip", "dropout")
        options |= {"units": config.lstm_dim}
        self.forwards = ProjectedLSTMStack(**options, name="forwards")
        self.backwards = ProjectedLSTMStack(**options, backwards=True, name="backwards")
        self.drop = Dropout(config.dropout)
        self.output_layer = keras.layers.Dense(config.vocab_size, name="output")

    def build(self, input_shape=None):
        config = self.config
        self.words.build((None, None, config.max_characters))
        for stack in (self.forwards, self.backwards):
            stack.build((None, None, config.projection_dim))
        self.output_layer.build((None, config.projection_dim))

    def run_both_directions(self, characters, training=None):
        """Computes the CNN's word vectors and each direction's LSTM outputs, all `(B, L, P)`."""
        x, options = self.words(characters), {"mask": self.compute_mask(characters)}
        options["training"] = training
        return x, self.forwards(x, **options), self.backwards(x, **options)

    def compute_mask(self, characters, previous_mask=None):
        return padding_mask({"token_ids": characters})

    def call(self, characters, training=None):
        x, forward, backward = self.run_both_directions(characters, training=training)
        pairs = zip([x, *forward], [x, *backward], strict=True)
        layers = [ops.concatenate(pair, axis=-1) for pair in pairs]  # (B, L, 2 P) each
        return ops.stack(layers, axis=2)

    def hidden_states(self, characters, training=None):
        """Computes the vectors that predict the next and the previous word, `(B, L, P)` each."""
        _, forward, backward = self.run_both_directions(characters, training=training)
        return tuple(self.drop(h, training=training) for h in (forward[-1], backward[-1]))

    def logits(self, hidden):
        """Computes the logits of all words: `(..., P) -> (..., V)`."""
        return self.output_layer(hidden)


@dataclasses.dataclass(frozen=True)
class WordEncoderConfig(Settings):
    """Configuration of a `WordEncoder`.

    Attributes:
        elmo: configuration of the ELMo language model. `None` means no ELMo.
        lstm_dim: number of LSTM units in each direction.
        word_dim: width of the word vectors from the encoder's own character CNN.
        char_dim: width of the character embeddings in this CNN.
        filters: pairs of filter width and number of filters in this CNN.
        max_characters: maximum number of bytes C in a word, including the start and end marks.
        dropout: dropout rate of the LSTM's inputs and outputs.
        elmo_place: where ELMo's vectors are concatenated. `"input"` means the LSTM's input,
            `"output"` means the LSTM's output, `"both"` means the input and the output, with
            separate layer weights, and `"none"` means nowhere.
        elmo_frozen: whether ELMo's weights are frozen. Otherwise, training also updates ELMo's
            weights.
        elmo_norm: whether ELMo's layers are layer-normalized before the weighted sum (section 3.2
            of the paper). Without normalization, ELMo's vectors may saturate the LSTM: in
            `elmo_tiny`, the vectors have a standard deviation of 7.7 after 1,500 updates.
    """

    pad_id: ClassVar[int] = 0  # words of zeros are padding

    section: ClassVar[str] = "task.words"
    causal: ClassVar[bool] = False
    initializer_range: ClassVar[float] = 0.1  # for heads, because D is smaller than in BERT
    summary: ClassVar[str] = "max"  # classifiers read the maximum over all words

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
        """Places of ELMo's vectors: a selection of `"input"` and `"output"`, empty without ELMo."""
        selections = {"both": ("input", "output"), "none": ()}
        return selections.get(self.elmo_place, (self.elmo_place,)) if self.elmo else ()

    @property
    def hidden_dim(self) -> int:
        """Output width D."""
        elmo_width = 2 * self.elmo.projection_dim if "output" in self.elmo_places else 0
        return 2 * self.lstm_dim + elmo_width

    def check(self):
        if self.elmo and self.elmo.max_characters != self.max_characters:
            raise self.error(f"max_characters must be ELMo's, {self.elmo.max_characters}")


class WordEncoder(Network):
    """Bidirectional LSTM over word vectors x or, with ELMo at the input, `[x; ELMo]`.

    x is the output of the encoder's own character CNN. ELMo's vectors can also be concatenated to
    the LSTM's output, `[h; ELMo]` (see `WordEncoderConfig`). The encoder learns separate layer
    weights for ELMo at the input and at the output.

    Call arguments:
        characters: int `(B, L, C)` (see `macaron_tf.text.words`). Words of zeros are padding.

    The output has shape `(B, L, D)`.

    References: Peters et al. 2018 (ELMo), section 3.3.
    """

    input_names = None
    input_rank = 3

    def __init__(self, config: WordEncoderConfig, **kwargs):
        super().__init__(config, **kwargs)
        arguments = (config.filters, config.word_dim, CHARACTERS, config.char_dim)
        self.words = CharacterCNN(*arguments, num_highways=0, name="words")
        # The vocabulary has only one word, because the encoder does not need ELMo's scores.
        self.elmo = None
        if config.elmo is not None and config.elmo_places:
            self.elmo = Elmo(dataclasses.replace(config.elmo, vocab_size=1), name="elmo")
            self.elmo.trainable = not config.elmo_frozen
            self.elmo.output_layer.trainable = False
        self.mixtures = {
            elmo_place: LayerMixture(config.elmo_norm, name=name)
            for elmo_place, name in (("input", "mixture"), ("output", "output_mixture"))
            if elmo_place in config.elmo_places
        }
        lstm = keras.layers.LSTM(config.lstm_dim, return_sequences=True)
        self.lstm = keras.layers.Bidirectional(lstm, name="lstm")
        self.drops = [Dropout(config.dropout) for _ in range(2)]

    def build(self, input_shape=None):
        config = self.config
        self.words.build((None, None, config.max_characters))
        width = config.word_dim
        if self.elmo:
            self.elmo.build()
            layers, elmo_width = 1 + config.elmo.num_layers, 2 * config.elmo.projection_dim
            for elmo_place, mixture in self.mixtures.items():
                mixture.build((None, None, layers, elmo_width))
                width += elmo_width if elmo_place == "input" else 0
        self.lstm.build((None, None, width))

    def copy_elmo(self, elmo: Elmo) -> None:
        """Copies the weights of a trained ELMo into this encoder's ELMo, if any.

        The output matrix is not copied, because this encoder does not use ELMo's logits. The
        vocabulary size may therefore differ.
        """
        if self.elmo:
            for name in ("words", "forwards", "backwards"):
                getattr(self.elmo, name).set_weights(getattr(elmo, name).get_weights())

    compute_mask = Elmo.compute_mask

    def call(self, characters, training=None):
        return self.hidden_states(characters, training=training)

    def hidden_states(self, characters, training=None):
        mask, layers = self.compute_mask(characters), None  # (B, L)
        if self.elmo and self.config.elmo_frozen:
            # A frozen ELMo runs without dropout and returns the same vectors each time.
            layers = ops.stop_gradient(self.elmo(characters, training=False))  # (B, L, J, 2 P)
        elif self.elmo:
            layers = self.elmo(characters, training=training)

        def with_elmo(vectors, elmo_place):
            if elmo_place not in self.mixtures:
                return vectors
            return ops.concatenate([vectors, self.mixtures[elmo_place](layers)], axis=-1)

        x = with_elmo(self.words(characters), "input")
        # cuDNN rejects rows without words, so the first position counts as a word in every row.
        mask = ops.logical_or(mask, ops.equal(ops.arange(ops.shape(mask)[1]), 0))
        h = self.lstm(self.drops[0](x, training=training), mask=mask)
        return self.drops[1](with_elmo(h, "output"), training=training)
