"""What a model of plain sequences is: a temporal convolutional network, or a recurrent one."""

import dataclasses
import itertools

from macaron_tf.checks import as_tuple, check_choice, check_count, check_fraction

MIXERS = ("tcn", "lstm", "gru", "rnn")
# Gates of a recurrent layer, and bias vectors of each: Keras's GRU has two.
_GATES = {"lstm": (4, 1), "gru": (3, 2), "rnn": (1, 1)}


@dataclasses.dataclass(frozen=True)
class TemporalConfig:
    """A TCN, LSTM, GRU or simple RNN between an input and scores.

    Attributes:
        output_dim: scores O of each position.
        widths: output channels of each block, or units of each recurrent layer.
        mixer: one of `MIXERS`.
        kernel_size: taps of the TCN's convolutions.
        input_dim: C, where the input is vectors; 0 where it is ids.
        vocab_size: V, where the input is ids; 0 where it is vectors.
        embedding_dim: E of the ids' vectors.
        tied: the table of the embeddings makes the scores as well (O = V, last width = E).
        dropout: after each convolution, or each recurrent layer.
        spatial_dropout: whether a TCN's channel is dropped in all positions together.
        embedding_dropout: on the embeddings.
        last_only: scores of the last position alone.

    Raises:
        ValueError: a value is out of its range, or two do not fit.
    """

    output_dim: int
    widths: tuple[int, ...]
    mixer: str = "tcn"
    kernel_size: int = 3
    input_dim: int = 0
    vocab_size: int = 0
    embedding_dim: int = 0
    tied: bool = False
    dropout: float = 0.0
    spatial_dropout: bool = True
    embedding_dropout: float = 0.0
    last_only: bool = False

    def __post_init__(self):
        object.__setattr__(self, "widths", as_tuple(self.widths))
        check_choice("mixer", self.mixer, MIXERS)
        check_count("output_dim", self.output_dim)
        check_count("kernel_size", self.kernel_size)
        check_count("number of widths", len(self.widths))
        for width in self.widths:
            check_count("a width", width)
        check_fraction("dropout", self.dropout)
        check_fraction("embedding_dropout", self.embedding_dropout)
        if bool(self.input_dim) == bool(self.vocab_size):
            raise ValueError("give input_dim, of vectors, or vocab_size, of ids: one of the two")
        if self.vocab_size:
            check_count("embedding_dim", self.embedding_dim)
        if self.tied and (self.vocab_size, self.embedding_dim) != (
            self.output_dim,
            self.widths[-1],
        ):
            raise ValueError(
                "tied needs output_dim equal to vocab_size and the last of widths equal to "
                "embedding_dim"
            )

    @property
    def parameters(self) -> int:
        """How many numbers the model trains."""
        start = self.embedding_dim if self.vocab_size else self.input_dim
        layers = itertools.pairwise((start, *self.widths))
        body = sum(self._layer_parameters(*pair) for pair in layers)
        table = self.vocab_size * self.embedding_dim
        scores = self.output_dim * (1 if self.tied else self.widths[-1] + 1)
        return table + body + scores

    def _layer_parameters(self, inner: int, width: int) -> int:
        if self.mixer == "tcn":
            skip = (inner + 1) * width if inner != width else 0
            # The kernels, and a length and a bias of each channel.
            return self.kernel_size * (inner + width) * width + 2 * 2 * width + skip
        gates, biases = _GATES[self.mixer]
        return gates * (inner + width + biases) * width

    def equal_sized(self, mixer: str) -> "TemporalConfig":
        """The model with another mixer in one layer, as near as may be in parameters.

        With tied scores the layer's width is given, and the free one is that of a layer before it.

        Args:
            mixer: `"lstm"`, `"gru"` or `"rnn"`.
        """

        def of(width: int) -> TemporalConfig:
            widths = (width, self.embedding_dim) if self.tied else (width,)
            return dataclasses.replace(self, mixer=mixer, widths=widths)

        check_choice("mixer", mixer, tuple(_GATES))
        low, high = 1, 2
        while of(high).parameters < self.parameters:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if of(middle).parameters < self.parameters else (low, middle)
        return min((of(low), of(high)), key=lambda c: abs(c.parameters - self.parameters))
