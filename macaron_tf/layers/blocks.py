"""The blocks of the papers by name: Transformer, Macaron, SwishRNN, gMLP and aMLP."""

from macaron_tf.errors import check_choice
from macaron_tf.layers.block import Block
from macaron_tf.layers.gated_mlp import GatedMLP
from macaron_tf.layers.mixer import Mixer
from macaron_tf.layers.scheme import Mix
from macaron_tf.layers.swish_rnn import SwishRNN
from macaron_tf.plug_ins import find, is_place


class TransformerBlock(Block):
    """Transformer block: attention, then a feed-forward, each a full step (Lie-Trotter splitting).

    References: Vaswani et al. 2017; as a splitting scheme: Lu et al. 2019, section 3.2.
    """

    scheme = (Mix("tokens"), Mix("channels"))


class MacaronBlock(Block):
    """Macaron block: half a feed-forward step, a full attention step, half a feed-forward step.

    This is Strang-Marchuk splitting. Each feed-forward has half of `feed_forward_dim`, so that the
    matrices have as many parameters as those of a `TransformerBlock`.

    References: Lu et al. 2019, eq. 17-19; footnote 3 gives the decoder's order: feed-forward,
    masked self-attention, encoder-decoder attention, feed-forward.
    """

    scheme = (
        Mix("channels", step_size=0.5, width=0.5),
        Mix("tokens"),
        Mix("channels", step_size=0.5, width=0.5),
    )


class SwishRNNBlock(Block):
    """A Transformer block with a `SwishRNN` in place of the feed-forward, and as many parameters.

    The recurrence has three matrices instead of two, so its width is two thirds of
    `feed_forward_dim`, rounded up to a multiple of 64: 3072 -> 2048 and 4096 -> 2752, as in the
    paper. The numbers of matrix parameters are equal for multiples of 96: 384 -> 256.

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
    """gMLP block: one `GatedMLP`, which mixes both channels and positions.

    `feed_forward_dim` is the width F before the gate halves it. `num_heads` applies only to
    attention to a memory. Cached decoding is not supported.

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
    """aMLP block: gMLP with one small attention head, by default 64 wide (128 in the large aMLP).

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
    """The block class of that name, or the user's own at `package.module:Name`.

    Raises:
        ValueError: the name is unknown; the message lists the known ones.
    """
    if is_place(name):
        return find(name, Block)
    return BLOCKS[check_choice("block", name, tuple(BLOCKS))]
