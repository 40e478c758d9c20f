"""Mixture of experts, a channel mixer that applies a few of several feed-forward layers."""

from keras import ops

from macaron_tf.errors import check_count
from macaron_tf.layers.dense import activation
from macaron_tf.layers.mixer import Context, Mixer
from macaron_tf.layers.norms import Dropout


class MixtureOfExperts(Mixer):
    """Weighted sum of the outputs of `experts_per_token` experts, chosen for each token.

    The weights are the largest probabilities of the router, `softmax(x W_r)`, divided by their sum.
    An expert is a feed-forward layer without biases. No expert has a capacity, so no token is
    dropped: the layer computes all experts for all tokens, which takes `num_experts /
    experts_per_token` times as many operations as needed, but only matrix products.

    In training, the layer adds (Keras's `add_loss`) `router_loss * num_experts * sum_e f_e P_e`,
    where f_e is the number of tokens that choose expert e and P_e its mean probability, both per
    token. The loss is least if all experts are used equally.

    Args:
        feed_forward_dim: inner width F of each expert.
        num_experts: number of experts E.
        experts_per_token: number of experts that are applied to a token.
        router_loss: weight of the load-balancing loss.
        activation: activation of the experts' inner channels.
        gated: whether the experts are gated feed-forward layers (see `FeedForward`).
        activation_dropout: dropout rate of the experts' inner channels.
        kernel_initializer: initializer of each matrix of an expert, and of the router.
        output_initializer: initializer of the experts' last matrices. `None` means
            `kernel_initializer`.

    Call arguments:
        mask: boolean `(B, T)`, False at padding, which does not count in the loss.

    References: Jiang et al. 2024, "Mixtral of Experts", section 2.1; Fedus et al. 2022, "Switch
    Transformers", eq. 4-6, for the loss.
    """

    input_rank: int | None = None
    keeps_state = False
    takes_queries = True
    takes_packed = True
    reads = (
        *("num_experts", "experts_per_token", "router_loss", "activation", "gated"),
        *("activation_dropout", "scaled_outputs"),
    )

    def __init__(
        self,
        feed_forward_dim: int,
        num_experts: int,
        experts_per_token: int = 2,
        router_loss: float = 0.01,
        activation: str = "relu",
        gated: bool = False,
        activation_dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_count("experts_per_token", experts_per_token)
        if experts_per_token > num_experts:
            raise ValueError(f"experts_per_token={experts_per_token} exceeds {num_experts} experts")

    def build(self, input_shape):
        experts, width, parts = self.num_experts, input_shape[-1], 2 if self.gated else 1
        self.activate = activation(self.activation)
        self.router = self.dense_part("router", input_shape, experts, use_bias=False)
        shape = (experts, width, parts * self.feed_forward_dim)
        options = {"axes": (None, "embed", "mlp"), "parts": parts}
        initializer = _of_each_expert(self.kernel_initializer)
        self.inner = self.add_weight(shape, initializer, name="inner", **options)
        shape, axes = (experts, self.feed_forward_dim, width), (None, "mlp", "embed")
        initializer = _of_each_expert(self.output_initializer or self.kernel_initializer)
        self.outer = self.add_weight(shape, initializer, name="outer", axes=axes)
        self.drop = Dropout(self.activation_dropout)

    def mix(self, x, context: Context, state=None):
        probabilities = ops.softmax(ops.cast(self.router(x), "float32"))  # (..., E)
        largest, chosen = ops.top_k(probabilities, self.experts_per_token)  # (..., k)
        largest = largest / ops.sum(largest, axis=-1, keepdims=True)
        choices = ops.one_hot(chosen, self.num_experts, dtype="float32")  # (..., k, E)
        weights = ops.sum(largest[..., None] * choices, axis=-2)  # (..., E)
        if context.training:
            counts = ops.sum(choices, axis=-2)
            mask = None if context.packing else context.mask  # packed rows have no padding
            self.add_loss(self.router_loss * self._balance(counts, probabilities, mask))
        inner, outer = (ops.cast(kernel, x.dtype) for kernel in (self.inner, self.outer))
        y = ops.einsum("...d,edf->...ef", x, inner)  # (..., E, F) or (..., E, 2 F)
        if self.gated:
            gate, y = ops.split(y, 2, axis=-1)
            y = self.activate(gate) * y
        else:
            y = self.activate(y)
        y = self.drop(y, training=context.training) * ops.cast(weights, x.dtype)[..., None]
        return ops.einsum("...ef,efd->...d", y, outer), None

    def _balance(self, counts, probabilities, mask):
        """Computes `num_experts * sum_e f_e P_e` from `(..., E)` each, without padding."""
        if mask is None:
            mask = ops.ones(ops.shape(probabilities)[:-1], "float32")
        mask = ops.cast(mask, "float32")
        mask = mask / ops.maximum(ops.sum(mask), 1.0)
        axes = tuple(range(mask.ndim))
        shares, means = (ops.sum(y * mask[..., None], axis=axes) for y in (counts, probabilities))
        return self.num_experts * ops.sum(shares * means)


def _of_each_expert(initializer):
    """Returns an initializer of `(E, ...)` that initializes each expert by itself."""

    def initialize(shape, dtype=None):
        return ops.stack([initializer.clone()(shape[1:], dtype) for _ in range(shape[0])])

    return initialize
