"""Blocks from the literature: Transformer, Macaron, SwishRNN, gMLP, aMLP and Gated DeltaNet."""

from macaron_tf.errors import check_choice
from macaron_tf.io.plug_ins import find, is_import_path
from macaron_tf.layers.block import Block
from macaron_tf.layers.gated_deltanet import GatedDeltaNet
from macaron_tf.layers.gated_mlp import GatedMLP
from macaron_tf.layers.mixer import Mixer
from macaron_tf.layers.scheme import Mix
from macaron_tf.layers.swish_rnn import SwishRNN


class TransformerBlock(Block):
    """Transformer block: attention with step size 1, then a feed-forward layer with step size 1.

    This order of steps is Lie-Trotter splitting.

    References: Vaswani et al. 2017; Lu et al. 2019, section 3.2, for the splitting scheme.
    """

    scheme = (Mix("tokens"), Mix("channels"))


class MacaronBlock(Block):
    """Macaron block: attention between two feed-forward layers with step size 1/2.

    This order of steps is Strang-Marchuk splitting. The inner width of each feed-forward layer is
    half of `feed_forward_dim`, so the two layers have as many matrix parameters as the single
    feed-forward layer of a `TransformerBlock`.

    References: Lu et al. 2019, eq. 17-19. Footnote 3 gives the order in the decoder: feed-forward,
    masked self-attention, cross-attention, feed-forward.
    """

    scheme = (
        Mix("channels", step_size=0.5, width=0.5),
        Mix("tokens"),
        Mix("channels", step_size=0.5, width=0.5),
    )


class SwishRNNBlock(Block):
    """Transformer block with a `SwishRNN` instead of the feed-forward layer.

    A SwishRNN has three matrices, whereas a feed-forward layer has two. The inner width is
    therefore two thirds of `feed_forward_dim`, rounded up to a multiple of 64. As in the paper,
    3072 becomes 2048 and 4096 becomes 2752. If `feed_forward_dim` is a multiple of 96, the SwishRNN
    has as many matrix parameters as the feed-forward layer: 384 becomes 256.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", figure 1.
    """

    scheme = (Mix("tokens"), Mix("channels"))

    def channel_mixer(self, feed_forward_dim: int) -> Mixer:
        inner_dim, config = -(-2 * feed_forward_dim // (3 * 64)) * 64, self.config
        options = (self.rnn_step_size, config.rnn_gate, config.activation_dropout)
        return SwishRNN(inner_dim, *options, **self._initializers(), name="swish_rnn")


class GatedMLPBlock(Block):
    """gMLP block: a single `GatedMLP` layer, which mixes both channels and positions.

    `feed_forward_dim` is the width before the gate halves the channels. `num_heads` affects only
    cross-attention. The block does not support cached decoding.

    References: Liu et al. 2021, "Pay Attention to MLPs", figure 1.
    """

    scheme = (Mix("tokens"),)
    attends = False
    fixed_length = True
    tiny_attention = False  # whether one attention head is added to the gate

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
    """aMLP block: gMLP with one attention head, whose width is 64 by default.

    The paper's large model uses 128.

    References: Liu et al. 2021, "Pay Attention to MLPs", section 4.3.
    """

    tiny_attention = True


class GatedDeltaNetBlock(Block):
    """Transformer block with a `GatedDeltaNet` in place of attention.

    `model.block=[gated_deltanet, gated_deltanet, gated_deltanet, transformer]` has attention in
    every fourth layer, as in Qwen3-Next. Positions inside attention do not concern this block.

    References: Yang et al. 2024, "Gated Delta Networks", figure 1.
    """

    scheme = (Mix("tokens"), Mix("channels"))

    def token_mixer(self) -> Mixer:
        options = self.config.options("num_heads", "head_dim", "epsilon")
        return GatedDeltaNet(
            causal=self.causal, **options, **self._initializers(), name="gated_deltanet"
        )


BLOCKS: dict[str, type[Block]] = {
    "transformer": TransformerBlock,
    "macaron": MacaronBlock,
    "swish_rnn": SwishRNNBlock,
    "gmlp": GatedMLPBlock,
    "amlp": AttentionGatedMLPBlock,
    "gated_deltanet": GatedDeltaNetBlock,
}


def block_class(name: str) -> type[Block]:
    """Returns a block class by its key in `BLOCKS`, `package.module:Name` or `FILE.py:Name`."""
    if is_import_path(name):
        return find(name, Block)
    return BLOCKS[check_choice("block", name, tuple(BLOCKS))]
