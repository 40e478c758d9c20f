"""The blocks of the papers, by name."""

import keras

from macaron_tf.checks import check_choice
from macaron_tf.kernels import GATES
from macaron_tf.layers.block import Block
from macaron_tf.layers.gated_mlp import GatedMLP
from macaron_tf.layers.scheme import Mix
from macaron_tf.layers.swish_rnn import SwishRNN


@keras.saving.register_keras_serializable(package="macaron_tf")
class TransformerBlock(Block):
    """Lie-Trotter splitting: attention, then feed-forward, a full step each.

    References: Vaswani et al. 2017; as a splitting scheme: Lu et al. 2019, section 3.2.
    """

    scheme = (Mix("tokens"), Mix("channels"))


@keras.saving.register_keras_serializable(package="macaron_tf")
class MacaronBlock(Block):
    """Strang-Marchuk splitting: half a feed-forward step, attention, half a feed-forward step.

    Both feed-forwards have half of `feed_forward_dim`, so that the matrices count as many
    parameters as a `TransformerBlock`'s.

    References: Lu et al. 2019, eq. 17-19; decoder order FFN, masked self-attention,
    encoder-decoder attention, FFN: its footnote 3.
    """

    scheme = (
        Mix("channels", step_size=0.5, width=0.5),
        Mix("tokens"),
        Mix("channels", step_size=0.5, width=0.5),
    )


@keras.saving.register_keras_serializable(package="macaron_tf")
class SwishRNNBlock(Block):
    """A Transformer block whose feed-forward is a SwishRNN of as many matrix parameters.

    Args:
        rnn_step_size: k of the recurrence.
        rnn_gate: its gate, `"gelu"`, `"gelu_tanh"` or `"sigmoid"`.
        The others: as `Block`. The recurrence's width is two thirds of `feed_forward_dim`, for it
        has three matrices, up to the next multiple of 64: 3072 -> 2048 and 4096 -> 2752, the
        paper's. Multiples of 96 x 2 make the counts equal: 384 -> 256.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", figure 1.
    """

    scheme = (Mix("tokens"), Mix("channels"))

    def __init__(self, *args, rnn_step_size: int = 1, rnn_gate: str = "gelu", **kwargs):
        # Before the parent's, which makes the sub-layers.
        self.rnn_step_size = rnn_step_size
        self.rnn_gate = check_choice("rnn_gate", rnn_gate, GATES)
        super().__init__(*args, **kwargs)

    def channel_mixer(self, feed_forward_dim: int) -> keras.layers.Layer:
        return SwishRNN(
            -(-2 * feed_forward_dim // (3 * 64)) * 64,
            step_size=self.rnn_step_size,
            gate=self.rnn_gate,
            activation_dropout=self.activation_dropout,
            **self._initializers(),
            dtype=self.dtype_policy,
            name="swish_rnn",
        )

    def get_config(self):
        return {
            **super().get_config(),
            "rnn_step_size": self.rnn_step_size,
            "rnn_gate": self.rnn_gate,
        }


@keras.saving.register_keras_serializable(package="macaron_tf")
class GatedMLPBlock(Block):
    """gMLP: one operator that mixes channels, positions and channels again, by fixed weights.

    Args:
        max_length: greatest L, the number of positions that are mixed.
        toeplitz: the weight between two positions depends on their distance only.
        tiny_attention_dim: width of a head of attention added to the gate; None for none.
        The others: as `Block`. `feed_forward_dim` is the width F before the gate halves it, and
            `num_heads` is of the attention to a memory only. There is no cached decoding.

    References: Liu et al. 2021, "Pay Attention to MLPs", figure 1.
    """

    scheme = (Mix("tokens"),)
    attends = False

    def __init__(
        self,
        *args,
        max_length: int = 512,
        toeplitz: bool = False,
        tiny_attention_dim: int | None = None,
        **kwargs,
    ):
        # Before the parent's, which makes the sub-layers.
        self.max_length = max_length
        self.toeplitz = toeplitz
        self.tiny_attention_dim = tiny_attention_dim
        super().__init__(*args, **kwargs)

    def token_mixer(self) -> keras.layers.Layer:
        return GatedMLP(
            self.feed_forward_dim,
            self.max_length,
            causal=self.causal,
            toeplitz=self.toeplitz,
            tiny_attention_dim=self.tiny_attention_dim,
            activation=self.activation,
            activation_dropout=self.activation_dropout,
            attention_dropout=self.attention_dropout,
            epsilon=self.epsilon,
            affine=self.affine,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="gated_mlp",
        )

    def get_config(self):
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "toeplitz": self.toeplitz,
            "tiny_attention_dim": self.tiny_attention_dim,
        }


@keras.saving.register_keras_serializable(package="macaron_tf")
class AttentionGatedMLPBlock(GatedMLPBlock):
    """aMLP: a `GatedMLPBlock` with a tiny attention, 64 wide (128 in the paper's large model).

    References: Liu et al. 2021, "Pay Attention to MLPs", section 4.3.
    """

    def __init__(self, *args, tiny_attention_dim: int = 64, **kwargs):
        super().__init__(*args, tiny_attention_dim=tiny_attention_dim, **kwargs)


BLOCKS: dict[str, type[Block]] = {
    "transformer": TransformerBlock,
    "macaron": MacaronBlock,
    "swish_rnn": SwishRNNBlock,
    "gmlp": GatedMLPBlock,
    "amlp": AttentionGatedMLPBlock,
}


def block_class(name: str) -> type[Block]:
    """The block of that name; a ValueError lists the names."""
    return BLOCKS[check_choice("block", name, tuple(BLOCKS))]
