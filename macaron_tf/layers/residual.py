"""The one place where normalization, dropout, step size and the skip connection live."""

import keras
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.layers.norms import Dropout, normalization
from macaron_tf.layers.recording import Recording
from macaron_tf.layers.scheme import SOLVERS


class Residual(Recording, keras.layers.Layer):
    """One step of size `step_size` through a sub-layer: Euler's is `x + step_size * f(x)`.

    Pre-norm: `x + step_size * Dropout(sublayer(LayerNorm(x)))`; post-norm:
    `LayerNorm(x + step_size * Dropout(sublayer(x)))`. Dropout comes before the step size, as in
    the code released with Macaron Net. Other solvers evaluate f, the sub-layer with pre-norm and
    dropout, at several points; post-norm normalizes the step's end only.

    Branches beside each other are moved from one x, and the first one's norm ends the step:
    `LayerNorm(x + h_1 f_1(x) + h_2 f_2(x))` with post-norm.

    Args:
        sublayer: the layer that mixes tokens or channels, `(B, L, D) -> (B, L, D)`.
        step_size: the ODE solver's step; 1 for a Transformer, 1/2 for Macaron's feed-forwards.
        dropout: probability of dropping an element of the sub-layer's output, 0 to 1.
        norm: `"pre"`, `"post"`, or `"none"` where x is normalized already.
        epsilon, affine, norm_type: of the norm, see `normalization`.
        solver: a name of `macaron_tf.layers.scheme.SOLVERS`.
        layer_norm: a norm to share with another step through the sub-layer, or with a branch.

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
        solver: str = "euler",
        layer_norm: keras.layers.Layer | None = None,
        **kwargs,
    ):
        # The sub-layer casts its own arguments: a bias on scores stays float32.
        super().__init__(autocast=False, **kwargs)
        self.sublayer = sublayer
        check_choice("norm", norm, ("pre", "post", "none"))
        check_choice("solver", solver, tuple(SOLVERS))
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
        return self.solve(x, lambda y: self.sublayer(y, training=training, **kwargs), training)

    @property
    def evaluations(self) -> int:
        """The number of evaluations of the sub-layer in a step."""
        return len(SOLVERS[self.solver])

    def solve(self, x, sublayer, training=None):
        """x `(B, L, D)`, moved one step; `sublayer` is called once an evaluation, in order."""
        return self.end(self.move(x, x, self.start(x, training), sublayer, training), training)

    def start(self, x, training=None):
        """The sub-layer's input at x."""
        return self.layer_norm(x, training=training) if self.norm == "pre" else x

    def end(self, x, training=None):
        """The output of a step that moved to x."""
        return self.layer_norm(x, training=training) if self.norm == "post" else x

    def move(self, moved, x, y, sublayer, training=None):
        """`moved`, which other branches may have changed, and this step from x.

        Args:
            y: the sub-layer's input at x, see `start`.
            sublayer: is called once an evaluation, in order.
        """
        *inner, last = SOLVERS[self.solver]
        slopes = []
        for row in inner:
            slopes.append(self.drop(sublayer(y), training=training))
            y = self.start(self._moved(x, slopes, row), training)
        slopes.append(self.drop(sublayer(y), training=training))
        return self._moved(moved, slopes, last)

    def _moved(self, x, slopes, weights):
        """x, moved along the weighed slopes."""
        for slope, weight in zip(slopes, weights, strict=True):
            step = self.step_size * weight
            if step == 0.0:
                continue
            if step != 1.0:
                slope = ops.multiply(slope, step)
            x = ops.cast(x, slope.dtype) + slope  # see `_weighted` on `ops.add`
        return x
