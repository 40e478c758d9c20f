"""Layers as splitting schemes: which operators, in which order, with which step sizes.

A Transformer layer is Lie-Trotter splitting (mix tokens, then channels, full steps); a Macaron
layer is Strang-Marchuk splitting (half a step of channels, a full step of tokens, half a step of
channels). A new block is a new `scheme`, or another operator in place of one of the two.
"""

from dataclasses import dataclass

OPERATORS = ("tokens", "memory", "channels")


@dataclass(frozen=True)
class Mix:
    """One operator of a scheme.

    Attributes:
        operator: `"tokens"` (attention: diffusion) or `"channels"` (feed-forward: convection).
        step_size: length of the Euler step.
        width: share of `feed_forward_dim` that a channel mixer gets.
    """

    operator: str
    step_size: float = 1.0
    width: float = 1.0
