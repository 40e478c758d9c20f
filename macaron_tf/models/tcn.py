"""Temporal convolutional networks (TCN), and LSTM, GRU and RNN models for comparison."""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.layers.convolution import ConvolutionBlock
from macaron_tf.layers.embeddings import TiedEmbedding
from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.recording import Recording
from macaron_tf.models.base import Network
from macaron_tf.settings import Count, Natural, Settings
from macaron_tf.settings import Dropout as DropoutRate

# Recurrent layers, with the number of gates and the number of bias vectors per gate. Keras's GRU
# has two bias vectors per gate.
_RECURRENT = {
    "lstm": (keras.layers.LSTM, 4, 1),
    "gru": (keras.layers.GRU, 3, 2),
    "rnn": (keras.layers.SimpleRNN, 1, 1),
}


@dataclasses.dataclass(frozen=True)
class TemporalConfig(Settings):
    """Configuration of a TCN, LSTM, GRU or simple RNN with an output layer.

    Attributes:
        output_dim: number of outputs O at each position, such as logits.
        widths: number of channels in each TCN block, or number of units in each recurrent layer.
        mixer: type of the layers, `"tcn"`, `"lstm"`, `"gru"` or `"rnn"`.
        kernel_size: kernel size of the TCN's convolutions.
        input_dim: width C of the input vectors. 0 means that the inputs are ids.
        vocab_size: number of input ids V. 0 means that the inputs are vectors.
        embedding_dim: width E of the embeddings.
        tied: whether the embedding table is also the output matrix. This option requires that O is
            V and that the last number in `widths` is E.
        dropout: dropout rate after each convolution, where dropout removes a channel at all
            positions of a sequence, or after each recurrent layer.
        embedding_dropout: dropout rate of the embeddings.
        last_only: whether the model scores only the last position.
    """

    output_dim: Count
    widths: tuple[Count, ...]
    mixer: Literal["tcn", "lstm", "gru", "rnn"] = "tcn"
    kernel_size: Count = 3
    input_dim: Natural = 0
    vocab_size: Natural = 0
    embedding_dim: Natural = 0
    tied: bool = False
    dropout: DropoutRate = 0.0
    embedding_dropout: DropoutRate = 0.0
    last_only: bool = False

    def check(self):
        if not self.widths:
            raise self.error("widths=() is empty: give at least one width")
        if bool(self.input_dim) == bool(self.vocab_size):
            raise self.error("set either input_dim or vocab_size, not both")
        if self.vocab_size and not self.embedding_dim:
            raise self.error("embedding_dim=0 must be at least 1 if vocab_size is set")
        output_sizes = (self.output_dim, self.widths[-1])
        if self.tied and (self.vocab_size, self.embedding_dim) != output_sizes:
            raise self.error("tied=True needs output_dim = vocab_size, last width = embedding_dim")

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        widths = (self.embedding_dim if self.vocab_size else self.input_dim, *self.widths)
        body = 0
        for input_width, width in itertools.pairwise(widths):
            if self.mixer == "tcn":
                # Two kernels, each with one length and one bias per channel.
                body += self.kernel_size * (input_width + width) * width + 2 * 2 * width
                body += (input_width + 1) * width if input_width != width else 0
            else:
                _, gates, biases = _RECURRENT[self.mixer]
                body += gates * (input_width + width + biases) * width
        output = self.output_dim * (1 if self.tied else self.widths[-1] + 1)
        return self.vocab_size * self.embedding_dim + body + output

    def equal_sized(self, mixer: Any) -> "TemporalConfig":
        """Returns a configuration of `"lstm"`, `"gru"` or `"rnn"` with nearly as many parameters.

        It has one layer or, with `tied`, two, because the last width must be the embedding width.
        """

        def with_width(width: int) -> TemporalConfig:
            widths = (width, self.embedding_dim) if self.tied else (width,)
            return dataclasses.replace(self, mixer=mixer, widths=widths)

        check_choice("mixer", mixer, tuple(_RECURRENT))
        # A layer has more parameters than units, so the width is below the number of parameters.
        widths, size = range(1, self.parameters), self.parameters
        high = 1 + bisect.bisect_left(widths, size, key=lambda width: with_width(width).parameters)
        candidates = (with_width(max(high - 1, 1)), with_width(high))
        return min(candidates, key=lambda config: abs(config.parameters - size))


