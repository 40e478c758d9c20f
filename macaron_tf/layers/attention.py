"""Multi-head scaled dot-product attention: the token mixer of a Transformer."""

import math

import keras
from keras import ops

from macaron_tf.errors import check_divisible
from macaron_tf.kernels import compiled_by_xla
from macaron_tf.layers.dense import NarrowColumns
from macaron_tf.layers.mixer import Context, Mixer, all_of
from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.watching import note


def broadcast_mask(mask):
    """Brings a boolean mask, True = attend, to rank 4; None stays None.

    It is of key padding `(B, S)`, full `(B, T, S)` or per head `(B, H, T, S)`.
    """
    if mask is None:
        return None
    rank = len(mask.shape)
    if rank == 2:
        return ops.expand_dims(mask, (1, 2))  # (B, 1, 1, S)
    if rank == 3:
        return ops.expand_dims(mask, 1)  # (B, 1, T, S)
    if rank == 4:
        return mask
    raise ValueError(f"an attention mask has rank 2, 3 or 4, got shape {mask.shape}")


def combine_masks(*masks):
    """The positions that all given masks allow, see `broadcast_mask`; None where none is given."""
    return all_of(*(broadcast_mask(mask) for mask in masks))


def causal_attention_mask(length, window: int = 0):
    """Lower-triangular mask `(1, 1, T, T)`, of a band if there is a window: see `seen_keys`."""
    positions = ops.arange(length, dtype="int32")
    return seen_keys(positions, positions, window)[None, None]


def seen_keys(queries, keys, window: int = 0):
    """Mask `(T, S)`: True where the key is not after the query.

    Args:
        queries, keys: positions `(T,)` and `(S,)`.
        window: positions that a query sees, its own and those right before it; 0 = all before.
    """
    seen = keys <= queries[:, None]
    return ops.logical_and(seen, keys > queries[:, None] - window) if window else seen


# Added to the score of a hidden position: far below any real score, and finite, so that a row
# with nothing to attend (a padding sentence) gives a mean and not a NaN.
HIDDEN_SCORE = -1e9


def _written(held, part, index):
    """`held (B, K, H, T, d)` with `part (B, K, H, L, d)` written from position `index` on."""
    if compiled_by_xla():
        return ops.slice_update(held, (0, 0, 0, index, 0), part)
    # Outside XLA, TensorFlow compiles `slice_update` alone, anew for each shape.
    numbers = ops.arange(held.shape[3], dtype="int32") - index  # (T,), the part's row for each
    length = ops.shape(part)[3]
    if part.shape[3] != 1:
        part = ops.take(part, ops.clip(numbers, 0, length - 1), axis=3)  # (B, K, H, T, d)
    comes = ops.logical_and(numbers >= 0, numbers < length)
    return ops.where(comes[:, None], part, held)


def _scores(query, key):
    """`query (..., L, d)` by `key (..., T, d)`: `(..., L, T)`.

    One query by sums of products: LiteRT copies the keys before a matrix product.
    """
    if query.shape[-2] == 1:
        return ops.expand_dims(ops.sum(query * key, axis=-1), -2)
    return ops.matmul(query, ops.swapaxes(key, -1, -2))


def _weighted_sum(weights, value):
    """`weights (..., L, T)` by `value (..., T, d)`: `(..., L, d)`."""
    if weights.shape[-2] == 1:
        return ops.sum(ops.swapaxes(weights, -1, -2) * value, axis=-2, keepdims=True)
    return ops.matmul(weights, value)


