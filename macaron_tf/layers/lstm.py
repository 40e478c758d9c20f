"""LSTMs with projection and clipping, and stacks of such LSTMs (ELMo)."""

import keras
from keras import ops

from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.recording import Recording


class ProjectedLSTMCell(Recording, keras.layers.Layer):
    """LSTM cell with a projection from the cell's output to a narrower hidden state.

        i, f, g, o = x' + h U,   c = clip(sigmoid(f + 1) c + sigmoid(i) tanh(g))
        h = clip(P (sigmoid(o) tanh(c)))

    U is the recurrent matrix, and P is the projection matrix.

    Args:
        units: width of c.
        projection_dim: width of h.
        clip: maximum absolute value in c and h. `None` means no limit.

    Call arguments:
        inputs: `(B, 4 units)`, the projected inputs x' = W x + b.
        states: the pair of h `(B, projection_dim)` and c `(B, units)`. A call returns h and the new
            states `[h, c]`.

    References: Sak et al. 2014, eq. 1-7 (without peepholes); Peters et al. 2018 for clipping.
    """

    def __init__(self, units: int, projection_dim: int, clip: float | None = 3.0, **kwargs):
        super().__init__(**kwargs)
        self.state_size = [projection_dim, units]
        self.output_size = projection_dim

    def build(self, inputs_shape):
        # The default initializer of `add_weight` is Xavier-uniform.
        width, units = self.projection_dim, self.units
        self.recurrent_kernel = self.add_weight((width, 4 * units), name="recurrent_kernel")
        self.projection = self.add_weight((units, width), name="projection")

    def call(self, inputs, states, training=None):
        h, c = states
        gates = inputs + ops.matmul(h, self.recurrent_kernel)
        i, f, g, o = ops.split(gates, 4, axis=-1)  # (B, units) each
        # The added 1 opens the forget gate at the start of training (Jozefowicz et al. 2015).
        c = self._clipped(ops.sigmoid(f + 1.0) * c + ops.sigmoid(i) * ops.tanh(g))
        h = self._clipped(ops.matmul(ops.sigmoid(o) * ops.tanh(c), self.projection))
        return h, [h, c]

    def _clipped(self, x):
        return x if self.clip is None else ops.clip(x, -self.clip, self.clip)


class ProjectedLSTM(Recording, keras.layers.Layer):
    """LSTM layer with projection, which reads `(B, L, D)` forward or backward.

    Output t, of `(B, L, projection_dim)`, belongs to position t of the input in both directions.

    Args:
        units: width of the cell state.
        projection_dim: width of the hidden state.
        backwards: whether to read from the last position to the first, so that outputs depend on
            later positions.

    Call arguments:
        mask: boolean `(B, L)`, False at padding. Padding does not change the state.
    """

    input_rank = 3

    def __init__(
        self,
        units: int,
        projection_dim: int,
        clip: float | None = 3.0,
        backwards: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)

    def build(self, x_shape):
        # One matrix product computes W x + b for all positions before the loop.
        width, axes = 4 * self.units, ("embed", "mlp")
        self.inner = self.dense_part("inner", x_shape, width, "glorot_uniform", axes)
        cell = ProjectedLSTMCell(self.units, self.projection_dim, self.clip, name="cell")
        options = {"return_sequences": True, "go_backwards": self.backwards}
        shape = (*x_shape[:-1], width)
        self.loop = self.part(keras.layers.RNN, shape, cell, **options, name="loop")

    def call(self, x, mask=None):
        y = self.loop(self.inner(x), mask=mask)  # (B, L, projection_dim)
        return ops.flip(y, axis=1) if self.backwards else y


class ProjectedLSTMStack(Recording, keras.layers.Layer):
    """Stack of `ProjectedLSTM` layers in one direction, for `x (B, L, D)`.

    All layers except the first add their input to their output. A call returns the list of layer
    outputs, each `(B, L, projection_dim)`.

    References: Peters et al. 2018 (ELMo), section 3.4.
    """

    input_rank = 3

    def __init__(
        self,
        num_layers: int,
        units: int,
        projection_dim: int,
        clip: float | None = 3.0,
        backwards: bool = False,
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.lstms = [
            ProjectedLSTM(units, projection_dim, clip, backwards, name=f"lstm_{n}")
            for n in range(num_layers)
        ]
        self.drops = [Dropout(dropout) for _ in self.lstms]

    def build(self, x_shape):
        for lstm in self.lstms:
            lstm.build(x_shape)
            x_shape = (*x_shape[:-1], self.projection_dim)

    def call(self, x, mask=None, training=None):
        outputs = []
        for lstm, drop in zip(self.lstms, self.drops, strict=True):
            y = lstm(drop(x, training=training), mask=mask)
            x = x + y if outputs else y
            outputs.append(x)
        return outputs
