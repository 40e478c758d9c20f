"""Multi-head scaled dot-product attention: the token mixer of a Transformer."""

import math

import keras
from keras import ops

from macaron_tf.errors import check_divisible
from macaron_tf.kernels import compiled_by_xla, runs_fused
from macaron_tf.layers.dense import NarrowColumns
from macaron_tf.layers.mixer import Context, Mixer, all_of
from macaron_tf.layers.norms import Dropout
from macaron_tf.layers.watching import note, watched


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


def local_attention_mask(length, window: int):
    """Mask `(1, 1, T, T)` of the positions at most `window // 2` away."""
    positions = ops.arange(length, dtype="int32")
    return (ops.abs(positions - positions[:, None]) <= window // 2)[None, None]


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


def _product(query, key):
    """`query (..., L, d)` by `key (..., T, d)`: `(..., L, T)`."""
    return ops.matmul(query, ops.swapaxes(key, -1, -2))


def _product_in_place(query, key):
    """`_product`, for one query by sums: LiteRT copies the keys before a matrix product."""
    if query.shape[-2] == 1:
        return ops.expand_dims(ops.sum(query * key, axis=-1), -2)
    return _product(query, key)


def _weighted_sum_in_place(weights, value):
    """`weights (..., L, T)` by `value (..., T, d)`: `(..., L, d)`; see `_product_in_place`."""
    if weights.shape[-2] == 1:
        return ops.sum(ops.swapaxes(weights, -1, -2) * value, axis=-2, keepdims=True)
    return ops.matmul(weights, value)


def _by_groups(product, left, right):
    """A product of `left (..., H, L, n)` with `right` of K heads, each for H / K of left's.

    The H / K heads of a group stand below each other as rows, so that nothing is repeated.
    """
    heads, kept = left.shape[-3], right.shape[-3]
    if heads == kept:
        return product(left, right)
    *outer, _, length, width = ops.shape(left)
    # (..., H, L, n) -> (..., K, H/K L, n)
    y = product(ops.reshape(left, (*outer, kept, heads // kept * length, width)), right)
    # (..., K, H/K L, m) -> (..., H, L, m)
    return ops.reshape(y, (*outer, heads, length, ops.shape(y)[-1]))


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
            1/sqrt(d) as wide instead. Lu et al. 2019 write sqrt(D), and their released code divides
            by sqrt(d).
        output_initializer: for the output projection, where it differs.
        window: positions that each one attends: of causal attention itself and those right before
            it, else those at most `window // 2` away; 0 = no limit. Outside of decoding all scores
            are made, then hidden.
        num_kv_heads: K, heads of keys and values, each attended by H / K heads of queries; H by
            default. With fewer the query has a matrix of its own, and a cache is K / H as large.

    Call arguments: `x (B, T, D)`; `memory (B, S, D)` if `cross`; `attention_mask` boolean, True =
    attend, of shape `(B, S)`, `(B, T, S)` or `(B, H, T, S)`. Keras's padding masks are
    combined with it: `mask` (or `x_mask`) of x in self-attention, `memory_mask` across.
    `attention_bias`, added to the float32 scores as it is given: any float that broadcasts to
    `(B, H, T, S)`. Returns `(B, T, D)`, or `output_dim` wide.

    The state is the keys and values of earlier tokens (self), `(B, beams, K, T, d)` each, or of the
    memory (cross), `(B, K, S, d)` each. With a window T is at most `window`: the last ones.

    A subclass may override `rotate` and `scores`; every way to attend, with each cache, calls them.

    References: Vaswani et al. 2017, eq. 1; windows: Child et al. 2019, "Generating Long Sequences
    with Sparse Transformers"; heads of keys: Ainslie et al. 2023, "GQA".
    """

    takes_bias = True
    reads = (
        *("head_dim", "scaled", "attention_dropout", "use_bias", "scaled_outputs"),
        "num_kv_heads",
    )
    takes_packed = True
    takes_documents = True  # by `Context.attention_mask`

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
        num_kv_heads: int | None = None,
        **kwargs,
    ):
        # The layers within cast their inputs; autocast would round the bias to bfloat16.
        super().__init__(autocast=False, **kwargs)
        if causal and cross:
            raise ValueError("attention is causal over its own sequence or cross to a memory")
        if window and (window < 0 or cross):
            raise ValueError(f"window={window} must be a number of positions, of self-attention")
        self.num_kv_heads = num_kv_heads or num_heads
        check_divisible("num_heads", num_heads, "num_kv_heads", self.num_kv_heads)

    def rotate(self, query, key, positions):
        """Queries and keys of x itself by their positions, before keys are kept; here unchanged.

        Args:
            query: `(B, H, T, d)`, or `(B, beams, H, T, d)` with a cache.
            key: as `query`, of K heads.
            positions: int32 of the T tokens in their text, broadcasting to `query[..., 0]`.
        """
        return query, key

    def scores(self, query, key, context: Context, key_positions):
        """The scores `(..., H, T, S)` before any mask or bias; here `query key^T`.

        Args:
            query: `(..., H, T, d)`, already divided by sqrt(d) if `scaled`.
            key: `(..., K, S, d)`, earlier ones included.
            context: with `positions`, those of the queries, broadcasting to `query[..., 0]`.
            key_positions: int32, broadcasting to `key[..., 0]`.
        """
        product = _product if context.held is None else _product_in_place
        return _by_groups(product, query, key)

    @property
    def _placed(self) -> bool:
        """Whether positions are needed: a subclass has its own `rotate` or `scores`."""
        own, base = type(self), MultiHeadAttention
        return own.rotate is not base.rotate or own.scores is not base.scores

    def _with_positions(self, context: Context, query, cache=None) -> Context:
        """The context with the positions of queries `(..., T, d)`, if they are needed."""
        if not self._placed:
            return context
        positions = context.positions
        if positions is None:
            positions = ops.arange(ops.shape(query)[-2], dtype="int32")
            if cache is not None and context.index is not None:
                positions = positions + context.index
            elif cache is not None and self.window:
                raise ValueError("a cache that lets tokens go needs context.positions")
            elif cache is not None:
                positions = positions + ops.shape(cache[0])[3]
        positions = ops.cast(positions, "int32")
        if len(positions.shape) == 2:
            positions = ops.expand_dims(positions, 1)  # (B, T) -> (B, 1, T)
        return context.replace(positions=positions)

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
        """Builds those to queries, H d = `width` wide, keys and values, and the output's."""
        with_query = self.kernel_initializer
        if not self.scaled:
            with_query = NarrowColumns(with_query, width, self._head_dim**-0.5)
        if self.cross or self.num_kv_heads != self.num_heads:
            kept = self.num_kv_heads * self._head_dim
            self.query = self._projection("query", x_shape, width, with_query)
            self.key_value = self._projection("key_value", memory_shape, 2 * kept, parts=2)
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
        query, key, value = self._projected(x, context.packing)
        mask = combine_masks(context.attention_mask, context.mask)
        length = ops.shape(query)[2]
        bias = context.bias and context.bias(query_length=length, key_length=length)
        packing, context = context.packing, self._with_positions(context, query)
        query, key = self.rotate(query, key, context.positions)
        own = length if self.causal or self.window else None
        y = self._attend(query, key, value, mask, bias, context, context.positions, own)
        return self._merge_heads(y, packing), None

    def _projected(self, x, packing=None):
        """Queries `(B, H, T, d)`, keys and values `(B, K, T, d)` of x itself."""
        found = []
        for projection, parts in self._projections:
            y = projection(x)
            y = packing.padded(y) if packing else y  # (N, parts H d) -> (B, T, parts H d)
            found += self._split_heads(y, parts)
        return found

    @property
    def _projections(self):
        """The layers that make queries, keys and values of x itself, and the parts of each."""
        if self.num_kv_heads == self.num_heads:
            return [(self.query_key_value, 3)]
        return [(self.query, 1), (self.key_value, 2)]

    def project_memory(self, memory):
        """Keys and values of the memory `(B, S, D)`: a pair of `(B, K, S, d)` (cross only)."""
        return tuple(self._split_heads(self.key_value(memory), 2))

    def _across(self, x, key_value, mask, context: Context):
        """Attention to the memory; K hypotheses of a sentence attend its one memory as queries."""
        rows = (-1, ops.shape(x)[1]) if len(x.shape) == 3 else (ops.shape(key_value[0])[0], -1)
        # (B, T, H d), or of hypotheses (B K, H d) -> (B, T, H, d) -> (B, H, T, d)
        query = ops.reshape(self.query(x), (*rows, self.num_heads, self._head_dim))
        query = ops.transpose(query, (0, 2, 1, 3))
        lengths = {"query_length": ops.shape(query)[2], "key_length": ops.shape(key_value[0])[2]}
        bias = context.bias and context.bias(**lengths)
        context = self._with_positions(context, query)
        places = self._places(key_value)
        y = self._attend(query, *key_value, mask, bias, context, places)
        if len(x.shape) == 3:
            return self._merge_heads(y)
        # (B, H, K, d) -> (B, K, H, d) -> (B K, H d)
        y = ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (-1, self.num_heads * self._head_dim))
        return self.output_projection(y)

    def init_cache(self, batch_size, beams: int, room: int | None):
        """Room for the keys and values of T tokens: a pair of `(B, beams, K, T, d)`."""
        room = min(room, self.window or room) if room else 0
        shape = (batch_size, beams, self.num_kv_heads, room, self._head_dim)
        zeros = ops.zeros(shape, self.compute_dtype)
        return zeros, zeros

    def _with_cache(self, x, context: Context, cache):
        """Attends new tokens to those of the cache and to those before each."""
        index, (query, *new) = context.index, self._projected_beams(x, cache[0].shape[1])
        context = self._with_positions(context, query, cache)
        query, new[0] = self.rotate(query, new[0], context.positions)
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
        key_positions = self._places(keys)
        if self._placed and self.window:  # the last key is the last token's
            key_positions = key_positions + context.positions[..., -1:] - (total - 1)
        y = self._attend(query, *keys, seen, bias, context, key_positions)
        return self._joined(y, len(x.shape)), cache

    def _projected_beams(self, x, beams: int):
        """`_projected` of new tokens, `(B, beams, H, L, d)`, the K heads of keys alike."""
        if len(x.shape) == 3:
            shape, found = (ops.shape(x)[1], self._head_dim), self._projected(x)
            # (B beams, H, L, d) -> (B, beams, H, L, d)
            return [ops.reshape(y, (-1, beams, y.shape[1], *shape)) for y in found]
        found = []
        for projection, parts in self._projections:
            y = projection(x)
            heads = y.shape[-1] // (parts * self._head_dim)
            # (B beams, parts H d) -> (B, beams, parts, H, 1, d) -> parts of (B, beams, H, 1, d)
            y = ops.reshape(y, (-1, beams, parts, heads, 1, self._head_dim))
            found += ops.unstack(y, parts, axis=2)
        return found

    def _places(self, key_value):
        """0 to S - 1 for keys `(..., S, d)`, where positions are needed."""
        if not self._placed:
            return None
        return ops.arange(ops.shape(key_value[0])[-2], dtype="int32")

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
        length, query = query.shape[3], self._scaled(query)
        among = self.scores(query, new[0], context, context.positions)
        before = self.scores(query, cache[0], context, self._places(cache))
        if length > 1:
            places = ops.arange(length, dtype="int32")
            among = among + ops.where(seen_keys(places, places), 0.0, HIDDEN_SCORE)
        before = before + ops.where(context.held, 0.0, HIDDEN_SCORE)
        weights = ops.softmax(ops.concatenate([among, before], axis=-1), axis=-1)
        among, before = weights[..., :length], weights[..., length:]
        among = _by_groups(_weighted_sum_in_place, among, new[1])
        return among + _by_groups(_weighted_sum_in_place, before, cache[1])

    def _runs_fused(self, query, key, mask, bias) -> bool:
        """Whether `flash_attention` can make weights and outputs in one kernel."""
        own = type(self).scores is not MultiHeadAttention.scores
        if own or len(query.shape) != 4 or bias is not None or watched():
            return False
        if not runs_fused(query.dtype, self._head_dim):
            return False
        from macaron_tf.kernels.flash_attention import divides

        of_keys = mask is None or mask.shape[1] == mask.shape[2] == 1
        return of_keys and divides(query.shape[0], key.shape[1])

    def _fused(self, query, key, value, mask, training):
        """As `_attend`, on JAX, with a mask of keys `(B, 1, 1, S)`."""
        from macaron_tf.kernels.flash_attention import flash_attention

        rate = self.dropout if training else 0.0
        y = flash_attention(
            *(ops.swapaxes(part, 1, 2) for part in (query, key, value)),  # (B, L, H, d)
            None if mask is None else mask[:, 0, 0],
            self.drop.seed_generator.next() if rate else None,
            scale=self._head_dim**-0.5 if self.scaled else 1.0,
            causal=self.causal,
            window=self.window,
            rate=rate,
        )
        return ops.swapaxes(y, 1, 2)  # (B, H, T, d)

    def _scaled(self, query):
        # Scaling the query costs T x d products, scaling the scores T x S.
        if not self.scaled:
            return query
        return ops.multiply(query, ops.cast(1.0 / math.sqrt(self._head_dim), query.dtype))

    def _attend(self, query, key, value, mask, bias, context: Context, key_positions, own=None):
        """Queries `(..., H, T, d)`, rotated, attend keys `(..., K, S, d)`: `(..., H, T, d)`.

        Args:
            own: T if x attends itself and the mask lacks what `causal` and `window` hide; else
                None.
        """
        if self._runs_fused(query, key, mask, bias):
            return self._fused(query, key, value, mask, context.training)
        if own is not None:
            seen = causal_attention_mask if self.causal else local_attention_mask
            mask = combine_masks(mask, seen(own, self.window))
        scores = self.scores(self._scaled(query), key, context, key_positions)  # (..., H, T, S)
        scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
        if bias is not None:
            scores = scores + ops.cast(bias, scores.dtype)
        return self._weighted(scores, mask, value, context.training)

    def _weighted(self, scores, mask, value, training):
        """Values `(..., K, S, d)` weighted by float32 scores `(..., H, T, S)`: `(..., H, T, d)`."""
        if mask is not None:
            # Not by `ops.add`, which on TensorFlow takes the mask of an empty batch for a bias.
            scores = scores + ops.cast(ops.where(mask, 0.0, HIDDEN_SCORE), scores.dtype)
        weights = ops.softmax(scores, axis=-1)
        note(self, weights)
        weights = ops.cast(weights, value.dtype)
        return _by_groups(ops.matmul, self.drop(weights, training=training), value)

    def _split_heads(self, x, parts: int):
        # (B, L, parts H d) -> (B, L, parts, H, d) -> (parts, B, H, L, d)
        heads = x.shape[-1] // (parts * self._head_dim)
        x = ops.reshape(x, (-1, ops.shape(x)[1], parts, heads, self._head_dim))
        x = ops.transpose(x, (2, 0, 3, 1, 4))
        return ops.unstack(x, parts, axis=0)

    def _merge_heads(self, y, packing=None):
        # (B, H, T, d) -> (B, T, H, d) -> (B, T, H d) -> (B, T, D), or packed -> (N, D)
        y = ops.transpose(y, (0, 2, 1, 3))
        y = ops.reshape(y, (-1, ops.shape(y)[1], self.num_heads * self._head_dim))
        y = packing.packed(y) if packing else y
        return self.output_projection(y)
