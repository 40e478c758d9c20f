"""Which block each layer of a stack is, and the options that are its own."""

from typing import Any

from macaron_tf.checks import as_tuple, check_choice, check_count
from macaron_tf.kernels import GATES

# Fields of encoders and encoder-decoders alike that their layers' weights depend on.
SHAPE = (
    "hidden_dim",
    "feed_forward_dim",
    "num_heads",
    "block",
    "rnn_step_sizes",
    "rnn_gate",
    "positions",
    "max_length",
    "relative_bias",
    "activation",
    "norm",
    "epsilon",
    "norm_type",
    "embedding_norm",
    "use_bias",
    "gated",
    "head_dim",
    "scaled",
)
# Fields that no weight depends on.
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")

# Options that a block has besides those of all blocks, by the names of a configuration's fields.
_OWN = {
    "gmlp": ("max_length", "toeplitz"),
    "amlp": ("max_length", "toeplitz", "tiny_attention_dim"),
}


class LayerChoices:
    """Base of the configurations whose fields say what the layers are.

    Attributes:
        block: name of the layers' block, or several, layer by layer in turn.
        rnn_step_sizes: k of the recurrences, layer by layer in turn. rnn_gate: their gate.
    """

    block: str | tuple[str, ...]
    rnn_step_sizes: tuple[int, ...]
    rnn_gate: str

    def check_layers(self, known: tuple[str, ...]) -> None:
        """Checks those fields; lists, as JSON and the command line give them, become tuples.

        Args:
            known: the blocks that there may be.

        Raises:
            ValueError: a field is out of its range; the message names it.
        """
        steps = as_tuple(self.rnn_step_sizes)
        object.__setattr__(self, "rnn_step_sizes", steps)
        if isinstance(self.block, list):
            object.__setattr__(self, "block", tuple(self.block))
        if not steps:
            raise ValueError("rnn_step_sizes is empty: give one or more, such as (1, 2, 4)")
        for step_size in steps:
            check_count("rnn_step_sizes", step_size)
        if not self.blocks:
            raise ValueError("block is empty: give a name, or several for the layers in turn")
        for block in self.blocks:
            check_choice("block", block, known)
        check_choice("rnn_gate", self.rnn_gate, GATES)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, layer by layer in turn."""
        return as_tuple(self.block)

    def layer(self, number: int) -> dict[str, Any]:
        """The block of layer `number` and its own options, as `Stack` takes them."""
        block = self.blocks[number % len(self.blocks)]
        if block == "swish_rnn":
            step_size = self.rnn_step_sizes[number % len(self.rnn_step_sizes)]
            return {"block": block, "rnn_step_size": step_size, "rnn_gate": self.rnn_gate}
        return {"block": block, **self.options(*_OWN.get(block, ()))}

    def options(self, *names: str) -> dict[str, Any]:
        """Fields by name."""
        return {name: getattr(self, name) for name in names}
