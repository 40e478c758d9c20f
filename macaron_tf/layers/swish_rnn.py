"""SwishRNN, a recurrent channel mixer that replaces the feed-forward layer."""

from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.kernels import GATES, gated, swish_gate, swish_recurrence
from macaron_tf.kernels.choice import select_implementation
from macaron_tf.kernels.recurrence import one_step
from macaron_tf.layers.mixer import Context, Mixer
from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.watching import note


class SwishRNN(Mixer):
    """Recurrent channel mixer: `((C + b_c) * gate(X W2 + b_s)) W3 + b_3`.

    C is the output of a recurrence over `X W1` (see `swish_recurrence`). The layer has three
    matrices, whereas a feed-forward layer has two. Two thirds of a feed-forward layer's inner width
    therefore give the same number of parameters.

    Args:
        inner_dim: width R of the recurrence.
        step_size: step size k of the recurrence. Position i continues from position i - k.
        gate: `"gelu"` (as in the paper), `"gelu_tanh"` or `"sigmoid"`.
        activation_dropout: dropout rate before W3.
        kernel_initializer: initializer of the matrices. W1 and W2 form one fused matrix, and the
            initializer uses the fan-out of the fused matrix.
        output_initializer: initializer of W3. `None` means `kernel_initializer`.

    Call arguments:
        mask: boolean `(B, L)`, False at padding. Padding does not change the state.

    No position of the output `(B, L, D)` sees later positions. The state contains the last k values
    of the recurrence in float32, oldest first: `(B, K, k, R)` for K hypotheses in decoding, or `(B,
    k, R)` between segments. The size of the state does not depend on the number of tokens. No
    gradient flows through the state. `mix` raises a `ValueError` if it gets a state and documents
    (see `Context.documents`).

    References: Lei et al. 2022, "Simple Recurrence Improves Masked Language Models", eq. 2-4.
    """

    reads = ("activation_dropout", "rnn_gate", "rnn_step_sizes", "scaled_outputs")
    takes_cache_mask = True  # the state has no position axis
    takes_documents = True

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
        check_choice("gate", gate, tuple(GATES))

    def build(self, input_shape):
        options = {"use_bias": False, "axes": ("embed", "mlp"), "parts": 2}
        self.inner = self.dense_part("inner", input_shape, 2 * self.inner_dim, **options)
        inner_shape = (*input_shape[:-1], self.inner_dim)
        initializer = (self.output_initializer or self.kernel_initializer).clone()
        axes = ("mlp", "embed")
        self.outer = self.dense_part("outer", inner_shape, input_shape[-1], initializer, axes=axes)
        shape, options = (self.inner_dim,), {"axes": ("mlp",)}
        # Autocast is off because the recurrence is computed in float32.
        self.alpha = self.add_weight(shape, "ones", autocast=False, name="alpha", **options)
        self.beta = self.add_weight(shape, "zeros", autocast=False, name="beta", **options)
        self.state_bias = self.add_weight(shape, "zeros", name="state_bias", **options)
        self.gate_bias = self.add_weight(shape, "zeros", name="gate_bias", **options)
        self.drop = Dropout(self.activation_dropout)

    def mix(self, x, context: Context, state=None):
        if state is not None:
            return self._with_state(x, context, state)
        if 0 not in x.shape and select_implementation("auto", self.compute_dtype) == "xla":
            return self._mix_under_xla(x, context), None
        inner = self.inner(x)
        note(self, inner)
        vectors, options = (self.alpha, self.beta, *self._biases()), (self.step_size, self.gate)
        mask, implementation = self._mask(context), _implementation(context)
        y = swish_gate(inner, *vectors, *options, mask, implementation)
        return self._output(y, context), None  # (B, L, R) -> (B, L, D)

    def _mask(self, context: Context):
        """Returns the mask `(B, L)` for `swish_recurrence`, `context.mask` without documents.

        Otherwise, the mask is 0 at padding, 2 at each position i for which position i - k belongs
        to another document, and 1 elsewhere.
        """
        if context.documents is None:
            return context.mask
        previous = ops.pad(context.documents, [[0, 0], [self.step_size, 0]])[:, : -self.step_size]
        marks = ops.where(ops.equal(context.documents, previous), 1, 2)
        return marks if context.mask is None else ops.where(context.mask, marks, 0)

    def _biases(self):
        return tuple(ops.cast(b, self.compute_dtype) for b in (self.state_bias, self.gate_bias))

    def _output(self, y, context: Context):
        return self.outer(self.drop(y, training=context.training))

    def _mix_under_xla(self, x, context: Context):
        """Computes a whole sequence `x (B, L, D)` under XLA, in a time-major layout.

        x changes its layout before the input matrices, because D < R. W1 and W2 are multiplied
        separately, because a single product's gradient would first concatenate those of `x W1` and
        `x W2`.
        """
        from macaron_tf.kernels import xla  # needs TensorFlow

        batch, length, _ = ops.shape(x)
        x = xla.to_chunks(x, self.step_size)  # (n, S, D)
        kernel = self.inner.matrix(x.dtype)
        x1, x2 = (ops.matmul(x, part) for part in ops.split(kernel, 2, axis=-1))
        alpha, beta = (ops.convert_to_tensor(vector) for vector in (self.alpha, self.beta))
        c = xla.recurrence_over_chunks(x1, length, alpha, beta, self.step_size, self._mask(context))
        y = gated(c, x2, *self._biases(), self.gate)  # (n, S, R)
        return xla.from_chunks(self._output(y, context), batch, length)

    def init_memory(self, batch_size, length: int):
        return ops.zeros((batch_size, self.step_size, self.inner_dim), "float32")

    def init_cache(self, batch_size, beams: int, capacity: int | None):
        return ops.zeros((batch_size, beams, self.step_size, self.inner_dim), "float32")

    def _with_state(self, x, context: Context, state):
        if context.documents is not None:
            raise ValueError("SwishRNN takes either a state or several documents per row")
        x1, x2 = ops.split(self.inner(x), 2, axis=-1)  # (B, L, R) each, or (B K, R) in decoding
        # (B, K, k, R) -> (B K, k, R)
        past = ops.reshape(ops.stop_gradient(state), (-1, self.step_size, self.inner_dim))
        step_size, new = self.step_size, x1
        if len(x.shape) == 2:  # a token depends only on the oldest of the k values
            step_size, new = 1, x1[:, None]  # (B K, R) -> (B K, 1, R)
        start = past[:, :step_size]
        if context.cache_mask is not None and step_size == 1:  # without a loop
            alpha, beta = (ops.convert_to_tensor(vector) for vector in (self.alpha, self.beta))
            c = one_step(start, alpha, beta, new)
        else:
            options = (step_size, context.mask, start, _implementation(context))
            c = swish_recurrence(new, self.alpha, self.beta, *options)
        states = ops.concatenate([past, ops.cast(c, "float32")], axis=1)  # (B K, k + L, R)
        state = ops.reshape(states[:, -self.step_size :], ops.shape(state))
        y = gated(ops.reshape(c, ops.shape(x1)), x2, *self._biases(), self.gate)
        return self._output(y, context), ops.stop_gradient(state)


def _implementation(context: Context) -> str:
    """Returns the implementation to use for the recurrence. Only training uses native kernels.

    Other calls run standard operations, so that any machine can export the model.
    """
    return "auto" if context.training else "stock"
