"""Transformer-XL's relative attention with a memory of earlier segments."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from macaron_tf.layers import attention
from macaron_tf.layers.attention import MultiHeadAttention, broadcast_mask, combine_masks
from macaron_tf.layers.mixer import Context


class Segment(NamedTuple):
    """Memory of the M positions before a segment. No gradient flows through the memory."""

    hidden: Any  # (B, M, D), inputs of the layer at the M positions
    seen: Any  # (B, M) boolean, False before the start of the text


class Window(NamedTuple):
    """Decoding state: keys and values of the last M tokens for K hypotheses."""

    key: Any  # (B, K, H, M, d)
    value: Any
    seen: Any  # (B, K, M) boolean, False before the start of the text


class Keys(NamedTuple):
    """Keys and values at S = M + T positions: M positions in the memory and T positions of x."""

    key: Any  # (B, H, S, d)
    value: Any
    distance: Any  # (H, C, d) or (B, H, C, d), vectors of C distances in descending order from S
    segment_ids: Any  # (B, S) int or None
    mask: Any  # True = attend, broadcasting to (B, H, T, S), or None


def sinusoids(distances, width: int, clamp_length: int | None = None):
    """Encodes distances by all sines, then all cosines: `(C,)` int to `(C, width)` float32.

    A distance is the query position minus the key position. Distances above `clamp_length` are
    clipped.

    References: Dai et al. 2019 (Transformer-XL), section 3.3; Vaswani et al. 2017, section 3.5.
    """
    if clamp_length is not None:
        distances = ops.clip(distances, -clamp_length, clamp_length)
    frequencies = 10_000.0 ** (-np.arange(0, width, 2, dtype="float64") / width)
    # Angles are float32 under any dtype policy, because bfloat16 rounds distance 257 to 256.
    angles = ops.cast(distances, "float32")[:, None] * frequencies.astype("float32")  # (C, D/2)
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)[:, :width]


def align_with_keys(scores, length):
    """Aligns scores per distance with the keys: `(B, H, T, C) -> (B, H, T, S)`.

    Column c belongs to distance S - c, where S is `length`. Each head's flat scores without the
    first T are read as T rows of C - 1: new row i starts at column T - i of old row i, the distance
    of key 0. With C = S + 1, there are no distances below 0, so the caller must mask the scores of
    later keys.

    References: Dai et al. 2019 (Transformer-XL), appendix B.
    """
    batch, heads, queries, columns = ops.shape(scores)
    scores = ops.reshape(scores, (batch, heads, columns, queries))[:, :, 1:]
    # (B, H, C - 1, T) -> (B, H, T, C - 1)
    return ops.reshape(scores, (batch, heads, queries, columns - 1))[..., :length]


class RelativeAttention(MultiHeadAttention):
    """Self-attention with relative positions (Transformer-XL), optionally with a memory.

    Scores depend on contents and distances. For a query q_i, a key k_j and the projected sinusoid
    r_(i-j) of the distance, the score is `((q_i + u) k_j + (q_i + v) r_(i-j)) / sqrt(d)`. The first
    product contains the paper's terms (a) and (c), and the second product contains the terms (b)
    and (d). A reshape aligns distances with keys (appendix B), so that shapes are static.

    Args:
        clamp_length: maximum distance, to which larger distances are clipped. `None` means no
            limit.
        segments: whether scores also compare segments (XLNet). The added score is `(q_i + s) e /
            sqrt(d)`, with one trained vector e for keys in the query's own segment and another
            trained vector for keys in all other segments. Positions in the memory belong to
            segment 0.
        kwargs: arguments of `MultiHeadAttention` except `cross`, `window`, `num_kv_heads` and
            `qk_norm`. The papers use `use_bias=False`. `scaled=False` omits all divisions by
            sqrt(d), but does not change the initial query matrix.

    Call arguments:
        segment_ids: int `(B, T)`, used with `segments` and 0 by default.

    The state is a `Segment` between segments and a `Window` in decoding. With a window of fixed
    size, the cost per token is constant. In XLNet's query stream, the state is the `Keys` of the
    content stream (see `Context.two_streams`).

    References: Dai et al. 2019 (Transformer-XL), sections 3.2 and 3.3; Yang et al. 2019 (XLNet),
    sections 2.3 and 2.5, for segments and queries.
    """

    takes_queries = True
    # no biases
    reads = (
        *("head_dim", "scaled", "scale_dim", "attention_dropout", "scaled_outputs"),
        *("clamp_length", "shared_position_biases"),
    )
    takes_packed = False

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        clamp_length: int | None = None,
        segments: bool = False,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, **kwargs)
        grouped = self.num_kv_heads != num_heads
        if self.cross or self.window or grouped or self.qk_norm != "none":
            raise ValueError("relative attention has no cross, window, num_kv_heads or qk_norm")
        self.takes_cache_mask = False
        self.content_bias = self.distance_bias = None  # u and v
        self._shared_biases: Callable | None = None

    def share_biases(self, other: "RelativeAttention") -> None:
        """Uses the vectors u and v of another layer, which must be built before this layer."""
        # A function holds the other layer, so that Keras does not track that layer as a sub-layer.
        self._shared_biases = lambda: (other.content_bias, other.distance_bias)

    def build_projections(self, x_shape, memory_shape, width):
        options = {"use_bias": self.use_bias, "axes": ("embed", "heads")}
        self.query = self.dense_part("query", x_shape, width, **options)
        self.key_value = self.dense_part("key_value", x_shape, 2 * width, parts=2, **options)
        self.distance = self.dense_part("distance", x_shape, width, use_bias=False)
        self._build_output(x_shape, width)
        if self._shared_biases:
            self.content_bias, self.distance_bias = self._shared_biases()
        else:
            self.content_bias = self._vectors("content_bias")
            self.distance_bias = self._vectors("distance_bias")
        if self.segments:
            self.segment_bias = self._vectors("segment_bias")
            self.segment_vectors = self._vectors("segment_vectors", 2)

    def _vectors(self, name: str, *rows: int) -> keras.Variable:
        """Adds a weight `(H, 1, d)`, or `(H, rows, d)` for several vectors per head."""
        shape = (self.num_heads, *(rows or (1,)), self._head_dim)
        # A single vector per head is a bias of the queries.
        initializer, decays = self.kernel_initializer.clone(), bool(rows)
        return self.add_weight(shape, initializer, name=name, decays=decays)

    def mix(self, x, context: Context, state=None):
        if isinstance(state, Window):
            return self._attend_with_window(x, context, state)
        if isinstance(state, Keys):  # x is XLNet's query stream, which has no keys
            return self._attend_keys(x, state, context), None
        keys = self._keys(x, context, state)
        y = self._attend_keys(x, keys, context)
        if state is not None:
            # The last M positions, of the old memory and of x, are the next memory.
            length = ops.shape(x)[1]
            real = ops.ones(ops.shape(x)[:2], "bool") if context.mask is None else context.mask
            # (B, M + T, D) -> (B, M, D)
            hidden = [state.hidden, ops.cast(x, state.hidden.dtype)]
            hidden = ops.concatenate(hidden, axis=1)[:, length:]
            seen = ops.concatenate([state.seen, real], axis=1)[:, length:]
            state = Segment(ops.stop_gradient(hidden), seen)
        return y, (state, keys) if context.two_streams else state

    def init_memory(self, batch_size, length: int):
        hidden = ops.zeros((batch_size, length, self.query.kernel.shape[0]))
        return Segment(hidden, ops.zeros((batch_size, length), "bool"))

    def _keys(self, x, context: Context, past: Segment | None = None) -> Keys:
        """Computes the keys and values of the memory, if any, followed by `x (B, T, D)`."""
        length = ops.shape(x)[1]
        memory_length = 0 if past is None else past.hidden.shape[1]
        mask, segment_ids = broadcast_mask(context.mask), context.segment_ids
        if memory_length:
            hidden = ops.stop_gradient(ops.cast(past.hidden, self.compute_dtype))
            x = ops.concatenate([hidden, ops.cast(x, self.compute_dtype)], axis=1)  # (B, S, D)
            all_seen = ops.ones((ops.shape(past.seen)[0], length), "bool")
            seen = ops.concatenate([past.seen, all_seen], axis=1)
            mask = combine_masks(_prepend_true(mask, memory_length), seen)
            if segment_ids is not None:
                segment_ids = ops.pad(segment_ids, ((0, 0), (memory_length, 0)))  # (B, S)
        key, value = self._split_heads(self.key_value(x), 2)
        distance = self._distance_keys(memory_length, length, context.backward)
        return Keys(key, value, distance, segment_ids, mask)

    def _distance_keys(self, memory_length, length, backward=None):
        """Projects the sinusoids of all C distances from T queries to S = M + T keys: `(H, C, d)`.

        With `backward (B,)`, the output is `(B, H, C, d)`, and distances have the other sign in
        rows where `backward` is True.

        References: Yang et al. 2019 (XLNet), released code, `bi_data`.
        """
        last = 0 if self.causal else 1 - length
        distances = ops.arange(memory_length + length, last - 1, -1, dtype="int32")  # (C,)
        if backward is None:
            return self._project_distances(distances)
        forward_keys, backward_keys = (self._project_distances(d) for d in (distances, -distances))
        return ops.where(backward[:, None, None, None], backward_keys, forward_keys)

    def _project_distances(self, distances):
        """Projects the sinusoids of C distances: `(C,)` to `(H, C, d)`."""
        width = self.distance.kernel.shape[0]
        # (C, H d) -> (C, H, d) -> (H, C, d)
        distance = self.distance(sinusoids(distances, width, self.clamp_length))
        distance = ops.reshape(distance, (-1, self.num_heads, self._head_dim))
        return ops.transpose(distance, (1, 0, 2))

    def _attend_keys(self, x, keys: Keys, context: Context):
        """Attends from the queries of `x (B, T, D)` to precomputed keys: `(B, T, D)`.

        The last T keys belong to the positions of x. With `context.query_positions`, x and the
        output are `(B, P, D)`.
        """
        positions = context.query_positions
        length = ops.shape(x)[1] if positions is None else ops.shape(positions)[2]
        key_length = ops.shape(keys.key)[2]
        mask = broadcast_mask(context.attention_mask)
        if self.causal:
            mask = combine_masks(mask, attention.self_attention_mask(length, causal=True))
        if mask is not None:
            mask = _prepend_true(mask, key_length - length)
        mask = combine_masks(mask, keys.mask)
        query = self._split_heads(self.query(x), 1)[0]  # (B, H, T, d)
        if positions is not None:
            # (B, P, T) -> (B, 1, P, T); (B, H, P, d) -> (B, H, T, d)
            positions = ops.cast(positions, query.dtype)[:, None]
            query = ops.matmul(ops.swapaxes(positions, -1, -2), query)
        scores = self._product(query, self.content_bias, keys.key)  # (B, H, T, S)
        distance_scores = self._product(query, self.distance_bias, keys.distance)  # (B, H, T, C)
        scores = scores + align_with_keys(distance_scores, key_length)
        if self.segments:
            scores = scores + self._segment_scores(query, context.segment_ids, keys)
        if context.bias is not None:
            bias = context.bias(query_length=length, key_length=key_length)
            scores = scores + ops.cast(bias, "float32")
        y = self._weighted_sum(scores, mask, keys.value, context.training)  # (B, H, T, d)
        return self._merge_heads(y if positions is None else ops.matmul(positions, y))

    def init_cache(self, batch_size, beams: int, capacity: int | None):
        """Returns an empty window, of `capacity` tokens or, if `None`, one that grows from 0."""
        if self.segments:
            raise ValueError("cached decoding does not support segments: set num_segments=0")
        size = capacity or 0
        shape = (batch_size, beams, self.num_heads, size, self._head_dim)
        zeros = ops.zeros(shape, self.compute_dtype)
        return Window(zeros, zeros, ops.zeros((batch_size, beams, size), "bool"))

    def _attend_with_window(self, x, context: Context, window: Window):
        """Attends from the next tokens to the window and causally to the next tokens.

        Returns the output and the window with these tokens, without the oldest if its size is
        fixed.
        """
        if len(x.shape) == 3:
            return self._prefill(x, context, window)
        beams = window.key.shape[1]
        # (B K, H d) -> (B, K, H, 1, d); (B K, 2 H d) -> (B, K, 2, H, 1, d)
        heads = (self.num_heads, 1, self._head_dim)
        query = ops.reshape(self.query(x), (-1, beams, *heads))
        new = ops.reshape(self.key_value(x), (-1, beams, 2, *heads))
        key, value = (
            ops.concatenate([old, part], axis=3)
            for old, part in zip(window[:2], ops.unstack(new, 2, axis=2), strict=True)
        )  # (B, K, H, M + 1, d)
        seen = ops.concatenate([window.seen, ops.ones_like(query[:, :, 0, :, 0], "bool")], axis=2)
        distances = ops.arange(ops.shape(key)[3] - 1, -1, -1, dtype="int32")
        width = self.distance.kernel.shape[0]
        # The single query is projected to the space of the sinusoids. This avoids projecting all
        # distances.
        kernel = self.distance.matrix(query.dtype)
        kernel = ops.reshape(kernel, (width, self.num_heads, self._head_dim))
        position_query = ops.add(query, ops.cast(self.distance_bias, query.dtype))
        # (B, K, H, 1, d) -> (B, K, H, 1, D)
        position_query = ops.matmul(position_query, ops.transpose(kernel, (1, 2, 0)))
        position_query = self._scale_query(position_query)
        encoding = ops.cast(sinusoids(distances, width, self.clamp_length), position_query.dtype)
        distance_scores = ops.matmul(position_query, ops.transpose(encoding))  # (B, K, H, 1, M + 1)
        scores = self._product(query, self.content_bias, key)  # (B, K, H, 1, M + 1)
        scores = ops.add(scores, ops.cast(distance_scores, "float32"))
        if context.bias is not None:
            scores = ops.add(scores, context.bias(query_length=1, key_length=ops.shape(key)[3]))
        y = self._weighted_sum(scores, seen[:, :, None, None, :], value, context.training)
        y = ops.reshape(y, (-1, self.num_heads * self._head_dim))  # (B, K, H, 1, d) -> (B K, H d)
        start = 0 if context.index is None else 1
        window = Window(key[:, :, :, start:], value[:, :, :, start:], seen[:, :, start:])
        return self.output_projection(y), window

    def _prefill(self, x, context: Context, window: Window):
        """Applies `_attend_with_window` to L tokens of each hypothesis at once, `x (B K, L, D)`."""
        # (B, K, ...) -> (B K, ...)
        flat_window = Window(*(ops.reshape(part, (-1, *ops.shape(part)[2:])) for part in window))
        new_key, new_value = self._split_heads(self.key_value(x), 2)  # (B K, H, L, d)
        key = ops.concatenate([flat_window.key, new_key], axis=2)  # (B K, H, M + L, d)
        value = ops.concatenate([flat_window.value, new_value], axis=2)
        seen = ops.concatenate([flat_window.seen, ops.ones_like(x[..., 0], "bool")], axis=1)
        memory_length, length = ops.shape(flat_window.seen)[1], ops.shape(x)[1]
        mask = broadcast_mask(seen)
        if context.index is not None:
            # Each token sees only the M tokens before itself: token i sees keys from i on.
            start = ops.arange(length, dtype="int32")[:, None]  # (L, 1)
            visible = ops.arange(memory_length + length, dtype="int32") >= start  # (L, M + L)
            mask = ops.logical_and(mask, visible)
        keys = Keys(key, value, self._distance_keys(memory_length, length), None, mask)
        y = self._attend_keys(x, keys, context)
        if context.index is None:  # (B K, ...) -> (B, K, ...)
            beams, arrays = window.key.shape[1], (key, value, seen)
            return y, Window(*(ops.reshape(p, (-1, beams, *ops.shape(p)[1:])) for p in arrays))
        arrays = (key[:, :, length:], value[:, :, length:], seen[:, length:])
        # A loop requires the static shape of the window: (B K, ...) -> (B, K, ...)
        pairs = zip(arrays, window, strict=True)
        return y, Window(*(ops.reshape(part, ops.shape(old)) for part, old in pairs))

    def _product(self, query, bias, key):
        """Computes `(query + bias) key^T`, `(..., T, S)` float32, divided by `sqrt(d)` if `scaled`.

        `query (..., T, d)` and `key (..., S, d)` are multiplied in the dtype of `query`.
        """
        query = self._scale_query(ops.add(query, ops.cast(bias, query.dtype)))
        return ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")

    def _segment_scores(self, query, segment_ids, keys: Keys):
        vectors = ops.cast(self.segment_vectors, query.dtype)  # (H, 2, d)
        scores = self._product(query, self.segment_bias, vectors)  # (B, H, T, 2)
        if segment_ids is None:
            return scores[..., :1]
        query_segments = segment_ids[:, None, :, None]
        key_segments = keys.segment_ids[:, None, None, :]
        return ops.where(ops.equal(query_segments, key_segments), scores[..., :1], scores[..., 1:])


def _prepend_true(mask, count):
    """Prepends `count` columns of True to a mask: `(..., T)` to `(..., count + T)`."""
    if mask is None or (isinstance(count, int) and not count):
        return mask
    padding = ops.ones((*ops.shape(mask)[:-1], count), "bool")
    return ops.concatenate([padding, mask], axis=-1)
