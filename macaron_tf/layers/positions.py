"""Position encodings that are added to token embeddings."""

import keras
import numpy as np
from keras import ops

from macaron_tf.checks import check_choice

SINUSOID_LAYOUTS = ("interleaved", "concatenated")


@keras.saving.register_keras_serializable(package="macaron_tf")
class SinusoidalPositions(keras.layers.Layer):
    """Adds fixed sines and cosines of the position, for any length.

    Channel pair i of position p holds `sin(p / max_wavelength^(2i/D))` and the cosine of the same
    angle.

    Args:
        max_wavelength: the longest wavelength over 2 pi.
        layout: `"interleaved"`: sin, cos, sin, cos, ... as Vaswani et al. and KerasHub;
            `"concatenated"`: all sines, then all cosines, as Marian.

    Call arguments: `x (B, L, D)` with an even D; `start_index`, the position of `x[:, 0]` (an
    int or a scalar tensor: cached decoding gives the position of its one token); or instead
    `position_ids (B, L)` int, where positions do not simply count up.

    Raises:
        ValueError: an odd D, or an unknown layout.

    References: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, max_wavelength: float = 10_000.0, layout: str = "interleaved", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.max_wavelength = max_wavelength
        self.layout = check_choice("layout", layout, SINUSOID_LAYOUTS)

    def build(self, input_shape):
        if input_shape[-1] % 2:
            raise ValueError(f"sinusoidal positions need an even hidden size, got {input_shape}")
        self.built = True

    def call(self, x, start_index=0, position_ids=None):
        half = x.shape[-1] // 2
        frequencies = self.max_wavelength ** (-np.arange(half, dtype="float64") / half)
        # Angles in float32 whatever the policy: bfloat16 cannot tell position 256 from 257.
        if position_ids is None:
            position_ids = ops.arange(ops.shape(x)[1], dtype="int32") + start_index  # (L,)
        positions = ops.cast(position_ids, "float32")[..., None]
        angles = positions * frequencies.astype("float32")  # (L, D/2) or (B, L, D/2)
        pair = [ops.sin(angles), ops.cos(angles)]
        if self.layout == "interleaved":
            # (..., L, D/2, 2) -> (..., L, D)
            shape = (*ops.shape(angles)[:-1], 2 * half)
            encoding = ops.reshape(ops.stack(pair, axis=-1), shape)
        else:
            encoding = ops.concatenate(pair, axis=-1)  # (..., L, D)
        return ops.add(x, ops.cast(encoding, x.dtype))

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "layout": self.layout,
        }


@keras.saving.register_keras_serializable(package="macaron_tf")
class LearnedPositions(keras.layers.Layer):
    """Adds one trained vector for each position, up to `max_length`.

    Args:
        max_length: the number of positions; a longer input is refused.
        initializer: of the table `(max_length, D)`.

    Call arguments: `x (B, L, D)`, `start_index` and `position_ids` (see `SinusoidalPositions`).

    Raises:
        ValueError: where L, known when the graph is made, exceeds `max_length`.

    References: Devlin et al. 2018 (BERT); Gehring et al. 2017.
    """

    def __init__(self, max_length: int, initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.max_length = max_length
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        self.table = self.add_weight(
            name="table",
            shape=(self.max_length, input_shape[-1]),
            initializer=self.initializer,
        )
        self.built = True

    def call(self, x, start_index=0, position_ids=None):
        length = ops.shape(x)[1]
        known = isinstance(length, int) and isinstance(start_index, int)
        if known and start_index + length > self.max_length:
            raise ValueError(
                f"a sequence of {start_index + length} positions is longer than the "
                f"{self.max_length} learned ones: shorten it or raise max_length"
            )
        if position_ids is None:
            position_ids = ops.arange(length, dtype="int32") + start_index  # (L,)
        return ops.add(x, ops.take(ops.convert_to_tensor(self.table), position_ids, axis=0))

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "initializer": keras.initializers.serialize(self.initializer),
        }
