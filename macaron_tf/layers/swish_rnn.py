"""SwishRNN: the channel mixer that also remembers."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.kernels import GATES, gated, swish_gate, swish_recurrence
from macaron_tf.kernels.choice import chosen
from macaron_tf.layers.norms import Dropout


@keras.saving.register_keras_serializable(package="macaron_tf")
class SwishRNN(keras.layers.Layer):
    """`((C + b_c) * gate(X W2 + b_s)) W3 + b_3`, C the recurrence over `X W1`.

    It takes a feed-forward's place with three matrices instead of two: with an inner width of two
    thirds of the feed-forward's they count the same.

    Args:
        inner_dim: R, the width of the recurrence.
        step_size: k, positions of one step: position i follows i - k.
        gate: `"gelu"` (the paper's choice), `"gelu_tanh"` or `"sigmoid"`.
        activation_dropout: probability of dropping an element before W3, 0 to 1.
        kernel_initializer: of the matrices. W1 and W2 are one fused matrix, whose fan-out the
            initializer sees.
        output_initializer: of W3, where it differs.

    Call arguments: `x (B, L, D)`; `mask (B, L)` boolean, False at padding, through which the state
    passes unchanged. Returns `(B, L, D)`. Left to right only: no position sees a later one.

    Over segments of a text `with_past` goes on from the last k values of c, which `empty_past`
    gives before the first; no gradient flows through them.

    Cached decoding: `empty_cache`, `step` and `read`, whose state is the last k values of c,
    whatever the number of tokens so far.

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 2-4.
    """

    def __init__(
        self,
        inner_dim: int,
        step_size: int = 1,
        gate: str = "gelu",
        activation_dropout: float = 0.0,
        kernel_initializer="glorot_uniform",
        output_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.inner_dim = inner_dim
        self.step_size = step_size
        self.gate = gate
        self.activation_dropout = activation_dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_initializer = keras.initializers.get(output_initializer)
        check_choice("gate", gate, GATES)

    def build(self, input_shape):
        self.inner = keras.layers.Dense(
            2 * self.inner_dim,
            use_bias=False,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="inner",
        )
        self.inner.build(input_shape)
        self.outer = keras.layers.Dense(
            input_shape[-1],
            kernel_initializer=(self.output_initializer or self.kernel_initializer).clone(),
            dtype=self.dtype_policy,
            name="outer",
        )
        self.outer.build((*input_shape[:-1], self.inner_dim))
        # Not cast to bfloat16 by the policy: the recurrence is float32.
        self.alpha = self._vector("alpha", "ones", autocast=False)
        self.beta = self._vector("beta", "zeros", autocast=False)
        self.state_bias = self._vector("state_bias", "zeros")
        self.gate_bias = self._vector("gate_bias", "zeros")
        self.drop = Dropout(self.activation_dropout, dtype=self.dtype_policy)
        self.built = True

    def _vector(self, name: str, initializer: str, autocast: bool = True) -> keras.Variable:
        return self.add_weight(
            name=name, shape=(self.inner_dim,), initializer=initializer, autocast=autocast
        )

    def call(self, x, mask=None, training=None):
        if chosen("auto", self.compute_dtype) == "xla":
            return self._over_turns(x, mask, training)
        vectors = (self.alpha, self.beta, self.state_bias, self.gate_bias)
        y = swish_gate(self.inner(x), *vectors, self.step_size, self.gate, mask)  # (B, L, R)
        return self.outer(self.drop(y, training=training))

    def _over_turns(self, x, mask, training):
        """`call` under XLA, in the loops' order from the first product to the last: D < R.

        Two products, for the gradient of one that is split would be put together first.
        """
        from macaron_tf.kernels import xla  # it needs TensorFlow

        batch, length, _ = ops.shape(x)
        x = xla.in_turns(x, self.step_size)  # (n, S, D)
        x1, x2 = (ops.matmul(x, part) for part in ops.split(self.inner.kernel, 2, axis=-1))
        alpha, beta = (ops.convert_to_tensor(vector) for vector in (self.alpha, self.beta))
        c = xla.over_turns(x1, length, alpha, beta, self.step_size, mask)
        y = gated(c, x2, self.state_bias, self.gate_bias, self.gate)  # (n, S, R)
        return xla.from_turns(self.outer(self.drop(y, training=training)), batch, length)

    def empty_past(self, batch_size, memory_length: int):
        """The state before a text, `(B, k, R)` float32, however long a memory is."""
        return ops.zeros((batch_size, self.step_size, self.inner_dim), "float32")

    def with_past(self, x, past, mask=None, training=None):
        """The next positions of a text.

        Args:
            x: `(B, L, D)`.
            past: `(B, k, R)`, from `empty_past` or the last call.
            mask: `(B, L)` boolean, as of `call`.

        Returns:
            `(B, L, D)`, and the new past.
        """
        past = ops.stop_gradient(ops.cast(past, "float32"))
        x1, x2 = ops.split(self.inner(x), 2, axis=-1)  # each (B, L, R)
        c = swish_recurrence(x1, self.alpha, self.beta, self.step_size, mask, past)
        states = ops.concatenate([past, ops.cast(c, "float32")], axis=1)  # (B, k + L, R)
        y = gated(c, x2, self.state_bias, self.gate_bias, self.gate)
        past = ops.stop_gradient(states[:, -self.step_size :])
        return self.outer(self.drop(y, training=training)), past

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """The state before the first token of K hypotheses: `(B, K, k, R)` float32.

        `max_length` changes nothing: the state does not grow.
        """
        return ops.zeros((batch_size, beam_size, self.step_size, self.inner_dim), "float32")

    def step(self, x, index, cache):
        """One new token of each hypothesis.

        Args:
            x: `(B K, D)` or `(B, K, D)`.
            index: not needed; the state knows.
            cache: the last k values of c, `(B, K, k, R)`, oldest first.

        Returns:
            An output of the shape of x, and the new state.
        """
        x1, x2 = ops.split(self.inner(x), 2, axis=-1)  # each (B K, R)
        # (B K, R) -> (B K, 1, R); (B, K, k, R) -> (B K, 1, R)
        new = ops.reshape(x1, (-1, 1, self.inner_dim))
        oldest = ops.reshape(cache[:, :, :1], (-1, 1, self.inner_dim))
        c = swish_recurrence(new, self.alpha, self.beta, initial_state=oldest)
        # (B K, 1, R) -> (B, K, 1, R)
        held = ops.reshape(c, (-1, cache.shape[1], 1, self.inner_dim))
        cache = ops.concatenate([cache[:, :, 1:], ops.cast(held, "float32")], axis=2)
        c = ops.reshape(c, ops.shape(x1))
        return self.outer(gated(c, x2, self.state_bias, self.gate_bias, self.gate)), cache

    def read(self, x, index, cache):
        """The next L tokens of each text at once, as L steps do.

        Args:
            x: `(B, L, D)`.
            index: not needed. cache: as of `step`, of K = 1.

        Returns:
            `(B, L, D)`, and the new state.
        """
        y, past = self.with_past(x, cache[:, 0], training=False)
        return y, ops.reshape(past, ops.shape(cache))  # (B, k, R) -> (B, 1, k, R)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "inner_dim": self.inner_dim,
            "step_size": self.step_size,
            "gate": self.gate,
            "activation_dropout": self.activation_dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "output_initializer": keras.initializers.serialize(self.output_initializer)
            if self.output_initializer
            else None,
        }
