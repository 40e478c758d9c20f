"""Clipped LSTMs with a projection, in either direction, and stacks of them."""

import keras
from keras import ops

from macaron_tf.checks import check_count
from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.recording import Recording


class ProjectedLSTMCell(Recording, keras.layers.Layer):
    """One step of an LSTM whose output is a projection of its cells.

        i, f, g, o = x' + h U,   c = clip(sigmoid(f + 1) c + sigmoid(i) tanh(g))
        h = clip(P (sigmoid(o) tanh(c)))

    Args:
        units: cells.
        projection_dim: width of h.
        clip: greatest absolute value of a cell and of an output; None = no limit.

    Call arguments: `inputs (B, 4 units)`, x' = W x + b of the position; `states`, h
    `(B, projection_dim)` and c `(B, units)`. Returns h, and the new states.

    References: Sak et al. 2014, eq. 1-7 (without peepholes); clipping: Peters et al. 2018.
    """

    def __init__(self, units: int, projection_dim: int, clip: float | None = 3.0, **kwargs):
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self.projection_dim = check_count("projection_dim", projection_dim)
        self.clip = clip
        self.state_size = [projection_dim, units]
        self.output_size = projection_dim

    def build(self, inputs_shape):
        self.recurrent_kernel = self.add_weight(
            name="recurrent_kernel",
            shape=(self.projection_dim, 4 * self.units),
            initializer="glorot_uniform",
        )
        self.projection = self.add_weight(
            name="projection", shape=(self.units, self.projection_dim), initializer="glorot_uniform"
        )
        self.built = True

    def call(self, inputs, states, training=None):
        h, c = states
        gates = inputs + ops.matmul(h, self.recurrent_kernel)
        i, f, g, o = ops.split(gates, 4, axis=-1)  # (B, units) each
        # The forget gate starts open: 1 is added to it, as Jozefowicz et al. 2015 advise.
        c = self._clipped(ops.sigmoid(f + 1.0) * c + ops.sigmoid(i) * ops.tanh(g))
        h = self._clipped(ops.matmul(ops.sigmoid(o) * ops.tanh(c), self.projection))
        return h, [h, c]

    def _clipped(self, x):
        return x if self.clip is None else ops.clip(x, -self.clip, self.clip)


class ProjectedLSTM(Recording, keras.layers.Layer):
    """`ProjectedLSTMCell` over a sequence, from its beginning or from its end.

    Args:
        units, projection_dim, clip: of the cell.
        backwards: run from the last position to the first: each output depends on later positions.

    Call arguments: `x (B, L, D)`; `mask (B, L)` boolean, False at padding, through which the state
    passes unchanged. Returns `(B, L, projection_dim)`.
    """

    def __init__(
        self,
        units: int,
        projection_dim: int,
        clip: float | None = 3.0,
        backwards: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.units = units
        self.projection_dim = projection_dim
        self.clip = clip
        self.backwards = backwards

    def build(self, x_shape):
        policy = self.dtype_policy
        # W x + b of all positions in one product, before the loop.
        self.inner = keras.layers.Dense(4 * self.units, dtype=policy, name="inner")
        self.inner.build(x_shape)
        cell = ProjectedLSTMCell(
            self.units, self.projection_dim, self.clip, dtype=policy, name="cell"
        )
        self.loop = keras.layers.RNN(
            cell, return_sequences=True, go_backwards=self.backwards, dtype=policy, name="loop"
        )
        self.loop.build((*x_shape[:-1], 4 * self.units))
        self.built = True

    def call(self, x, mask=None):
        y = self.loop(self.inner(x), mask=mask)  # (B, L, projection_dim)
        return ops.flip(y, axis=1) if self.backwards else y

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.projection_dim)


class ProjectedLSTMStack(Recording, keras.layers.Layer):
    """Layers of one direction; each but the first adds its input to its output.

    Args:
        units, projection_dim, clip, backwards: of each layer, see `ProjectedLSTM`.
        dropout: on the input of each layer.

    Call arguments: `x (B, L, D)`; `mask (B, L)`. Returns a list of `num_layers` outputs
    `(B, L, projection_dim)`, the first layer's first.

    References: Peters et al. 2018 (ELMo), section 3.4.
    """

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
        self.supports_masking = True
        self.num_layers = check_count("num_layers", num_layers)
        self.units = units
        self.projection_dim = projection_dim
        self.clip = clip
        self.backwards = backwards
        self.dropout = dropout
        self.lstms = [
            ProjectedLSTM(
                units, projection_dim, clip, backwards, dtype=self.dtype_policy, name=f"lstm_{n}"
            )
            for n in range(num_layers)
        ]
        self.drops = [Dropout(dropout, dtype=self.dtype_policy) for _ in self.lstms]

    def build(self, x_shape):
        for lstm in self.lstms:
            lstm.build(x_shape)
            x_shape = lstm.compute_output_shape(x_shape)
        self.built = True

    def call(self, x, mask=None, training=None):
        outputs = []
        for lstm, drop in zip(self.lstms, self.drops, strict=True):
            y = lstm(drop(x, training=training), mask=mask)
            x = x + y if outputs else y
            outputs.append(x)
        return outputs

    def compute_output_shape(self, x_shape):
        return [(*x_shape[:-1], self.projection_dim)] * self.num_layers
