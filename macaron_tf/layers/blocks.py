"""The blocks of the papers, by name."""

from macaron_tf.errors import check_choice
from macaron_tf.layers.block import Block
from macaron_tf.layers.gated_mlp import GatedMLP
from macaron_tf.layers.mixer import Mixer
from macaron_tf.layers.scheme import Mix
from macaron_tf.layers.swish_rnn import SwishRNN
from macaron_tf.plug_ins import find, is_place


class TransformerBlock(Block):
    """Lie-Trotter splitting: attention, then feed-forward, a full step each.

    References: Vaswani et al. 2017; as a splitting scheme: Lu et al. 2019, section 3.2.
    """

    scheme = (Mix("tokens"), Mix("channels"))


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


class SwishRNNBlock(Block):
    """A Transformer block whose feed-forward is a SwishRNN of as many matrix parameters.

    The recurrence's width is two thirds of `feed_forward_dim`, since it has three matrices, rounded
    up to a multiple of 64: 3072 -> 2048 and 4096 -> 2752, the paper's. Multiples of 96 make the
    counts equal: 384 -> 256.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", figure 1.
    """

    scheme = (Mix("tokens"), Mix("channels"))

    def channel_mixer(self, feed_forward_dim: int) -> Mixer:
        return SwishRNN(
            -(-2 * feed_forward_dim // (3 * 64)) * 64,
            step_size=self.rnn_step_size,
            gate=self.config.rnn_gate,
            activation_dropout=self.config.activation_dropout,
            **self._initializers(),
            name="swish_rnn",
        )


class GatedMLPBlock(Block):
    """gMLP: one operator that mixes channels, positions and channels again, by fixed weights.

    `feed_forward_dim` is the width F before the gate halves it, and `num_heads` is of the
    attention to a memory only. There is no cached decoding.

    References: Liu et al. 2021, "Pay Attention to MLPs", figure 1.
    """

    scheme = (Mix("tokens"),)
    attends = False
    fixed_length = True
    tiny_attention = False  # whether a head of attention is added to the gate

    def token_mixer(self) -> Mixer:
        config = self.config
        return GatedMLP(
            causal=self.causal,
            tiny_attention_dim=config.tiny_attention_dim if self.tiny_attention else None,
            rotary_base=config.rotary_base if config.positions == "rotary" else None,
            **config.options("feed_forward_dim", "max_length", "toeplitz", "activation"),
            **config.options("epsilon", "affine", "activation_dropout", "attention_dropout"),
            kernel_initializer=self.kernel_initializer.clone(),
            name="gated_mlp",
        )


class AttentionGatedMLPBlock(GatedMLPBlock):
    """aMLP: a `GatedMLPBlock` with a tiny attention, 64 wide (128 in the paper's large model).

    References: Liu et al. 2021, "Pay Attention to MLPs", section 4.3.
    """

    tiny_attention = True


BLOCKS: dict[str, type[Block]] = {
    "transformer": TransformerBlock,
    "macaron": MacaronBlock,
    "swish_rnn": SwishRNNBlock,
    "gmlp": GatedMLPBlock,
    "amlp": AttentionGatedMLPBlock,
}


def block_class(name: str) -> type[Block]:
    """The block of that name, or a user's, `package.module:Name`; a ValueError lists the names."""
    if is_place(name):
        return find(name, Block)
    return BLOCKS[check_choice("block", name, tuple(BLOCKS))]
