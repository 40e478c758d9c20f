"""What a bidirectional language model over words is."""

import dataclasses

from macaron_tf.checks import check_count, check_fraction
from macaron_tf.layers.character_cnn import ELMO_FILTERS, check_filters


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
