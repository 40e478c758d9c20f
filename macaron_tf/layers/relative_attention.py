"""Transformer-XL's attention: scores of content and distance, over a memory of earlier states."""

import keras
from keras import ops

from macaron_tf.checks import check_count, check_divisible
from macaron_tf.layers.attention import HIDDEN_SCORE, MultiHeadAttention
from macaron_tf.layers.attention_masks import (
    broadcast_mask,
    causal_attention_mask,
    combine_masks,
)
from macaron_tf.layers.distances import aligned, sinusoids
from macaron_tf.layers.dropout import Dropout
from macaron_tf.layers.relative_keys import Keys
from macaron_tf.layers.relative_steps import RelativeSteps


@keras.saving.register_keras_serializable(package="macaron_tf")
class RelativeAttention(RelativeSteps, MultiHeadAttention):
    """Attention whose scores know contents and distances, and no position.

    With queries q_i, keys k_j and r_(i-j), a projection of the sinusoid of the distance, the score
    is `((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(d)`: the paper's terms (a) and (c), (b) and (d).
    The distances are aligned by a reshape (its appendix B), so that shapes are static.

    Args:
        clamp_length: distances beyond it count as it; None = none does.
        segments: also compare segments: `(q_i + s) e` with one trained vector e for keys of the
            query's own segment and one for all others (XLNet). The past is of segment 0.
        The others: as `MultiHeadAttention`, without `cross`. The papers' have no biases:
            `use_bias=False`.

    Call arguments: as self-attention's, and `segment_ids (B, T)` int with `segments`, 0 everywhere
    by default. Returns `(B, T, D)`.

    Over segments of a text `with_past` goes on from the `past (B, M, D)` of `empty_past`: the M
    positions before x as this layer read them, through which no gradient flows.

    Cached decoding: of the last M = `max_length` tokens; M given, each step costs the same.

    Raises:
        ValueError: `cross`, or `clamp_length` below 1.

    References: Dai et al. 2019 (Transformer-XL), sections 3.2 and 3.3; segments: Yang et al. 2019
    (XLNet), section 2.5.
    """

    def __init__(self, *args, clamp_length: int | None = None, segments: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        if self.cross:
            raise ValueError("relative attention is over its own sequence: cross must be False")
        if clamp_length is not None:
            check_count("clamp_length", clamp_length)
        self.clamp_length = clamp_length
        self.segments = segments
        self.content_bias = self.distance_bias = None  # u and v

    def share_biases(self, other: "RelativeAttention") -> None:
        """Takes another, built layer's u and v instead of its own, before `build`."""
        self.content_bias, self.distance_bias = other.content_bias, other.distance_bias

    def build(self, x_shape):
        hidden_dim = x_shape[-1]
        self._head_dim = self.head_dim or check_divisible(
            "hidden_dim", hidden_dim, "num_heads", self.num_heads
        )
        width = self.num_heads * self._head_dim
        self.query = self._projection("query", width)
        self.key_value = self._projection("key_value", 2 * width)
        self.distance = self._projection("distance", width)
        self.distance.use_bias = False
        self.output_projection = self._projection(
            "output", self.output_dim or hidden_dim, self.output_initializer
        )
        for layer in (self.query, self.key_value, self.distance):
            layer.build(x_shape)
        self.output_projection.build((*x_shape[:-1], width))
        if self.content_bias is None:
            self.content_bias = self._vectors("content_bias")
            self.distance_bias = self._vectors("distance_bias")
        if self.segments:
            self.segment_bias = self._vectors("segment_bias")
            self.segment_vectors = self._vectors("segment_vectors", 2)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.built = True

    def _vectors(self, name: str, *rows: int) -> keras.Variable:
        """A vector of each head, `(H, 1, d)`, or some, `(H, rows, d)`."""
        return self.add_weight(
            name=name,
            shape=(self.num_heads, *(rows or (1,)), self._head_dim),
            initializer=self.kernel_initializer.clone(),
        )

    def call(
        self,
        x,
        attention_mask=None,
        mask=None,
        x_mask=None,
        attention_bias=None,
        segment_ids=None,
        training=None,
    ):
        keys = self.keys(x, mask=combine_masks(mask, x_mask), segment_ids=segment_ids)
        return self.attend(x, keys, attention_mask, attention_bias, segment_ids, training=training)

    def empty_past(self, batch_size, memory_length: int):
        """Room for the M positions before a text: `(B, M, D)` of zeros, to be masked."""
        return ops.zeros((batch_size, memory_length, self.query.kernel.shape[0]))

    def with_past(
        self, x, past, past_mask=None, mask=None, attention_mask=None, segment_ids=None,
        training=None,
    ):  # fmt: skip
        """The next positions of a text.

        Args:
            x: `(B, L, D)`.
            past: `(B, M, D)`, from `empty_past` or the last call.
            past_mask: `(B, M)` boolean, which positions of the past there are.
            mask: `(B, L)` boolean, False at padding.
            attention_mask: boolean over x alone, as of `call`; the past is always seen.
            segment_ids: `(B, L)` int.

        Returns:
            `(B, L, D)`, and the new past, `(B, M, D)`: the last of past and x together.
        """
        keys = self.keys(x, past, past_mask, mask, segment_ids)
        y = self.attend(x, keys, attention_mask, segment_ids=segment_ids, training=training)
        return y, self.new_past(x, past)

    def new_past(self, x, past):
        """The last M positions of past and x."""
        both = ops.concatenate([past, ops.cast(x, past.dtype)], axis=1)  # (B, M + L, D)
        return ops.stop_gradient(both[:, ops.shape(x)[1] :])

    def keys(self, x, past=None, past_mask=None, mask=None, segment_ids=None) -> Keys:
        """What queries see of `x (B, L, D)` and the past before it; masks as of `with_past`."""
        length = ops.shape(x)[1]
        held = 0 if past is None else past.shape[1]
        mask = broadcast_mask(mask)
        if held:
            past = ops.stop_gradient(ops.cast(past, self.compute_dtype))
            x = ops.concatenate([past, ops.cast(x, self.compute_dtype)], axis=1)  # (B, S, D)
            mask = _widened(mask, held)
            if past_mask is not None:
                after = ops.ones((ops.shape(past_mask)[0], length), "bool")
                mask = combine_masks(mask, ops.concatenate([past_mask, after], axis=1))
            if segment_ids is not None:
                segment_ids = ops.pad(segment_ids, ((0, 0), (held, 0)))  # (B, S)
        key, value = self._split_heads(self.key_value(x), 2)
        return Keys(key, value, self.distance_keys(held, length), segment_ids, mask)

    def distance_keys(self, held, length):
        """What stands for each distance from L queries to S = M + L keys, `(H, C, d)`.

        Args:
            held: M. length: L.
        """
        last = 0 if self.causal else 1 - length
        distances = ops.arange(held + length, last - 1, -1, dtype="int32")  # (C,)
        width = self.distance.kernel.shape[0]
        # (C, H d) -> (C, H, d) -> (H, C, d)
        distance = self.distance(sinusoids(distances, width, self.clamp_length))
        distance = ops.reshape(distance, (-1, self.num_heads, self._head_dim))
        return ops.transpose(distance, (1, 0, 2))

    def attend(
        self, x, keys: Keys, attention_mask=None, attention_bias=None, segment_ids=None,
        places=None, training=None,
    ):  # fmt: skip
        """What queries at x take from keys whose last T positions are theirs: `(B, T, D)`.

        Args:
            x: `(B, T, D)`.
            keys: from `keys`.
            attention_mask: boolean over those T positions, as of `call`.
            attention_bias: added to the scores.
            segment_ids: `(B, T)` int, of the queries.
            places: where x is P of the T positions only, which, `(B, P, T)` one-hot.
        """
        length = ops.shape(x)[1] if places is None else ops.shape(places)[2]
        total = ops.shape(keys.key)[2]
        mask = broadcast_mask(attention_mask)
        if self.causal:
            mask = combine_masks(mask, causal_attention_mask(length))
        if mask is not None:
            mask = _widened(mask, total - length)
        mask = combine_masks(mask, keys.mask)
        query = self._split_heads(self.query(x), 1)[0]  # (B, H, T, d)
        if places is not None:
            places = ops.cast(places, query.dtype)[:, None]  # (B, 1, P, T)
            query = ops.matmul(ops.swapaxes(places, -1, -2), query)  # (B, H, P, d) -> (B, H, T, d)
        scores = self._product(query, self.content_bias, keys.key)  # (B, H, T, S)
        by_distance = self._product(query, self.distance_bias, keys.distance)  # (B, H, T, C)
        scores = ops.add(scores, aligned(by_distance, total))
        if self.segments:
            scores = ops.add(scores, self._segment_scores(query, segment_ids, keys))
        if attention_bias is not None:
            scores = ops.add(scores, ops.cast(attention_bias, "float32"))
        y = self._weighted(scores, mask, keys.value, training)  # (B, H, T, d)
        return self._merge_heads(y if places is None else ops.matmul(places, y))

    def _product(self, query, bias, key):
        """`(query + bias) key^T / sqrt(d)` in float32: `(..., T, d) x (..., S, d)`."""
        query = ops.add(query, ops.cast(bias, query.dtype))
        if self.scaled:
            query = ops.multiply(query, ops.cast(self._head_dim**-0.5, query.dtype))
        return ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")

    def _segment_scores(self, query, segment_ids, keys: Keys):
        vectors = ops.cast(self.segment_vectors, query.dtype)  # (H, 2, d)
        both = self._product(query, self.segment_bias, vectors)  # (B, H, T, 2)
        if segment_ids is None:
            return both[..., :1]
        own, theirs = segment_ids[:, None, :, None], keys.segment_ids[:, None, None, :]
        return ops.where(ops.equal(own, theirs), both[..., :1], both[..., 1:])

    def _weighted(self, scores, mask, value, training):
        if mask is not None:
            scores = ops.add(scores, ops.where(mask, 0.0, HIDDEN_SCORE))
        weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
        return ops.matmul(self.drop(weights, training=training), value)  # (..., T, d)

    def get_config(self):
        return {
            **super().get_config(),
            "clamp_length": self.clamp_length,
            "segments": self.segments,
        }


def _widened(mask, held):
    """A mask `(..., L)` with the past before it, all of it seen: `(..., held + L)`."""
    if mask is None or (isinstance(held, int) and not held):
        return mask
    before = ops.ones((*ops.shape(mask)[:-1], held), "bool")
    return ops.concatenate([before, mask], axis=-1)