class TemporalConvolution(Recording, keras.layers.Layer):
    """Temporal convolutional network: residual blocks in which block i has dilation 2^i.

    Args:
        filters: number of output channels for each of n blocks.
        kernel_size: kernel size k of the convolutions.
        last_only: whether to return only the last position. Each block then computes only the
            outputs that affect the last position, and therefore half as many outputs as inputs. The
            n blocks together cost at most as much as three convolutions over the whole sequence.

    Call arguments:
        x: `(B, L, C)`. Padding may only be at the end. With `last_only`, there must be no padding.

    The output has shape `(B, L, F)`, or `(B, F)` with `last_only`, where F is the last number in
    `filters`. Each output depends on 1 + 2 (k - 1) (2^n - 1) positions and on no later position.

    References: Bai et al. 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent
    Networks for Sequence Modeling", section 3.
    """

    input_rank = 3

    def __init__(
        self,
        filters: Sequence[int],
        kernel_size: int,
        dropout: float = 0.0,
        last_only: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = not last_only
        self.blocks = [
            ConvolutionBlock(width, kernel_size, 2**index, dropout, name=f"block_{index}")
            for index, width in enumerate(filters)
        ]

    def build(self, x_shape):
        for block in self.blocks:
            block.build(x_shape)
            x_shape = (*x_shape[:-1], block.filters)

    def call(self, x, training=None):
        for block in self.blocks:
            call = block.call_subsampled if self.last_only else block
            x = call(x, training=training)
        return x[:, -1] if self.last_only else x


class TemporalModel(Network):
    """TCN, LSTM, GRU or simple RNN with an output layer.

    Call arguments:
        inputs: vectors `(B, L, C)` or ids `(B, L)`. Padding may only be at the end. With
            `config.last_only`, there must be no padding.

    The output has shape `(B, L, O)`, or `(B, O)` with `config.last_only`. No score depends on later
    positions.

    References: Bai et al. 2018, section 4.
    """

    input_names = None

    def __init__(self, config: TemporalConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.takes_ids = bool(config.vocab_size)
        self.input_spec = keras.layers.InputSpec(ndim=2 if self.takes_ids else 3)
        self.embedding, self.reads = None, ("tied",)
        if config.vocab_size:
            self.reads += ("embedding_dropout",)
            # A small standard deviation keeps the initial scores small, because the scores use the
            # same table.
            options = {"initializer": keras.initializers.RandomNormal(stddev=0.1), "scale": False}
            sizes = (config.vocab_size, config.embedding_dim)
            self.embedding = TiedEmbedding(*sizes, **options, name="embedding")
            self.embedding_drop = Dropout(config.embedding_dropout)
        self.drops = []
        if config.mixer == "tcn":
            self.reads += ("kernel_size",)
            options = config.options("kernel_size", "dropout", "last_only")
            self.mixers = [TemporalConvolution(config.widths, **options, name="tcn")]
        else:
            recurrent, *_ = _RECURRENT[config.mixer]
            returns = [True] * (len(config.widths) - 1) + [not config.last_only]
            self.mixers = [
                recurrent(width, return_sequences=returns[index], name=f"{config.mixer}_{index}")
                for index, width in enumerate(config.widths)
            ]
            self.drops = [Dropout(config.dropout) for _ in config.widths]
        if config.tied:
            shape = (config.output_dim,)
            self.output_bias = self.add_weight(shape, "zeros", name="output_bias")
        else:
            self.output_layer = keras.layers.Dense(config.output_dim, name="output")

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

    def hidden_states(self, inputs, training=None):
        """Computes the input of the output layer: `(B, L, D)`, or `(B, D)` with `last_only`."""
        x = inputs
        if self.embedding:
            x = self.embedding_drop(self.embedding(inputs), training=training)  # (B, L, E)
        for layer, drop in itertools.zip_longest(self.mixers, self.drops):
            x = layer(x, training=training)
            x = drop(x, training=training) if drop else x
        return x

    def logits(self, hidden):
        """Applies the output layer: `(..., D) -> (..., O)`."""
        if self.config.tied:
            return self.embedding.logits(hidden) + ops.cast(self.output_bias, hidden.dtype)
        return self.output_layer(hidden)
