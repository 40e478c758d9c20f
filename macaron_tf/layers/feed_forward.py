"""The position-wise feed-forward sub-layer: the channel mixer of a Transformer."""

import keras
from keras import ops

from macaron_tf.layers.dense import Dense
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.norms import Dropout


@keras.saving.register_keras_serializable(package="macaron_tf")
class FeedForward(keras.layers.Layer):
    """`activation(x W1 + b1) W2 + b2`, at every position alone.

    Gated: `(activation(x W1) * (x V)) W2`, with T5 1.1's name for it, gated GELU.

    Args:
        feed_forward_dim: the inner width F.
        activation: name or function; the papers use `"relu"` (translation) and `"gelu"` (BERT,
            exact; `"gelu_tanh"` is its approximation).
        activation_dropout: probability of dropping an inner activation, 0 to 1.
        kernel_initializer: for the matrices; biases start at 0. W1 and V are one fused matrix,
            whose fan-out the initializer sees.
        gated: whether there is a V.
        use_bias: whether there are biases.
        output_initializer: for W2, where it differs.

    Call arguments: `x (B, L, D)`; returns `(B, L, D)`.

    References: Vaswani et al. 2017, eq. 2; gated: Shazeer 2020.
    """

    def __init__(
        self,
        feed_forward_dim: int,
        activation="relu",
        activation_dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        gated: bool = False,
        use_bias: bool = True,
        output_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.feed_forward_dim = feed_forward_dim
        self.activation = activation_named(activation)
        self.activation_dropout = activation_dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.gated = gated
        self.use_bias = use_bias
        self.output_initializer = keras.initializers.get(output_initializer)

    def build(self, input_shape):
        hidden_dim = input_shape[-1]
        self.inner = Dense(
            self.feed_forward_dim * (2 if self.gated else 1),
            # A gate's activation is of one half only.
            activation=None if self.gated else self.activation,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="inner",
        )
        self.outer = keras.layers.Dense(
            hidden_dim,
            use_bias=self.use_bias,
            kernel_initializer=(self.output_initializer or self.kernel_initializer).clone(),
            dtype=self.dtype_policy,
            name="outer",
        )
        self.drop = Dropout(self.activation_dropout, dtype=self.dtype_policy)
        self.inner.build(input_shape)
        self.outer.build((*input_shape[:-1], self.feed_forward_dim))
        self.built = True

    def call(self, x, training=None):
        y = self.inner(x)  # (B, L, F) or (B, L, 2 F)
        if self.gated:
            gate, y = ops.split(y, 2, axis=-1)  # each (B, L, F)
            y = ops.multiply(self.activation(gate), y)
        y = self.drop(y, training=training)
        return self.outer(y)  # (B, L, D)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "feed_forward_dim": self.feed_forward_dim,
            "activation": keras.activations.serialize(self.activation),
            "activation_dropout": self.activation_dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "gated": self.gated,
            "use_bias": self.use_bias,
            "output_initializer": keras.initializers.serialize(self.output_initializer)
            if self.output_initializer
            else None,
        }
