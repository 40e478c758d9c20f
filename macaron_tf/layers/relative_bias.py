"""T5's relative attention bias: what a distance adds to an attention score."""

import keras
import numpy as np
from keras import ops


def relative_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> np.ndarray:
    """The bucket of every distance, `(2 max_distance + 1,)` int32, from -max_distance up.

    Distance = key - query. Near distances have a bucket each (below num_buckets / 2 causal, below
    num_buckets / 4 to either side), farther ones share them logarithmically, and all from
    `max_distance` on share the last.

    References: Raffel et al. 2020 (T5), section 2.1.
    """
    distances = np.arange(-max_distance, max_distance + 1)
    buckets = np.zeros(distances.shape, "int32")
    count = num_buckets
    if bidirectional:
        count //= 2
        buckets += np.where(distances > 0, count, 0).astype("int32")
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)  # a later key counts as distance 0; the mask hides it
    exact = count // 2
    # In float32 as T5's own code: in float64 another side of a bucket's edge could be taken.
    ratio = np.log(np.maximum(far, 1).astype("float32") / np.float32(exact))
    scale = np.float32(np.log(max_distance / exact))
    logarithmic = exact + (ratio / scale * np.float32(count - exact)).astype("int32")
    return buckets + np.where(far < exact, far, np.minimum(logarithmic, count - 1)).astype("int32")


@keras.saving.register_keras_serializable(package="macaron_tf")
class RelativePositionBias(keras.layers.Layer):
    """A trained number for each head and bucket of distances, added to attention scores.

    Args:
        num_heads: H.
        num_buckets: rows of the table, 32 in T5.
        max_distance: distances from here on share a bucket, 128 in T5.
        bidirectional: half of the buckets are for keys after the query; False for causal
            attention, which has none.
        initializer: of the table `(num_buckets, H)`.

    Call arguments, by keyword: `query_length` T and `key_length` S, ints or scalars; `start`, the
    position of the first query, by default that of the last T of the S positions. Returns
    `(1, H, T, S)` float32.

    Raises:
        ValueError: too few buckets for the distances, or an odd number of them to split.

    References: Raffel et al. 2020 (T5), section 2.1; in BERT: Lei et al. 2022 (BERT-rab).
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        parts = 4 if bidirectional else 2
        if num_buckets < parts or num_buckets % parts or max_distance <= num_buckets // parts:
            raise ValueError(
                f"num_buckets={num_buckets} must be a multiple of {parts}, and "
                f"max_distance={max_distance} above num_buckets / {parts}"
            )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.initializer = keras.initializers.get(initializer)
        self._buckets = relative_buckets(num_buckets, max_distance, bidirectional)

    def build(self):
        self.table = self.add_weight(
            name="table",
            shape=(self.num_buckets, self.num_heads),
            initializer=self.initializer,
            autocast=False,
        )
        self.built = True

    def call(self, query_length, key_length, start=None):
        keys = ops.arange(key_length, dtype="int32")  # (S,)
        start = key_length - query_length if start is None else start
        queries = ops.arange(query_length, dtype="int32") + start  # (T,)
        distances = keys[None, :] - queries[:, None]  # (T, S)
        places = ops.clip(distances, -self.max_distance, self.max_distance) + self.max_distance
        buckets = ops.take(self._buckets, places, axis=0)  # (T, S)
        # A product with one-hot rows, whose gradient is a product too: that of a gather would add
        # T S rows into 32 one after another.
        one_hot = ops.one_hot(buckets, self.num_buckets, dtype="float32")  # (T, S, buckets)
        # (T, S, buckets) x (buckets, H) -> (H, T, S) -> (1, H, T, S)
        return ops.einsum("tsb,bh->hts", one_hot, self.table)[None]

    def compute_output_shape(self, query_length, key_length, start=None):
        return (1, self.num_heads, query_length, key_length)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "initializer": keras.initializers.serialize(self.initializer),
        }
