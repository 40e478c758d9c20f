"""Residual connections with norm, dropout, step size and ODE solver."""

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.layers.norms import Dropout, normalization
from macaron_tf.layers.recording import Recording
from macaron_tf.layers.scheme import SOLVERS


class Residual(Recording, keras.layers.Layer):
    """Residual connection around a sub-layer f, computed as one step of an ODE solver.

    Euler's step is `x + step_size * f(x)`. With pre-norm, the output is `x + step_size *
    Dropout(sublayer(LayerNorm(x)))`. With post-norm, the output is `LayerNorm(x + step_size *
    Dropout(sublayer(x)))`. With a norm of the output, it is `x + step_size *
    Dropout(LayerNorm(sublayer(x)))`. Dropout precedes the step size, as in Macaron Net's released
    code. Other solvers evaluate f, including its norms and dropout, at several points. Post-norm
    normalizes only the end of the step.

    Parallel branches start from the same x. They share the norm of the first branch, except with
    `norm="output"`, where each branch has its own. With post-norm, the output of two branches is
    `LayerNorm(x + h_1 f_1(x) + h_2 f_2(x))`.

    Args:
        sublayer: layer that mixes tokens or channels, `(B, L, D) -> (B, L, D)`.
        step_size: step size of the ODE solver, 1 in a Transformer and 1/2 for Macaron's
            feed-forward layers.
        dropout: dropout rate of the sub-layer's output.
        norm: `"pre"`, `"post"`, `"output"` or `"none"`. `"none"` is for an x that is already
            normalized.
        norm_type: type of the norm (see `normalization`).
        solver: name of the ODE solver, a key of `macaron_tf.layers.scheme.SOLVERS`.
        layer_norm: norm shared with a parallel branch or with another step through the same
            sub-layer. `None` means that the layer creates a norm.

    The call arguments after `x (B, L, D)` are the sub-layer's, such as `memory`.

    References: Lu et al. 2019, "Understanding and Improving Transformer From a Multi-Particle
    Dynamic System Point of View", eq. 17-19; Xiong et al. 2020 for pre-norm and post-norm.
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
        solver: str = "euler",
        layer_norm: keras.layers.Layer | None = None,
        **kwargs,
    ):
        # The sub-layer casts its own arguments, so that an attention bias stays float32.
        super().__init__(autocast=False, **kwargs)
        self.sublayer = sublayer
        check_choice("norm", norm, ("pre", "post", "output", "none"))
        self.layer_norm = None
        if norm != "none":
            self.layer_norm = layer_norm or normalization(norm_type, epsilon, affine, name="norm")
        self.drop = Dropout(dropout, name="dropout")

    def build(self, x_shape, memory_shape=None):
        if self.layer_norm and not self.layer_norm.built:
            self.layer_norm.build(x_shape)
        if not self.sublayer.built:
            self.sublayer.build(x_shape, *([memory_shape] if memory_shape else []))

    def call(self, x, memory=None, training=None, **kwargs):
        if memory is not None:
            kwargs["memory"] = memory
        y = self.normalized(x, "pre", training)
        x = self.move(x, x, y, lambda y: self.sublayer(y, training=training, **kwargs), training)
        return self.normalized(x, "post", training)

    def normalized(self, x, place: str, training=None):
        """Returns `LayerNorm(x)` if the norm is at `place`, such as `"pre"`, and x otherwise."""
        return self.layer_norm(x, training=training) if self.norm == place else x

    def move(self, moved, x, y, sublayer, training=None):
        """Adds the ODE solver's step from x `(B, L, D)` to `moved`, x plus earlier branches' steps.

        `y` is the sub-layer's input at x: `LayerNorm(x)` with pre-norm and x otherwise. The solver
        calls `sublayer`, a function of y, once per evaluation.
        """
        tableau, slopes = SOLVERS[self.solver], []
        for index, weights in enumerate(tableau, 1):
            slope = self.normalized(sublayer(y), "output", training)
            slopes.append(self.drop(slope, training=training))
            is_last = index == len(tableau)
            y = moved if is_last else x
            # Add `step_size` times the weighted sum of the slopes.
            for slope, weight in zip(slopes, weights, strict=True):
                step = self.step_size * weight
                if step == 0.0:
                    continue
                if step != 1.0:
                    slope = ops.multiply(slope, step)
                # `MultiHeadAttention._weighted_sum` explains why this is not `ops.add`.
                y = ops.cast(y, slope.dtype) + slope
            y = y if is_last else self.normalized(y, "pre", training)
        return y
