"""Multi-head scaled dot-product attention, the token mixer of a Transformer."""

import dataclasses
import math
from typing import Any

import keras
from keras import ops

from macaron_tf.errors import check_choice, check_count, check_divisible
from macaron_tf.kernels import compiled_by_xla, runs_fused
from macaron_tf.layers.dense import narrowed
from macaron_tf.layers.mixer import Context, Mixer, all_of
from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.watching import is_watching, note


def broadcast_mask(mask):
    """Expands a boolean mask (True = attend) to rank 4, to broadcast to `(B, H, T, S)`.

    `mask` is a key mask `(B, S)`, a query-key mask `(B, T, S)`, a mask per head, or `None`.
    """
    if mask is None:
        return None
    if not 2 <= len(mask.shape) <= 4:
        raise ValueError(f"the attention mask has shape {mask.shape}, but must have rank 2, 3 or 4")
    # (B, S) -> (B, 1, 1, S), or (B, T, S) -> (B, 1, T, S)
    return ops.expand_dims(mask, tuple(range(1, 5 - len(mask.shape))))


def combine_masks(*masks):
    """Combines masks of rank 2, 3 or 4 by logical AND into rank 4, or `None` if all are `None`."""
    return all_of(*(broadcast_mask(mask) for mask in masks))


def self_attention_mask(length, causal: bool, window: int = 0):
    """Returns the mask `(1, 1, T, T)` of T = `length` positions, causal or with a window.

    Without `causal`, query and key are at most `window // 2` apart, so `window=0` lets a position
    see only itself.
    """
    positions = ops.arange(length, dtype="int32")
    if causal:
        return causal_mask(positions, positions, window)[None, None]
    return (ops.abs(positions - positions[:, None]) <= window // 2)[None, None]


def causal_mask(query_positions, key_positions, window: int = 0):
    """Returns a causal mask `(T, S)`, True where the query may attend to the key.

    `window` is the number of positions, with its own, to which a query attends; 0 means all.
    """
    query_positions = query_positions[:, None]
    mask = key_positions <= query_positions
    return ops.logical_and(mask, key_positions > query_positions - window) if window else mask


# This number is added to the scores of masked positions. The number is far below any real score,
# but finite, so that a row in which all positions are masked (a padding sentence) gives a mean
# instead of NaN.
MASKED_SCORE = -1e9


def _updated_cache(cache, new, index):
    """Returns `cache (B, beams, K, T, d)` with `new (B, beams, K, L, d)` from `index` on."""
    if compiled_by_xla():
        return ops.slice_update(cache, (0, 0, 0, index, 0), new)
    # Without XLA compilation of the whole graph, TensorFlow would compile `slice_update` again for
    # each new shape.
    offsets = ops.arange(cache.shape[3], dtype="int32") - index  # (T,), positions within `new`
    length = ops.shape(new)[3]
    if new.shape[3] != 1:
        new = ops.take(new, ops.clip(offsets, 0, length - 1), axis=3)  # (B, beams, K, T, d)
    is_new = ops.logical_and(offsets >= 0, offsets < length)
    return ops.where(is_new[:, None], new, cache)


def _product_without_copy(query, key):
    """Multiplies `query (..., L, d)` by the transpose of `key (..., T, d)`, to `(..., L, T)`.

    LiteRT would copy the keys before a matrix product, so the function multiplies a single query
    (L = 1) elementwise and sums.
    """
    if query.shape[-2] == 1:
        return ops.expand_dims(ops.sum(query * key, axis=-1), -2)
    return ops.matmul(query, ops.swapaxes(key, -1, -2))


def _weighted_sum_without_copy(weights, value):
    """Multiplies `weights (..., L, T)` by `value (..., T, d)`, to `(..., L, d)`, likewise."""
    if weights.shape[-2] == 1:
        return ops.sum(ops.swapaxes(weights, -1, -2) * value, axis=-2, keepdims=True)
    return ops.matmul(weights, value)


def _by_head_groups(product, left, right):
    """Applies `product` to `left (..., H, L, n)` and `right (..., K, ...)` in grouped attention.

    In grouped-query attention, H / K heads of `left` share one head of `right`. The function stacks
    the rows of these H / K heads, so that `right` need not be repeated.
    """
    heads, kv_heads = left.shape[-3], right.shape[-3]
    if heads == kv_heads:
        return product(left, right)
    *outer, _, length, width = ops.shape(left)
    # (..., H, L, n) -> (..., K, H/K L, n)
    y = product(ops.reshape(left, (*outer, kv_heads, heads // kv_heads * length, width)), right)
    # (..., K, H/K L, m) -> (..., H, L, m)
    return ops.reshape(y, (*outer, heads, length, ops.shape(y)[-1]))


class MultiHeadAttention(Mixer):
    """Multi-head self-attention or cross-attention, `softmax(Q K^T / sqrt(d)) V`.

    Args:
        num_heads: number of heads H.
        head_dim: head width d. `None` means D / H.
        causal: whether position t attends only to positions 0 to t in self-attention.
        cross: whether keys and values come from the call argument `memory`.
        output_dim: output width. `None` means D, the width of x.
        kernel_initializer: initializer of all projections. Query, key and value in self-attention,
            and key and value in cross-attention, form one fused matrix, and the initializer uses
            the fan-out of the fused matrix. With Xavier-uniform and H d = D, the range of the
            weights is therefore 1/sqrt(2) times (self-attention) or sqrt(2/3) times
            (cross-attention) the range for separate matrices.
        scaled: whether scores are divided by sqrt(d). Without the division, the initial query
            matrix is multiplied by 1/sqrt(d), as in T5.
        scale_dim: number whose square root divides scores if `scaled`. `None` means d. Lu et al.
            2019 write D in the paper, but the released code divides by sqrt(d).
        output_initializer: initializer of the output projection. `None` means `kernel_initializer`.
        window: size of the attention window in positions. A causal query sees the last `window`
            positions, including its own position. Any other query sees the positions at a distance
            of at most `window // 2`. 0 means no limit. Except in decoding
            and in `flash_attention`, the layer computes all scores and then masks the scores
            outside the window.
        num_kv_heads: number of key and value heads K in grouped-query attention. H / K query heads
            share each key and value head. `None` means H. With K < H, the query has a separate
            matrix, and the cache takes K / H of the memory that it takes with K = H.
        qk_norm: RMSNorm of queries and keys in self-attention: `"none"`, `"head"` (over the d
            channels of a head) or `"heads"` (over the channels of all heads together).

    Call arguments:
        memory: `(B, S, D)`, required if `cross`.
        attention_mask: boolean, True = attend, of shape `(B, S)`, `(B, T, S)` or `(B, H, T, S)`.
            The layer combines this mask with the padding masks.
        mask: Keras's padding mask of x in self-attention, which is `x_mask` in calls with several
            tensors.
        memory_mask: Keras's padding mask of the memory in cross-attention.
        attention_bias: floats that broadcast to `(B, H, T, S)`. The layer adds the bias to the
            float32 scores without scaling.

    The decoding state is a pair of keys and values. In self-attention, both have shape `(B, beams,
    K, T, d)` and belong to the last T tokens of each hypothesis: all earlier tokens or, with a
    window, at most `window` tokens. In a state of fixed size, some of the T positions may be empty.
    In cross-attention, both have shape `(B, K, S, d)` and belong to the memory.

    Subclasses may override `rotate` and `scores`, which the layer uses both with and without a
    cache.

    References: Vaswani et al. 2017, eq. 1; Child et al. 2019, "Generating Long Sequences with
    Sparse Transformers", for windows; Ainslie et al. 2023, "GQA"; Henry et al. 2020, "Query-Key
    Normalization for Transformers", for norms of queries and keys.
    """

    takes_bias = True
    reads: tuple[str, ...] = (
        *("head_dim", "scaled", "scale_dim", "attention_dropout", "use_bias", "scaled_outputs"),
        *("num_kv_heads", "qk_norm"),
    )
    takes_packed = True
    takes_documents = True  # `Context.attention_mask` separates documents

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        cross: bool = False,
        use_bias: bool = True,
        output_dim: int | None = None,
        kernel_initializer="glorot_uniform",
        scaled: bool = True,
        scale_dim: int | None = None,
        output_initializer=None,
        window: int = 0,
        num_kv_heads: int | None = None,
        qk_norm: str = "none",
        epsilon: float = 1e-5,
        **kwargs,
    ):
        # The projections cast their own inputs. Autocast would round the attention bias to
        # bfloat16.
        super().__init__(autocast=False, **kwargs)
        check_count("window", window, minimum=0)
        if cross and (window or qk_norm != "none"):
            raise ValueError("cross=True takes neither window nor qk_norm: leave them out")
        self.num_kv_heads = num_kv_heads or num_heads
        check_divisible("num_heads", num_heads, "num_kv_heads", self.num_kv_heads)
        check_choice("qk_norm", qk_norm, ("none", "head", "heads"))
        self.takes_cache_mask = not window
        methods, own = (MultiHeadAttention.rotate, MultiHeadAttention.scores), type(self)
        self._needs_positions = (own.rotate, own.scores) != methods

    def rotate(self, query, key, positions):
        """Rotates queries and keys by their positions before the keys are cached, by default not.

        `query` is `(B, H, T, d)`, or `(B, beams, H, T, d)` with a cache, and `key` has K heads
        instead of H. The int32 positions of the T tokens within the text broadcast to
        `query[..., 0]`.
        """
        return query, key

    def scores(self, query, key, context: Context, key_positions):
        """Computes attention scores `(..., H, T, S)`, before masks and biases: `query key^T`.

        Args:
            query: `(..., H, T, d)`, already divided by sqrt(d) if `scaled`.
            key: `(..., K, S, d)`, including cached keys.
            context: its `positions` are those of the queries, which broadcast to `query[..., 0]`.
            key_positions: int32 positions of the keys, which broadcast to `key[..., 0]`.
        """
        if context.cache_mask is None:
            return _by_head_groups(ops.matmul, query, ops.swapaxes(key, -1, -2))
        return _by_head_groups(_product_without_copy, query, key)

    def _with_positions(self, context: Context, query, cache=None) -> Context:
        """Returns the context with the positions of the queries."""
        positions = context.positions
        if positions is None:
            positions, index = ops.arange(ops.shape(query)[-2], dtype="int32"), context.index
            if cache is not None:
                if index is None and self.window:
                    raise ValueError("a windowed cache has few tokens: set context.positions")
                positions = positions + (ops.shape(cache[0])[3] if index is None else index)
        positions = ops.cast(positions, "int32")
        if len(positions.shape) == 2:
            positions = ops.expand_dims(positions, 1)  # (B, T) -> (B, 1, T)
        return dataclasses.replace(context, positions=positions)

    def build(self, x_shape, memory_shape=None):
        divided = ("hidden_dim", x_shape[-1], "num_heads", self.num_heads)
        self._head_dim = self.head_dim or check_divisible(*divided)
        width = self.num_heads * self._head_dim
        self.build_projections(x_shape, memory_shape or x_shape, width)
        if self.qk_norm != "none":
            self.query_scale = self._scale("query_scale", self.num_heads)
            self.key_scale = self._scale("key_scale", self.num_kv_heads)
        self.drop = Dropout(self.dropout, name="dropout")

    def build_projections(self, x_shape, memory_shape, width: int) -> None:
        """Builds the projections. `width` is the total width H d of all query heads."""
        options: dict[str, Any] = {"use_bias": self.use_bias, "axes": ("embed", "heads")}
        initializer = self.kernel_initializer.clone()
        if not self.scaled:
            initializer = narrowed(initializer, width, self._head_dim**-0.5)
        if self.cross or self.num_kv_heads != self.num_heads:
            kv_width = self.num_kv_heads * self._head_dim
            self.query = self.dense_part("query", x_shape, width, initializer, **options)
            options["parts"] = 2
            self.key_value = self.dense_part("key_value", memory_shape, 2 * kv_width, **options)
        else:
            options |= {"initializer": initializer, "parts": 3}
            name = "query_key_value"
            self.query_key_value = self.dense_part(name, x_shape, 3 * width, **options)
        self._build_output(x_shape, width)

    def _build_output(self, x_shape, width: int) -> None:
        units, axes = self.output_dim or x_shape[-1], ("heads", "embed")
        initializer = (self.output_initializer or self.kernel_initializer).clone()
        arguments = ("output", (*x_shape[:-1], width), units, initializer, axes)
        self.output_projection = self.dense_part(*arguments, use_bias=self.use_bias)

    def _scale(self, name: str, heads: int) -> keras.Variable:
        size = self._head_dim * (heads if self.qk_norm == "heads" else 1)
        return self.add_weight((size,), "ones", name=name)

    def _place(self, query, key, context: Context, cache=None):
        """Applies norms and positions to queries `(..., H, L, d)` and keys `(..., K, L, d)`.

        The third result is the context with the positions of the queries, if the layer needs them.
        """
        if self.qk_norm != "none":
            axes, normalized = -1 if self.qk_norm == "head" else (-3, -1), []
            for x, scale in ((query, self.query_scale), (key, self.key_scale)):
                y = ops.cast(x, "float32")
                y = y * ops.rsqrt(ops.mean(ops.square(y), axes, keepdims=True) + self.epsilon)
                # (H d,) -> (H, 1, d)
                scale = ops.reshape(ops.cast(scale, "float32"), (-1, 1, self._head_dim))
                normalized.append(ops.cast(y * scale, x.dtype))
            query, key = normalized
        if self._needs_positions:
            context = self._with_positions(context, query, cache)
            query, key = self.rotate(query, key, context.positions)
        return query, key, context

    def mix(self, x, context: Context, state=None):
        if self.cross:
            key_value = state or self.project_memory(context.memory)
            mask = combine_masks(context.attention_mask, context.memory_mask)
            return self._cross_attend(x, key_value, mask, context), None
        if state is not None:
            return self._attend_with_cache(x, context, state)
        query, key, value = self._project(x, context.packing)
        mask = combine_masks(context.attention_mask, context.mask)
        length = ops.shape(query)[2]
        bias = context.bias and context.bias(query_length=length, key_length=length)
        query, key, context = self._place(query, key, context)
        self_length = length if self.causal or self.window else None
        y = self._attend(query, key, value, mask, bias, context, context.positions, self_length)
        return self._merge_heads(y, packing=context.packing), None

    def _project(self, x, packing=None, beams: int | None = None):
        """Projects x to queries `(B, H, T, d)` and to keys and values `(B, K, T, d)`.

        In cached decoding, x is `(B beams, T, D)`, or `(B beams, D)` with T = 1, and the axis
        `beams` follows B in the result.
        """
        if self.num_kv_heads == self.num_heads:
            projections = [(self.query_key_value, 3)]
        else:
            projections = [(self.query, 1), (self.key_value, 2)]
        projected = []
        for projection, parts in projections:
            y = projection(x)
            if beams and len(x.shape) == 2:
                heads = y.shape[-1] // (parts * self._head_dim)
                # (B beams, parts H d) -> (B, beams, parts, H, 1, d) -> parts x (B, beams, H, 1, d)
                y = ops.reshape(y, (-1, beams, parts, heads, 1, self._head_dim))
                projected += ops.unstack(y, parts, axis=2)
            else:
                y = packing.pad(y) if packing else y  # (N, parts H d) -> (B, T, parts H d)
                projected += self._split_heads(y, parts)
        if beams and len(x.shape) == 3:
            # (B beams, H, T, d) -> (B, beams, H, T, d)
            shape = (ops.shape(x)[1], self._head_dim)
            projected = [ops.reshape(y, (-1, beams, y.shape[1], *shape)) for y in projected]
        return projected

    def project_memory(self, memory):
        """Computes keys and values, `(B, K, S, d)` each, from `memory (B, S, D)`."""
        return tuple(self._split_heads(self.key_value(memory), 2))

    def _cross_attend(self, x, key_value, mask, context: Context):
        """Attends from x to the keys and values of the memory.

        In cached decoding, the tokens of a sequence's hypotheses count as several queries of one
        sequence, so that all hypotheses share the memory.
        """
        is_step = len(x.shape) == 2
        leading_shape = (ops.shape(key_value[0])[0], -1) if is_step else (-1, ops.shape(x)[1])
        # (B, T, H d), or (B K, H d) in decoding -> (B, T, H, d) -> (B, H, T, d)
        query = ops.reshape(self.query(x), (*leading_shape, self.num_heads, self._head_dim))
        query = ops.transpose(query, (0, 2, 1, 3))
        lengths = {"query_length": ops.shape(query)[2], "key_length": ops.shape(key_value[0])[2]}
        bias = context.bias and context.bias(**lengths)
        if self._needs_positions:
            context = self._with_positions(context, query)
        key_positions = self._key_positions(key_value)
        y = self._attend(query, *key_value, mask, bias, context, key_positions)
        if not is_step:
            return self._merge_heads(y)
        return self._merge_heads(ops.transpose(y, (0, 2, 1, 3)), rank=2)  # (B, K, H, d)

    def init_cache(self, batch_size, beams: int, capacity: int | None):
        """Returns an empty cache: a pair of keys and values, each `(B, beams, K, T, d)`.

        T is `capacity` or 0, at most `window` if there is one.
        """
        capacity = min(capacity, self.window or capacity) if capacity else 0
        shape = (batch_size, beams, self.num_kv_heads, capacity, self._head_dim)
        zeros = ops.zeros(shape, self.compute_dtype)
        return zeros, zeros

    def _attend_with_cache(self, x, context: Context, cache):
        """Attends from new tokens to the cached tokens and causally to the new tokens.

        Returns the output and the new cache, or only the new keys and values if the cache is
        read-only (see `Context.cache_mask`).
        """
        index, (query, *new) = context.index, self._project(x, beams=cache[0].shape[1])
        query, new[0], context = self._place(query, new[0], context, cache)
        if context.cache_mask is not None:
            y = self._attend_with_read_only_cache(query, cache, new, context)
            return self._merge_heads(y, len(x.shape)), tuple(new)
        pairs, cache_length = zip(cache, new, strict=True), ops.shape(cache[0])[3]
        if index is None or self.window:  # new tokens are appended to the cached ones
            start, key_value = cache_length, tuple(ops.concatenate(pair, axis=3) for pair in pairs)
        else:
            start, key_value = index, tuple(_updated_cache(old, part, index) for old, part in pairs)
        length, total = ops.shape(query)[3], ops.shape(key_value[0])[3]
        mask = bias = None
        if index is not None or self.window or query.shape[3] != 1:  # a single token sees all keys
            query_indices, key_indices = (ops.arange(n, dtype="int32") for n in (length, total))
            mask = causal_mask(query_indices + start, key_indices, self.window)  # (L, T)
        if not self.window:
            cache = key_value
        elif index is None:
            cache = tuple(part[:, :, :, -self.window :] for part in key_value)
        else:
            # A cache of fixed size fills from the end, so its first positions may be empty.
            mask = ops.logical_and(mask, key_indices >= cache_length - index)
            # A loop requires the static shape of the cache.
            cache = tuple(
                ops.reshape(part[:, :, :, -cache_length:], ops.shape(old))
                for part, old in zip(key_value, cache, strict=True)
            )
        if context.bias is not None:
            # (1, H, L, T), for scores (B, K, H, L, T)
            bias = context.bias(query_length=length, key_length=total, start=start)
        key_positions = self._key_positions(key_value)
        if self._needs_positions and self.window:  # the last key belongs to the last token
            key_positions = key_positions + context.positions[..., -1:] - (total - 1)
        y = self._attend(query, *key_value, mask, bias, context, key_positions)
        return self._merge_heads(y, len(x.shape)), cache

    def _key_positions(self, key_value):
        """Returns positions 0 to S - 1 of keys `(..., S, d)`, or `None` if the layer needs none."""
        if not self._needs_positions:
            return None
        return ops.arange(ops.shape(key_value[0])[-2], dtype="int32")

    def _attend_with_read_only_cache(self, query, cache, new, context: Context):
        """Attends to a read-only cache and causally to new tokens, without a copy of the cache."""
        length, query = query.shape[3], self._scale_query(query)
        new_scores = self.scores(query, new[0], context, context.positions)
        cached_scores = self.scores(query, cache[0], context, self._key_positions(cache))
        if length > 1:
            positions = ops.arange(length, dtype="int32")
            mask = causal_mask(positions, positions)
            new_scores = new_scores + ops.where(mask, 0.0, MASKED_SCORE)
        cached_scores = cached_scores + ops.where(context.cache_mask, 0.0, MASKED_SCORE)
        weights = ops.softmax(ops.concatenate([new_scores, cached_scores], axis=-1), axis=-1)
        new_weights, cached_weights = weights[..., :length], weights[..., length:]
        y = _by_head_groups(_weighted_sum_without_copy, new_weights, new[1])
        return y + _by_head_groups(_weighted_sum_without_copy, cached_weights, cache[1])

    def _scale_query(self, query):
        # Scaling the query takes T d multiplications, whereas scaling the scores takes T S.
        if not self.scaled:
            return query
        scale = 1.0 / math.sqrt(self.scale_dim or self._head_dim)
        return ops.multiply(query, ops.cast(scale, query.dtype))

    def _attend(
        self, query, key, value, mask, bias, context: Context, key_positions, self_length=None
    ):
        """Computes the attention of queries `(..., H, T, d)` to keys and values `(..., K, S, d)`.

        Mask (True = attend) and bias broadcast to `(..., H, T, S)`. `self_length` is T in
        self-attention if `mask` does not yet contain the causal mask or the window.
        """
        is_stock = type(self).scores is MultiHeadAttention.scores and bias is None
        if is_stock and len(query.shape) == 4 and runs_fused(query.dtype, self._head_dim):
            from macaron_tf.kernels.flash_attention import can_shard, flash_attention

            is_key_mask = mask is None or mask.shape[1] == mask.shape[2] == 1
            if is_key_mask and can_shard(query.shape[0], key.shape[1]) and not is_watching():
                rate = self.dropout if context.training else 0.0
                # (B, L, H, d)
                arrays: list[Any] = [ops.swapaxes(part, 1, 2) for part in (query, key, value)]
                arrays.append(None if mask is None else mask[:, 0, 0])  # (B, S)
                arrays.append(self.drop.seed_generator.next() if rate else None)
                scale = (self.scale_dim or self._head_dim) ** -0.5 if self.scaled else 1.0
                options = {"causal": self.causal, "window": self.window, "rate": rate}
                y = flash_attention(*arrays, scale=scale, **options)
                return ops.swapaxes(y, 1, 2)  # (B, H, T, d)
        if self_length is not None:
            own_mask = self_attention_mask(self_length, self.causal, self.window)
            mask = combine_masks(mask, own_mask)
        query = self._scale_query(query)
        scores = self.scores(query, key, context, key_positions)  # (..., H, T, S)
        scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
        if bias is not None:
            scores = scores + ops.cast(bias, scores.dtype)
        return self._weighted_sum(scores, mask, value, context.training)

    def _weighted_sum(self, scores, mask, value, training):
        """Sums values `(..., K, S, d)` weighted by the softmax of float32 scores `(..., H, T, S)`.

        The mask (True = attend) broadcasts to the shape of the scores.
        """
        if mask is not None:
            # On TensorFlow, `ops.add` mistakes the mask of an empty batch for a bias vector.
            scores = scores + ops.cast(ops.where(mask, 0.0, MASKED_SCORE), scores.dtype)
        weights = ops.softmax(scores, axis=-1)
        note(self, weights)
        weights = ops.cast(weights, value.dtype)
        return _by_head_groups(ops.matmul, self.drop(weights, training=training), value)

    def _split_heads(self, x, parts: int):
        # (B, L, parts H d) -> (B, L, parts, H, d) -> (parts, B, H, L, d)
        heads = x.shape[-1] // (parts * self._head_dim)
        x = ops.reshape(x, (-1, ops.shape(x)[1], parts, heads, self._head_dim))
        return ops.unstack(ops.transpose(x, (2, 0, 3, 1, 4)), parts, axis=0)

    def _merge_heads(self, y, rank: int = 3, packing=None):
        """Merges the heads of `y (..., H, T, d)`, and applies the output projection.

        If the `rank` of x is 2, each position of `y` gives a row of the result. Otherwise, the
        result is `(N, T, D)`, or the real tokens of `packing`.
        """
        width = self.num_heads * self._head_dim
        if rank == 2:
            return self.output_projection(ops.reshape(y, (-1, width)))
        if len(y.shape) == 5:  # (B, beams, H, T, d) -> (B beams, H, T, d)
            y = ops.reshape(y, (-1, self.num_heads, ops.shape(y)[3], self._head_dim))
        # (B, H, T, d) -> (B, T, H, d) -> (B, T, H d) -> (B, T, D), or packed -> (N, D)
        y = ops.transpose(y, (0, 2, 1, 3))
        y = ops.reshape(y, (-1, ops.shape(y)[1], width))
        y = packing.pack(y) if packing else y
        return self.output_projection(y)
