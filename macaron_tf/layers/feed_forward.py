"""Position-wise feed-forward layer, the channel mixer of a Transformer."""

from keras import ops

from macaron_tf.layers.config import FeedForwardConfig, take_fields
from macaron_tf.layers.dense import activation
from macaron_tf.layers.mixer import Context, Mixer
from macaron_tf.layers.norms import Dropout
from macaron_tf.settings import hints_of


class FeedForward(Mixer):
    """Position-wise feed-forward layer, `activation(x W1 + b1) W2 + b2`, for `x (B, L, D)`.

    If gated, the layer computes `(activation(x W1 + b1) * (x V + c)) W2 + b2`. T5 1.1 has gated
    layers with `"gelu_tanh"` and without biases.

    Args:
        feed_forward_dim: inner width F.
        kernel_initializer: initializer of the matrices. Biases start at 0. In a gated layer, W1 and
            V form one fused matrix, and the initializer uses the fan-out of the fused matrix.
        output_initializer: initializer of W2. `None` means `kernel_initializer`.
        kwargs: the other fields of `FeedForwardConfig`, and Keras's own arguments.

    References: Vaswani et al. 2017, eq. 2; Shazeer 2020 for the gated variant.
    """

    input_rank: int | None = None
    keeps_state = False
    takes_queries = True
    reads = (*hints_of(FeedForwardConfig), "scaled_outputs")
    takes_packed = True

    def __init__(
        self,
        feed_forward_dim: int,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
        **kwargs,
    ):
        options = take_fields(FeedForwardConfig, kwargs)
        self.config = FeedForwardConfig(feed_forward_dim=feed_forward_dim, **options)
        super().__init__(**kwargs)
        self.activation = activation(self.config.activation)

    def build(self, input_shape):
        config, (*outer_shape, hidden_dim) = self.config, input_shape
        inner_dim, parts = config.feed_forward_dim, 2 if config.gated else 1
        options = {"use_bias": config.use_bias, "axes": ("embed", "mlp"), "parts": parts}
        # In a gated layer, the activation applies to only one half.
        options |= {"activation": None if config.gated else self.activation}
        self.inner = self.dense_part("inner", input_shape, parts * inner_dim, **options)
        initializer = (self.output_initializer or self.kernel_initializer).clone()
        options = {"use_bias": config.use_bias, "axes": ("mlp", "embed")}
        shape = (*outer_shape, inner_dim)
        self.outer = self.dense_part("outer", shape, hidden_dim, initializer, **options)
        self.drop = Dropout(config.activation_dropout)

    def mix(self, x, context: Context, state=None):
        training = context.training
        y = self.inner(x, training=training)  # (B, L, F) or (B, L, 2 F)
        if self.config.gated:
            gate, y = ops.split(y, 2, axis=-1)  # each (B, L, F)
            y = ops.multiply(self.activation(gate), y)
        y = self.drop(y, training=training)
        return self.outer(y), None  # (B, L, D)
