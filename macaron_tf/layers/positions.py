"""Sinusoidal and learned position encodings, and T5's relative position bias."""

import keras
import numpy as np
from keras import ops

from macaron_tf.errors import check_choice
from macaron_tf.layers.recording import Recording


class SinusoidalPositions(Recording, keras.layers.Layer):
    """Sinusoidal position encodings, which the layer adds to `x (B, L, D)`.

    D must be even. At position p, channel pair i receives `sin(p / 10000^(2i/D))` and the cosine of
    the same angle. The sequence length is not limited.

    Args:
        layout: order of the channels. `"interleaved"` alternates sines and cosines (Vaswani et al.,
            KerasHub). `"concatenated"` puts all sines before all cosines (Marian).

    Call arguments:
        position_ids: int `(B, L)` or `(1, L)`, 0 to L - 1 by default. In cached decoding, the value
            is the position of the current token.

    References: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, layout: str = "interleaved", **kwargs):
        super().__init__(**kwargs)
        check_choice("layout", layout, ("interleaved", "concatenated"))

    def build(self, input_shape):
        if input_shape[-1] % 2:
            raise ValueError(f"hidden_dim={input_shape[-1]} must be even for sinusoidal positions")

    def call(self, x, position_ids=None):
        half = x.shape[-1] // 2
        frequencies = 10_000.0 ** (-np.arange(half, dtype="float64") / half)
        # Angles are float32 under any dtype policy, because bfloat16 rounds position 257 to 256.
        if position_ids is None:
            position_ids = ops.arange(ops.shape(x)[1], dtype="int32")  # (L,)
        positions = ops.cast(position_ids, "float32")[..., None]
        angles = positions * frequencies.astype("float32")  # (L, D/2) or (B, L, D/2)
        pair = [ops.sin(angles), ops.cos(angles)]
        if self.layout == "interleaved":
            # (..., L, D/2, 2) -> (..., L, D)
            shape = (*ops.shape(angles)[:-1], 2 * half)
            encoding = ops.reshape(ops.stack(pair, axis=-1), shape)
        else:
            encoding = ops.concatenate(pair, axis=-1)  # (..., L, D)
        return x + ops.cast(encoding, x.dtype)


class LearnedPositions(Recording, keras.layers.Layer):
    """Learned position embeddings, which the layer adds to `x (B, L, D)`.

    Args:
        initializer: initializer of the table `(offset + max_length, D)`.
        offset: number of unused rows at the beginning of the table, as in RoBERTa and BART.

    Call arguments:
        position_ids: int `(B, L)` or `(1, L)`, 0 to L - 1 by default.

    References: Devlin et al. 2018 (BERT); Gehring et al. 2017.
    """

    def __init__(self, max_length: int, initializer="glorot_uniform", offset: int = 0, **kwargs):
        super().__init__(**kwargs)

    def build(self, input_shape):
        shape = (self.offset + self.max_length, input_shape[-1])
        self.table = self.add_weight(shape=shape, initializer=self.initializer, name="table")

    def call(self, x, position_ids=None):
        if position_ids is None:
            length = ops.shape(x)[1]
            if isinstance(length, int) and length > self.max_length:
                raise ValueError(f"a sequence of {length} exceeds max_length={self.max_length}")
            position_ids = ops.arange(length, dtype="int32")  # (L,)
        position_ids = position_ids + self.offset if self.offset else position_ids
        vectors = ops.take(ops.convert_to_tensor(self.table), position_ids, axis=0)
        return x + ops.cast(vectors, x.dtype)


_BUCKETS, _MAX_DISTANCE = 32, 128  # of T5's relative position bias


def relative_buckets(bidirectional: bool) -> np.ndarray:
    """Computes T5's bucket index for each distance from -128 to 128, `(257,)` int32.

    A distance is the key position minus the query position. Distances below 8 in absolute value
    (causal: 16) have separate buckets. Larger distances share buckets of equal width on a
    logarithmic scale, and all from 128 on the last of the 32 buckets. Unless `bidirectional`, the
    bucket of later keys is 0.

    References: Raffel et al. 2020 (T5), section 2.1.
    """
    distances = np.arange(-_MAX_DISTANCE, _MAX_DISTANCE + 1)
    buckets = np.zeros(distances.shape, "int32")
    count = _BUCKETS
    if bidirectional:
        count //= 2
        buckets += np.where(distances > 0, count, 0).astype("int32")
        magnitudes = np.abs(distances)
    else:
        # Later keys get distance 0, but the mask hides later keys.
        magnitudes = np.maximum(-distances, 0)
    num_exact = count // 2
    # T5's code uses float32. In float64, a distance could round to another bucket.
    ratio = np.log(np.maximum(magnitudes, 1).astype("float32") / np.float32(num_exact))
    scale = np.float32(np.log(_MAX_DISTANCE / num_exact))
    logarithmic = num_exact + (ratio / scale * np.float32(count - num_exact)).astype("int32")
    logarithmic = np.minimum(logarithmic, count - 1)
    return buckets + np.where(magnitudes < num_exact, magnitudes, logarithmic).astype("int32")


class RelativePositionBias(Recording, keras.layers.Layer):
    """T5's relative bias of attention scores: a trained number per head and distance bucket.

    Args:
        bidirectional: whether half of the buckets are for keys after the query. Causal attention
            has no such keys.
        initializer: initializer of the table `(32, H)`, a row for each of the `relative_buckets`.

    Call arguments:
        query_length: number of queries T, an int or a scalar tensor.
        key_length: number of keys S, an int or a scalar tensor.
        start: position of the first query. By default, the queries are the last T of the S
            positions.

    The output is float32 `(1, H, T, S)`.

    References: Raffel et al. 2020 (T5), section 2.1; Lei et al. 2022 for the use in BERT
    (BERT-rab).
    """

    def __init__(self, num_heads: int, bidirectional: bool = True, initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self._buckets = relative_buckets(bidirectional)

    def build(self):
        shape, options = (_BUCKETS, self.num_heads), {"autocast": False, "decays": False}
        self.table = self.add_weight(shape, self.initializer, name="table", **options)

    def call(self, query_length, key_length, start=None):
        keys = ops.arange(key_length, dtype="int32")  # (S,)
        start = key_length - query_length if start is None else start
        queries = ops.arange(query_length, dtype="int32") + start  # (T,)
        distances = keys[None, :] - queries[:, None]  # (T, S)
        indices = ops.clip(distances, -_MAX_DISTANCE, _MAX_DISTANCE) + _MAX_DISTANCE
        buckets = ops.take(self._buckets, indices, axis=0)  # (T, S)
        # A one-hot product, because the gradient of a gather adds T S rows one at a time.
        one_hot = ops.one_hot(buckets, _BUCKETS, dtype="float32")  # (T, S, buckets)
        # (T, S, buckets) x (buckets, H) -> (H, T, S) -> (1, H, T, S)
        # tf2onnx would apply `[None]` at the wrong axis after the transposition.
        return ops.expand_dims(ops.einsum("tsb,bh->hts", one_hot, self.table), 0)
