"""gMLP layers, which replace attention by a gate with trained weights between positions."""

import keras
from keras import ops

from macaron_tf.errors import check_divisible
from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.mixer import Context, Mixer
from macaron_tf.layers.norms import Dropout, normalization
from macaron_tf.layers.recording import Recording
from macaron_tf.layers.rotary import RotaryAttention


class SpatialGating(Recording, keras.layers.Layer):
    """Spatial gating unit of gMLP: `u * (W LayerNorm(v) + b)`.

    The layer splits the input channels into two halves, u and v. The matrix W `(L, L)` mixes the
    positions of v. W is initialized uniformly within ±0.001 / L and b is initialized to 1, so the
    output is close to u at the start of training.

    Args:
        max_length: maximum number of positions L. An input with T positions uses the first T rows
            and columns of W.
        causal: whether position t sees only positions 0 to t. W is then lower triangular.
        toeplitz: whether W is a Toeplitz matrix, which has one weight per distance (2 L - 1
            weights) instead of one weight per pair of positions, as in the paper's language models.

    Call arguments:
        z: `(B, T, F)`. The output has shape `(B, T, F/2)`.
        mask: boolean `(B, T)`, False at padding. Padding does not affect other positions.
        addition: `(B, T, F/2)`, a term added to the gate.

    References: Liu et al. 2021, "Pay Attention to MLPs", section 2.1, and section 4 for Toeplitz
    matrices.
    """

    input_rank = 3

    def __init__(
        self,
        max_length: int,
        causal: bool = False,
        toeplitz: bool = False,
        epsilon: float = 1e-5,
        affine: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)

    def build(self, z_shape, addition_shape=None):
        half = check_divisible("input_channels", z_shape[-1], "number_of_halves", 2)
        options = {"epsilon": self.epsilon, "affine": self.affine, "name": "norm"}
        self.norm = self.part(normalization, (*z_shape[:-1], half), **options)
        length, bound = self.max_length, 1e-3 / self.max_length
        shape = (2 * length - 1,) if self.toeplitz else (length, length)
        initializer = keras.initializers.RandomUniform(-bound, bound)
        self.kernel = self.add_weight(shape, initializer, name="kernel")
        self.bias = self.add_weight((length,), "ones", name="bias")

    def call(self, z, mask=None, addition=None, training=None):
        length = ops.shape(z)[1]
        if isinstance(length, int) and length > self.max_length:
            raise ValueError(f"a sequence of {length} exceeds max_length={self.max_length}")
        u, v = ops.split(z, 2, axis=-1)  # (B, T, F/2) each
        v = self.norm(v, training=training)
        if mask is not None:
            v = ops.where(mask[:, :, None], v, ops.zeros_like(v))
        kernel, bias = ops.convert_to_tensor(self.kernel), ops.convert_to_tensor(self.bias)
        if self.toeplitz:
            kernel = toeplitz_matrix(kernel, self.max_length)  # (2 L - 1,) -> (L, L)
        kernel = kernel[:length, :length]  # (L, L) -> (T, T)
        if self.causal:
            kernel = ops.tril(kernel)
        # (T, T) x (B, T, F/2) -> (B, T, F/2). On CPUs, an einsum takes 1.5 times as long.
        gate = ops.matmul(kernel, v)
        # On TensorFlow, `ops.add` mistakes a column for a bias of the last axis if T = F/2.
        gate = gate + bias[:length, None]
        if addition is not None:
            gate = gate + addition
        return ops.multiply(u, gate)


def toeplitz_matrix(weights, length: int):
    """Builds `M[t, s] = w[L - 1 + s - t]`, `(L, L)` for L = `length`, from w `(2 L - 1,)`."""
    # The weights are repeated with period 2 L and then cut into rows of 2 L - 1, so that each row
    # starts one weight before the row above. Reshapes are used because their gradient is a sum over
    # the repeats. The gradient of a gather would add L^2 numbers one at a time.
    period = ops.pad(weights, [[0, 1]])  # (2 L,)
    rows = ops.reshape(ops.tile(period, length), (-1,))  # (2 L L,)
    rows = ops.reshape(rows[:-length], (length, 2 * length - 1))  # (L (2 L - 1),) -> (L, 2 L - 1)
    return rows[:, length - 1 :]


class GatedMLP(Mixer):
    """gMLP, which mixes channels and positions: `SpatialGating(activation(x U + b_u)) V + b_v`.

    Maps `(B, L, D)` to `(B, L, D)`. With `tiny_attention_dim`, the layer adds the output of one
    small attention head over x to the gate. The paper calls this variant aMLP.

    Args:
        feed_forward_dim: inner width F. U is `(D, F)` and V is `(F/2, D)`.
        toeplitz: whether the spatial weights form a Toeplitz matrix (see `SpatialGating`).
        tiny_attention_dim: width of the attention head, 64 or 128 in the paper. `None` means no
            attention.
        rotary_base: base of the rotary positions in the attention head. `None` means no rotary
            positions.
        kernel_initializer: initializer of all matrices except the spatial weights.

    References: Liu et al. 2021, "Pay Attention to MLPs", sections 2 and 4.3.
    """

    def __init__(
        self,
        feed_forward_dim: int,
        max_length: int,
        causal: bool = False,
        toeplitz: bool = False,
        tiny_attention_dim: int | None = None,
        rotary_base: float | None = None,
        activation="gelu",
        activation_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        epsilon: float = 1e-5,
        affine: bool = True,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.activation = activation_named(activation)
        tiny = ("tiny_attention_dim", "attention_dropout") if tiny_attention_dim else ()
        rotary = ("positions", "rotary_base") if tiny and rotary_base else ()
        self.reads = ("activation", "activation_dropout", "toeplitz", *tiny, *rotary)

    def build(self, input_shape):
        *outer_shape, hidden_dim = input_shape
        options = {"activation": self.activation, "axes": ("embed", "mlp"), "parts": 2}
        self.inner = self.dense_part("inner", input_shape, self.feed_forward_dim, **options)
        self.drop = Dropout(self.activation_dropout)
        inner_shape = (*outer_shape, self.feed_forward_dim)
        arguments = (self.max_length, self.causal, self.toeplitz, self.epsilon, self.affine)
        self.gating = self.part(SpatialGating, inner_shape, *arguments, name="gating")
        self.tiny_attention = None
        if self.tiny_attention_dim is not None:
            rotary = {"rotary_base": self.rotary_base} if self.rotary_base else {}
            self.tiny_attention = self.part(
                RotaryAttention if rotary else MultiHeadAttention,
                input_shape,
                num_heads=1,
                head_dim=self.tiny_attention_dim,
                dropout=self.attention_dropout,
                causal=self.causal,
                output_dim=self.feed_forward_dim // 2,
                kernel_initializer=self.kernel_initializer.clone(),
                name="tiny_attention",
                **rotary,
            )
        gated_shape = (*outer_shape, self.feed_forward_dim // 2)
        self.outer = self.dense_part("outer", gated_shape, hidden_dim, axes=("mlp", "embed"))

    def mix(self, x, context: Context, state=None):
        mask, training, addition = context.mask, context.training, None
        if self.tiny_attention:
            attention_context = Context(mask=mask, positions=context.positions, training=training)
            addition, _ = self.tiny_attention.mix(x, attention_context)  # (B, L, F/2)
        z = self.drop(self.inner(x, training=training), training=training)  # (B, L, F)
        y = self.gating(z, mask=mask, addition=addition, training=training)  # (B, L, F/2)
        return self.outer(y, training=training), None  # (B, L, D)
