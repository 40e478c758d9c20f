"""Transformer-XL's attention: scores of content and distance, over a memory of earlier states."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from macaron_tf.checks import check_count, check_divisible
from macaron_tf.layers.attention import (
    HIDDEN_SCORE,
    MultiHeadAttention,
    broadcast_mask,
    causal_attention_mask,
    combine_masks,
)
from macaron_tf.layers.norms import Dropout


class Keys(NamedTuple):
    """What queries are compared with: S = M + L positions, M of them of the past.

    Attributes:
        key, value: `(B, H, S, d)`.
        distance: `(H, C, d)`, what stands for each distance, the greatest, S, first.
        segment_ids: `(B, S)` int or None.
        mask: which of them may be attended, broadcasting to `(B, H, T, S)`, or None.
    """

    key: Any
    value: Any
    distance: Any
    segment_ids: Any
    mask: Any


def sinusoids(distances, width: int, clamp_length: int | None = None):
    """All sines, then all cosines, of distances: `(C,) -> (C, D)` float32.

    Args:
        distances: `(C,)` int, query - key.
        width: D.
        clamp_length: greater ones count as it, on both sides; None = none does.

    References: Dai et al. 2019 (Transformer-XL), section 3.3; Vaswani et al. 2017, section 3.5.
    """
    if clamp_length is not None:
        distances = ops.clip(distances, -clamp_length, clamp_length)
    frequencies = 10_000.0 ** (-np.arange(0, width, 2, dtype="float64") / width)
    # In float32 whatever the policy: bfloat16 cannot tell distance 256 from 257.
    angles = ops.cast(distances, "float32")[:, None] * frequencies.astype("float32")  # (C, D/2)
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)[:, :width]


def aligned(scores, length):
    """Scores by distance, put where the keys stand: `(B, H, T, C) -> (B, H, T, S)`.

    Column c holds the distance S - c. Read as C rows of T, and without the first row, row i lacks
    T - i numbers more than row i - 1 did: what is left of it begins with key 0's distance. Where C
    is S + 1, the distances below 0 are missing, and what stands there must be hidden.

    References: Dai et al. 2019 (Transformer-XL), appendix B.
    """
    batch, heads, queries, columns = ops.shape(scores)
    scores = ops.reshape(scores, (batch, heads, columns, queries))[:, :, 1:]
    # (B, H, C - 1, T) -> (B, H, T, C - 1)
    return ops.reshape(scores, (batch, heads, queries, columns - 1))[..., :length]


class RelativeSteps:
    """The part of a `RelativeAttention` that goes on from the last tokens' keys and values."""

    def empty_cache(self, batch_size, beam_size: int, max_length: int | None):
        """Room for keys and values of the last M = `max_length` tokens, `(B, K, H, M, d)`.

        And which of them there are, `(B, K, M)`. With None it grows from nothing.

        Raises:
            ValueError: the layer compares segments, which decoding does not have.
        """
        if self.segments:
            raise ValueError("cached decoding with relative segments is not supported")
        size = max_length or 0
        shape = (batch_size, beam_size, self.num_heads, size, self._head_dim)
        seen = ops.zeros((batch_size, beam_size, size), "bool")
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype), seen

    def step(self, x, index, cache, position_bias=None):
        """Attends one new token of each hypothesis, see `MultiHeadAttention.step`.

        Args:
            x: `(B K, D)` or `(B, K, D)`.
            index: anything but None lets the oldest token go; None lengthens the cache.
            cache: from `empty_cache` or the last step. position_bias: added to the scores.
        """
        beams = cache[0].shape[1]
        # (B K, H d) -> (B, K, H, 1, d); (B K, 2 H d) -> (B, K, 2, H, 1, d)
        heads = (self.num_heads, 1, self._head_dim)
        query = ops.reshape(self.query(x), (-1, beams, *heads))
        new = ops.reshape(self.key_value(x), (-1, beams, 2, *heads))
        key, value = (
            ops.concatenate([held, part], axis=3)
            for held, part in zip(cache[:2], ops.unstack(new, 2, axis=2), strict=True)
        )  # (B, K, H, M + 1, d)
        seen = ops.concatenate([cache[2], ops.ones_like(query[:, :, 0, :, 0], "bool")], axis=2)
        distances = ops.arange(ops.shape(key)[3] - 1, -1, -1, dtype="int32")
        width = self.distance.kernel.shape[0]
        # The projection goes to the one query instead of all M + 1 distances.
        # (D, H d) -> (D, H, d) -> (H, d, D)
        kernel = ops.cast(ops.convert_to_tensor(self.distance.kernel), query.dtype)
        kernel = ops.reshape(kernel, (width, self.num_heads, self._head_dim))
        back = ops.add(query, ops.cast(self.distance_bias, query.dtype))
        back = ops.matmul(back, ops.transpose(kernel, (1, 2, 0)))  # (B, K, H, 1, D)
        if self.scaled:
            back = ops.multiply(back, ops.cast(self._head_dim**-0.5, back.dtype))
        encoding = ops.cast(sinusoids(distances, width, self.clamp_length), back.dtype)
        by_distance = ops.matmul(back, ops.transpose(encoding))  # (B, K, H, 1, M + 1)
        scores = ops.add(
            self._product(query, self.content_bias, key), ops.cast(by_distance, "float32")
        )  # (B, K, H, 1, M + 1)
        if position_bias is not None:
            length = ops.shape(key)[3]
            scores = ops.add(scores, position_bias(query_length=1, key_length=length))
        y = self._weighted(scores, seen[:, :, None, None, :], value, training=False)
        flat = (-1, *x.shape[1:-1], self.num_heads * self._head_dim)
        first = 0 if index is None else 1
        cache = (key[:, :, :, first:], value[:, :, :, first:], seen[:, :, first:])
        return self.output_projection(ops.reshape(y, flat)), cache

    def read(self, x, index, cache, position_bias=None):
        """Attends the next L tokens of each text at once, see `MultiHeadAttention.read`.

        Args:
            x: `(B, L, D)`.
            index, position_bias: as of `step`. cache: as of `step`, of K = 1.
        """
        past_keys, past_values, past_seen = (part[:, 0] for part in cache)
        new_keys, new_values = self._split_heads(self.key_value(x), 2)  # (B, H, L, d)
        key = ops.concatenate([past_keys, new_keys], axis=2)  # (B, H, M + L, d)
        value = ops.concatenate([past_values, new_values], axis=2)
        seen = ops.concatenate([past_seen, ops.ones_like(x[..., 0], "bool")], axis=1)  # (B, M + L)
        held, length = ops.shape(past_seen)[1], ops.shape(x)[1]
        mask, bias = broadcast_mask(seen), None
        if index is not None:
            # Each sees the M before it, as if the oldest had gone: token i from place i on.
            first = ops.arange(length, dtype="int32")[:, None]  # (L, 1)
            within = ops.arange(held + length, dtype="int32") >= first  # (L, M + L)
            mask = ops.logical_and(mask, within)
        if position_bias is not None:
            bias = position_bias(query_length=length, key_length=held + length)
        keys = Keys(key, value, self.distance_keys(held, length), None, mask)
        y = self.attend(x, keys, attention_bias=bias, training=False)
        if index is None:
            return y, tuple(part[:, None] for part in (key, value, seen))
        kept = (key[:, :, length:], value[:, :, length:], seen[:, length:])
        # Said to be as long as before, which a loop must know: (B, H, M, d) -> (B, 1, H, M, d)
        pairs = zip(kept, cache, strict=True)
        return y, tuple(ops.reshape(part, ops.shape(old)) for part, old in pairs)


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
