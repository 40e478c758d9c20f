"""The one place where normalization, dropout, step size and the skip connection live."""

import keras
from keras import ops

from macaron_tf.checks import check_choice
from macaron_tf.layers.norms import Dropout, normalization
from macaron_tf.layers.recording import Recording


class Residual(Recording, keras.layers.Layer):
    """One Euler step of size `step_size` through a sub-layer: `x + step_size * f(x)`.

    Pre-norm: `x + step_size * Dropout(sublayer(LayerNorm(x)))`; post-norm:
    `LayerNorm(x + step_size * Dropout(sublayer(x)))`. Dropout comes before the step size, as in
    the code released with Macaron Net.

    Args:
        sublayer: the layer that mixes tokens or channels, `(B, L, D) -> (B, L, D)`.
        step_size: the ODE solver's step; 1 for a Transformer, 1/2 for Macaron's feed-forwards.
        dropout: probability of dropping an element of the sub-layer's output, 0 to 1.
        epsilon, affine, norm_type: of the norm, see `normalization`.

    Call arguments: `x (B, L, D)`, and by keyword the sub-layer's, such as `memory` and
    `attention_mask`. Returns `(B, L, D)`.

    References: Lu et al. 2019, "Understanding and Improving Transformer From a Multi-Particle
    Dynamic System Point of View", eq. 17-19; pre- and post-norm: Xiong et al. 2020.
    """

    def __init__(
        self,
        sublayer: keras.layers.Layer,
        step_size: float = 1.0,
        dropout: float = 0.0,
        norm: str = "pre",
        epsilon: float = 1e-5,
        affine: bool = True,
        norm_type: str = "layer",
        **kwargs,
    ):
        # The sub-layer casts its own arguments: a bias on scores stays float32.
        super().__init__(autocast=False, **kwargs)
        self.sublayer = sublayer
        check_choice("norm", norm, ("pre", "post"))
        self.layer_norm = normalization(norm_type, epsilon, affine, name="norm")
        self.drop = Dropout(dropout, name="dropout")

    def build(self, x_shape, memory_shape=None):
        self.layer_norm.build(x_shape)
        if not self.sublayer.built:
            self.sublayer.build(x_shape, *([memory_shape] if memory_shape else []))

    def call(self, x, memory=None, training=None, **kwargs):
        if memory is not None:
            kwargs["memory"] = memory
        y = self.sublayer(self.before(x, training), training=training, **kwargs)
        return self.after(x, y, training)

    def before(self, x, training=None):
        """The sub-layer's input: x, normalized if the norm comes before it."""
        return self.layer_norm(x, training=training) if self.norm == "pre" else x

    def after(self, x, y, training=None):
        """x, moved one step along the sub-layer's output y."""
        y = self.drop(y, training=training)
        if self.step_size != 1.0:
            y = ops.multiply(y, ops.cast(self.step_size, y.dtype))
        y = ops.add(ops.cast(x, y.dtype), y)
        return y if self.norm == "pre" else self.layer_norm(y, training=training)