class MultiHeadAttention(Mixer):
    """`softmax(Q K^T / sqrt(d)) V` in H heads, over the sequence itself or over a memory.

    Args:
        num_heads: H.
        head_dim: d of one head; D / H by default.
        dropout: probability of dropping an attention weight, 0 to 1.
        causal: position t attends positions 0 to t only (self-attention).
        cross: keys and values come from a memory given at call time.
        use_bias: whether the four projections have a bias.
        output_dim: width of the output; D by default.
        kernel_initializer: for all projections. Query, key and value (self) or key and value
            (cross) are one fused matrix, whose fan-out the initializer sees: Xavier-uniform is
            then 1/sqrt(2) (self) or sqrt(2/3) (cross) as wide as that of separate matrices.
        scaled: whether scores are divided by sqrt(d); T5's are not, whose query's matrix starts
            1/sqrt(d) as wide instead.
        output_initializer: for the output projection, where it differs.
        window: positions that each one attends, itself and those right before it (causal
            attention only); 0 = all before. Outside of decoding all scores are made, then hidden.

    Call arguments: `x (B, T, D)`; `memory (B, S, D)` if `cross`; `attention_mask` boolean, True =
    attend, of shape `(B, S)`, `(B, T, S)` or `(B, H, T, S)`. Keras's padding masks are
    combined with it: `mask` (or `x_mask`) of x in self-attention, `memory_mask` across.
    `attention_bias`, added to the float32 scores as it is given: any float that broadcasts to
    `(B, H, T, S)`. Returns `(B, T, D)`, or `output_dim` wide.

    The state is the keys and values of earlier tokens (self), `(B, K, H, T, d)` each, or of the
    memory (cross), `(B, H, S, d)` each. With a window T is at most `window`: the last ones.

    References: Vaswani et al. 2017, eq. 1; windows: Child et al. 2019, "Generating Long Sequences
    with Sparse Transformers".
    """

    takes_bias = True
    reads = ("head_dim", "scaled", "attention_dropout", "use_bias", "scaled_outputs")
    takes_packed = True

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
        output_initializer=None,
        window: int = 0,
        **kwargs,
    ):
        # The layers within cast their inputs; autocast would round the bias to bfloat16.
        super().__init__(autocast=False, **kwargs)
        if causal and cross:
            raise ValueError("attention is causal over its own sequence or cross to a memory")
        if window and (window < 0 or not causal):
            raise ValueError(f"window={window} must be a number of positions, of causal attention")

    def build(self, x_shape, memory_shape=None):
        hidden_dim = x_shape[-1]
        self._head_dim = self.head_dim or check_divisible(
            "hidden_dim", hidden_dim, "num_heads", self.num_heads
        )
        width = self.num_heads * self._head_dim
        self.build_projections(x_shape, memory_shape or x_shape, width)
        self.drop = Dropout(self.dropout, name="dropout")

    @property
    def takes_held(self) -> bool:
        return not self.window

    def build_projections(self, x_shape, memory_shape, width: int) -> None:
        """Builds those to queries, keys and values, H d = `width` wide each, and the output's."""
        with_query = self.kernel_initializer
        if not self.scaled:
            with_query = NarrowColumns(with_query, width, self._head_dim**-0.5)
        if self.cross:
            self.query = self._projection("query", x_shape, width, with_query)
            self.key_value = self._projection("key_value", memory_shape, 2 * width, parts=2)
        else:
            self.query_key_value = self._projection(
                "query_key_value", x_shape, 3 * width, with_query, parts=3
            )
        self.output_projection = self._output(x_shape, width)

    def _output(self, x_shape, width: int):
        *outer, hidden_dim = x_shape
        units = self.output_dim or hidden_dim
        shape, axes = (*outer, width), ("heads", "embed")
        return self._projection("output", shape, units, self.output_initializer, axes=axes)

    def _projection(self, name: str, shape, units: int, initializer=None, **options):
        initializer = (initializer or self.kernel_initializer).clone()
        options = {"use_bias": self.use_bias, "axes": ("embed", "heads"), **options}
        return self.dense_part(name, shape, units, initializer, **options)

    def mix(self, x, context: Context, state=None):
        if self.cross:
            key_value = state or self.project_memory(context.memory)
            mask = combine_masks(context.attention_mask, context.memory_mask)
            return self._across(x, key_value, mask, context), None
        if state is not None:
            return self._with_cache(x, context, state)
        packing, qkv = context.packing, self.query_key_value(x)
        qkv = packing.padded(qkv) if packing else qkv  # (B, T, 3 H d)
        query, key, value = self._split_heads(qkv, 3)
        mask = combine_masks(context.attention_mask, context.mask)
        length = ops.shape(qkv)[1]
        if self.causal:
            mask = combine_masks(mask, causal_attention_mask(length, self.window))
        bias = context.bias and context.bias(query_length=length, key_length=length)
        y = self._attend(query, key, value, mask, bias, context.training)  # (B, H, T, d)
        return self._merge_heads(y, packing), None

    def project_memory(self, memory):
        """Keys and values of the memory `(B, S, D)`: a pair of `(B, H, S, d)` (cross only)."""
        return tuple(self._split_heads(self.key_value(memory), 2))

    def _across(self, x, key_value, mask, context: Context):
        """Attention to the memory; K hypotheses of a sentence attend its one memory as queries."""
        rows = (-1, ops.shape(x)[1]) if len(x.shape) == 3 else (ops.shape(key_value[0])[0], -1)
        # (B, T, H d), or of hypotheses (B K, H d) -> (B, T, H, d) -> (B, H, T, d)
        query = ops.reshape(self.query(x), (*rows, self.num_heads, self._head_dim))
        query = ops.transpose(query, (0, 2, 1, 3))
        lengths = {"query_length": ops.shape(query)[2], "key_length": ops.shape(key_value[0])[2]}
        bias = context.bias and context.bias(**lengths)
        y = self._attend(query, *key_value, mask, bias, context.training)
        if len(x.shape) == 3:
            return self._merge_heads(y)
        # (B, H, K, d) -> (B, K, H, d) -> (B K, H d)
        y = ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (-1, self.num_heads * self._head_dim))
        return self.output_projection(y)

    def init_cache(self, batch_size, beams: int, room: int | None):
        """Room for the keys and values of T tokens: a pair of `(B, K, H, T, d)`."""
        room = min(room, self.window or room) if room else 0
        shape = (batch_size, beams, self.num_heads, room, self._head_dim)
        zeros = ops.zeros(shape, self.compute_dtype)
        return zeros, zeros

    def _with_cache(self, x, context: Context, cache):
        """Attends new tokens to those of the cache and to those before each."""
        beams, index, qkv = cache[0].shape[1], context.index, self.query_key_value(x)
        if len(x.shape) == 2:
            # (B K, 3 H d) -> (B, K, 3, H, 1, d) -> 3 of (B, K, H, 1, d)
            qkv = ops.reshape(qkv, (-1, beams, 3, self.num_heads, 1, self._head_dim))
            query, *new = ops.unstack(qkv, 3, axis=2)
        else:
            # 3 of (B K, H, L, d) -> (B, K, H, L, d)
            shape = (-1, beams, self.num_heads, ops.shape(x)[1], self._head_dim)
            query, *new = (ops.reshape(part, shape) for part in self._split_heads(qkv, 3))
        if context.held is not None:
            return self._joined(self._beside(query, cache, new, context), len(x.shape)), tuple(new)
        pairs, held = zip(cache, new, strict=True), ops.shape(cache[0])[3]
        if index is None or self.window:  # new tokens stand behind those that are held
            start, keys = held, tuple(ops.concatenate(pair, axis=3) for pair in pairs)
        else:
            start, keys = index, tuple(_written(old, part, index) for old, part in pairs)
        length, total = ops.shape(query)[3], ops.shape(keys[0])[3]
        seen = bias = None
        if index is not None or self.window or query.shape[3] != 1:  # else one token sees all
            own, places = (ops.arange(n, dtype="int32") for n in (length, total))
            seen = seen_keys(own + start, places, self.window)  # (L, T)
        if not self.window:
            cache = keys
        elif index is None:
            cache = tuple(part[:, :, :, -self.window :] for part in keys)
        else:
            # A fixed room is filled from its end: its first places are from before the text.
            seen = ops.logical_and(seen, places >= held - index)
            # Of the room's static shape, which a loop requires.
            cache = tuple(
                ops.reshape(part[:, :, :, -held:], ops.shape(old))
                for part, old in zip(keys, cache, strict=True)
            )
        if context.bias is not None:
            # (1, H, L, T), for scores (B, K, H, L, T)
            bias = context.bias(query_length=length, key_length=total, start=start)
        y = self._attend(query, *keys, seen, bias, context.training)
        return self._joined(y, len(x.shape)), cache

    def _joined(self, y, rank: int):
        """The output of `y (B, K, H, L, d)`: `(B K, D)` at rank 2, else `(B K, L, D)`."""
        if rank == 2:
            y = ops.reshape(y, (-1, self.num_heads * self._head_dim))
            return self.output_projection(y)
        # (B, K, H, L, d) -> (B K, H, L, d)
        return self._merge_heads(
            ops.reshape(y, (-1, self.num_heads, ops.shape(y)[3], self._head_dim))
        )

    def _beside(self, query, cache, new, context: Context):
        """Attends new tokens to those of the cache and to those before each: see `Context.held`.

        The scores are joined, not the keys: the cache is read in its place.
        """
        length = query.shape[3]
        if self.scaled:
            query = ops.multiply(query, ops.cast(1.0 / math.sqrt(self._head_dim), query.dtype))
        among, before = (_scores(query, keys) for keys in (new[0], cache[0]))
        if length > 1:
            places = ops.arange(length, dtype="int32")
            among = among + ops.where(seen_keys(places, places), 0.0, HIDDEN_SCORE)
        before = before + ops.where(context.held, 0.0, HIDDEN_SCORE)
        weights = ops.softmax(ops.concatenate([among, before], axis=-1), axis=-1)
        among, before = weights[..., :length], weights[..., length:]
        return _weighted_sum(among, new[1]) + _weighted_sum(before, cache[1])

    def _attend(self, query, key, value, mask, bias, training):
        # Scaling the query costs T x d products, scaling the scores T x S.
        if self.scaled:
            query = ops.multiply(query, ops.cast(1.0 / math.sqrt(self._head_dim), query.dtype))
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))  # (..., T, S)
        scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
        if bias is not None:
            scores = scores + ops.cast(bias, scores.dtype)
        return self._weighted(scores, mask, value, training)

    def _weighted(self, scores, mask, value, training):
        """Values `(..., S, d)` weighted by float32 scores `(..., T, S)`: `(..., T, d)`."""
        if mask is not None:
            # Not by `ops.add`, which on TensorFlow takes the mask of an empty batch for a bias.
            scores = scores + ops.cast(ops.where(mask, 0.0, HIDDEN_SCORE), scores.dtype)
        weights = ops.softmax(scores, axis=-1)
        note(self, weights)
        weights = ops.cast(weights, value.dtype)
        return ops.matmul(self.drop(weights, training=training), value)

    def _split_heads(self, x, parts: int):
        # (B, L, parts H d) -> (B, L, parts, H, d) -> (parts, B, H, L, d)
        x = ops.reshape(x, (-1, ops.shape(x)[1], parts, self.num_heads, self._head_dim))
        x = ops.transpose(x, (2, 0, 3, 1, 4))
        return ops.unstack(x, parts, axis=0)

    def _merge_heads(self, y, packing=None):
        # (B, H, T, d) -> (B, T, H, d) -> (B, T, H d) -> (B, T, D), or packed -> (N, D)
        y = ops.transpose(y, (0, 2, 1, 3))
        y = ops.reshape(y, (-1, ops.shape(y)[1], self.num_heads * self._head_dim))
        y = packing.packed(y) if packing else y
        return self.output_projection(y)
