"""FlashAttention with dropout on JAX, in fused kernels that keep scores and weights on the chip.

The kernels are written in Pallas. On GPUs, Pallas compiles the kernels through Triton. On CPUs,
Pallas interprets the kernels. A program instance holds one block of queries for one head, and loops
over the blocks of keys. For the gradient of keys and values, a program instance holds one block of
keys, and loops over the blocks of queries. The random bits of dropout are a hash of (row, head,
query, key). The gradient can therefore compute the bits again, and the block sizes do not affect
the bits.

References: Dao 2023, "FlashAttention-2"; Milakov and Gimelshein 2018 (the online softmax).
"""

import dataclasses
import functools
import math

import jax
import keras
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import PartitionSpec

from macaron_tf.kernels.jax_dropout import derive_key, keep_mask, random_bits

# Base-2 score of a hidden key. It is below any real score. Its magnitude is small enough that
# float32 can add the log2 of a sum to it. A row without visible keys therefore gives a mean of
# values instead of NaN.
MASKED_SCORE = -2048.0
# Score of keys that pad the last block. Even a row without visible keys ignores such keys.
PADDING_SCORE = -1e30

_dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Block sizes and Triton options of a kernel.

    Attributes:
        outer: size of the block that a program instance holds, in queries or keys.
        inner: size of the block that each iteration of the loop reads, in keys or queries.
        warps: `num_warps` for Triton.
        stages: `num_stages` for Triton.
    """

    outer: int
    inner: int
    warps: int
    stages: int


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Static parameters of the kernels.

    Attributes:
        causal: whether a query sees only keys at its own or an earlier position.
        window: size of the attention window; 0 means no window. If `causal`, a query sees its own
            position and `window` - 1 earlier positions. Otherwise, a query sees `window` // 2
            positions on each side.
        length: number of keys, without padding of the last block.
        group: number of query heads that share a key and value head.
    """

    scale: float
    causal: bool
    window: int
    rate: float
    length: int
    group: int

    def scores(self, query, key, key_mask, queries, keys):
        """Computes masked attention scores times log2(e), `(Q, K)`, of two blocks.

        The blocks are `query (Q, d)` and `key (K, d)`, at positions `queries (Q,)` and `keys (K,)`.
        Keys hidden by the int32 `key_mask (K,)` or outside `reach` have MASKED_SCORE, those after
        the end PADDING_SCORE.
        """
        scores = _dot(query, key.T)
        scores *= self.scale * math.log2(math.e)
        if key_mask is not None:
            scores = jnp.where((key_mask != 0)[None], scores, MASKED_SCORE)
        distances, (before, after) = queries[:, None] - keys[None], self.reach
        if before is not None:
            scores = jnp.where(distances <= before, scores, MASKED_SCORE)
        if after is not None:
            scores = jnp.where(distances >= -after, scores, MASKED_SCORE)
        return jnp.where((keys < self.length)[None], scores, PADDING_SCORE)

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """Numbers of visible positions before and after a query. `None` means no limit."""
        if self.causal:
            return (self.window - 1 if self.window else None), 0
        half = self.window // 2 if self.window else None
        return half, half

    def apply_dropout(self, weights, key, queries, keys):
        """Applies dropout to weights `(Q, K)` at positions `(Q,)`, `(K,)`; a key is two uint32."""
        row_starts = queries.astype(jnp.uint32)[:, None] * jnp.uint32(self.length)
        bits = random_bits(row_starts + keys.astype(jnp.uint32)[None], key)
        return jnp.where(keep_mask(bits, self.rate), weights * (1.0 / (1.0 - self.rate)), 0.0)


def _block_range(index, blocks: Blocks, count: int, before: int | None, after: int | None):
    """Returns the range of inner blocks with positions in [first - before, first + size + after).

    The range is the first block and the exclusive end. Outer block `index` has `size` positions
    from `first` on. There are `count` inner blocks. `None` for `before` or `after` means no limit.
    """
    first, size, block = index * blocks.outer, blocks.outer, blocks.inner
    start = 0 if before is None else lax.div(lax.max(first - before, 0), block)
    if after is None:
        return start, count
    return start, lax.min(lax.div(first + size + after + block - 1, block), count)


def _dropout_key(seed, head_index):
    """Returns the PRNG key for a batch row and a head, or `None` without dropout."""
    return None if seed is None else derive_key((seed[0], seed[1]), head_index[...])


def _positions(block, size: int):
    return block * size + jnp.arange(size, dtype=jnp.int32)


def _forward(parameters: Parameters, blocks: Blocks, *arrays):
    """Computes attention for one block of queries, as a Pallas kernel.

    The kernel writes the outputs `(Q, d)` and, for the gradient, the log2 of the softmax
    denominators, `(Q,)`.
    """
    query, key, value, key_mask, seed, head_index, output, logs = arrays
    block_index, query_block = pl.program_id(0), query[...]
    dropout_key = _dropout_key(seed, head_index)
    queries = _positions(block_index, blocks.outer)

    def step(block, state):
        total, maximum, mean = state
        block_slice = pl.ds(block * blocks.inner, blocks.inner)
        keys = _positions(block, blocks.inner)
        visible = None if key_mask is None else key_mask[block_slice]
        scores = parameters.scores(query_block, key[block_slice, :], visible, queries, keys)
        new_maximum = jnp.maximum(maximum, jnp.max(scores, axis=1))
        weights = jnp.exp2(scores - new_maximum[:, None])  # (Q, K)
        rescaling = jnp.exp2(maximum - new_maximum)
        total = total * rescaling + jnp.sum(weights, axis=1)
        if dropout_key is not None:
            weights = parameters.apply_dropout(weights, dropout_key, queries, keys)
        part = _dot(weights.astype(value.dtype), value[block_slice, :])
        return total, new_maximum, mean * rescaling[:, None] + part

    zeros = jnp.zeros((blocks.outer,), jnp.float32)
    start = (zeros, zeros + PADDING_SCORE, jnp.zeros(query_block.shape, jnp.float32))
    count = key.shape[0] // blocks.inner
    bounds = _block_range(block_index, blocks, count, *parameters.reach)
    total, maximum, mean = lax.fori_loop(*bounds, step, start)
    output[...] = (mean / total[:, None]).astype(output.dtype)
    logs[...] = maximum + jnp.log2(total)


def _weights(
    parameters: Parameters, dropout_key, scores, logs, cotangent, value, delta, queries, keys
):
    """Computes attention weights after dropout and the gradient of `Q K^T`, both `(Q, K)`.

    `logs (Q,)` are the log2 of the softmax denominators from the forward kernel, `cotangent (Q, d)`
    is the gradient of the outputs, and `delta (Q,)` is its inner product with the outputs.
    """
    weights = jnp.exp2(scores - logs[:, None])
    score_gradient = _dot(cotangent, value.T)
    dropped_weights = weights
    if dropout_key is not None:
        dropped_weights = parameters.apply_dropout(weights, dropout_key, queries, keys)
        score_gradient = parameters.apply_dropout(score_gradient, dropout_key, queries, keys)
    return dropped_weights, weights * (score_gradient - delta[:, None]) * parameters.scale


def _backward_queries(parameters: Parameters, blocks: Blocks, *arrays):
    """Computes the gradient with respect to one block of queries `(Q, d)`, as a Pallas kernel."""
    query, key, value, key_mask, seed, head_index, logs, delta, cotangent, result = arrays
    block_index, query_block = pl.program_id(0), query[...]
    dropout_key = _dropout_key(seed, head_index)
    queries = _positions(block_index, blocks.outer)
    log, block_delta, block_cotangent = logs[...], delta[...], cotangent[...]

    def step(block, total):
        block_slice = pl.ds(block * blocks.inner, blocks.inner)
        keys = _positions(block, blocks.inner)
        key_block = key[block_slice, :]
        visible = None if key_mask is None else key_mask[block_slice]
        scores = parameters.scores(query_block, key_block, visible, queries, keys)
        arguments = (scores, log, block_cotangent, value[block_slice, :], block_delta)
        _, score_gradient = _weights(parameters, dropout_key, *arguments, queries, keys)
        return total + _dot(score_gradient.astype(key_block.dtype), key_block)

    count = key.shape[0] // blocks.inner
    bounds = _block_range(block_index, blocks, count, *parameters.reach)
    total = lax.fori_loop(*bounds, step, jnp.zeros(query_block.shape, jnp.float32))
    result[...] = total.astype(result.dtype)


def _backward_keys(parameters: Parameters, blocks: Blocks, *arrays):
    """Computes the gradients of one block of keys and values, as a Pallas kernel.

    The kernel writes the contributions of one query head, `(K, d)` each.
    """
    query, key, value, key_mask, seed, head_index, logs, delta, cotangent, *results = arrays
    block_index, key_block, value_block = pl.program_id(0), key[...], value[...]
    dropout_key = _dropout_key(seed, head_index)
    keys = _positions(block_index, blocks.outer)
    visible = None if key_mask is None else key_mask[...]

    def step(block, totals):
        block_slice = pl.ds(block * blocks.inner, blocks.inner)
        queries = _positions(block, blocks.inner)
        query_block, block_cotangent = query[block_slice, :], cotangent[block_slice, :]
        scores = parameters.scores(query_block, key_block, visible, queries, keys)
        arguments = (scores, logs[block_slice], block_cotangent, value_block, delta[block_slice])
        weights, score_gradient = _weights(parameters, dropout_key, *arguments, queries, keys)
        parts = ((score_gradient, query_block), (weights, block_cotangent))
        return tuple(
            total + _dot(gradient.astype(operand.dtype).T, operand)
            for total, (gradient, operand) in zip(totals, parts, strict=True)
        )

    count = query.shape[0] // blocks.inner
    bounds = _block_range(block_index, blocks, count, *reversed(parameters.reach))
    zeros = jnp.zeros(key_block.shape, jnp.float32)
    totals = lax.fori_loop(*bounds, step, (zeros, zeros))
    for result, total in zip(results, totals, strict=True):
        result[...] = total.astype(result.dtype)


# These values were tuned on an H200 for a head size of 64.
FORWARD_BLOCKS = Blocks(128, 64, warps=4, stages=3)
BACKWARD_BLOCKS = Blocks(64, 64, warps=4, stages=3)


def _call_kernel(
    kernel, parameters: Parameters, blocks: Blocks, outer: str, arrays: dict, results: dict
):
    """Runs a kernel for each block of queries or keys (`outer`), each row and each head.

    Arrays for queries have shapes `(B, T, H, d)` and `(B, H, T)`: batch size B, T queries, H query
    heads, and head size d. Arrays for keys have shapes `(B, S, K, d)` and `(B, S)`: S keys and K
    key heads.
    """
    rows, length, heads, _ = arrays["query"].shape
    sizes = {"queries": length, "keys": arrays["key"].shape[1]}

    def spec(name: str, array):
        if array is None:
            return None
        if name == "seed":
            return pl.BlockSpec((2,), lambda i, b, h: (0,))
        if name == "head_index":
            return pl.BlockSpec((None, None), lambda i, b, h: (b, h))
        side = "queries" if name in ("query", "output", "cotangent", "logs", "delta") else "keys"
        size, is_blocked = (blocks.outer, True) if side == outer else (sizes[side], False)
        if name == "key_mask":
            return pl.BlockSpec((None, size), lambda i, b, h: (b, i if is_blocked else 0))
        if array.ndim == 3:
            return pl.BlockSpec((None, None, size), lambda i, b, h: (b, h, i if is_blocked else 0))
        shared = parameters.group if name in ("key", "value") else 1
        return pl.BlockSpec(
            (None, size, None, array.shape[-1]),
            lambda i, b, h: (b, i if is_blocked else 0, h // shared, 0),
        )

    return pl.pallas_call(
        functools.partial(kernel, parameters, blocks),
        grid=(sizes[outer] // blocks.outer, rows, heads),
        in_specs=[spec(name, array) for name, array in arrays.items()],
        out_specs=[spec(name, array) for name, array in results.items()],
        out_shape=list(results.values()),
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=jax.default_backend() == "cpu",
        name=kernel.__name__.strip("_"),
    )(*arrays.values())


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(parameters: Parameters, query, key, value, key_mask, seed, head_index):
    return _with_logs(parameters, query, key, value, key_mask, seed, head_index)[0]


def _with_logs(parameters: Parameters, query, key, value, key_mask, seed, head_index):
    rows, length, heads, _ = query.shape
    arrays = {"query": query, "key": key, "value": value}
    arrays |= {"key_mask": key_mask, "seed": seed, "head_index": head_index}
    results = {
        "output": jax.ShapeDtypeStruct(query.shape, query.dtype),
        "logs": jax.ShapeDtypeStruct((rows, heads, length), jnp.float32),
    }
    output, logs = _call_kernel(_forward, parameters, FORWARD_BLOCKS, "queries", arrays, results)
    return output, (query, key, value, key_mask, seed, head_index, output, logs)


def _gradients(parameters: Parameters, residuals, cotangent):
    query, key, value, key_mask, seed, head_index, output, logs = residuals
    # (B, T, H, d) x (B, T, H, d) -> (B, H, T)
    delta = jnp.einsum("bthd,bthd->bht", output, cotangent, preferred_element_type=jnp.float32)
    arrays = {"query": query, "key": key, "value": value, "key_mask": key_mask, "seed": seed}
    arrays |= {"head_index": head_index, "logs": logs, "delta": delta, "cotangent": cotangent}
    like = jax.ShapeDtypeStruct(query.shape, query.dtype)
    options = (parameters, BACKWARD_BLOCKS, "queries", arrays, {"output": like})
    (query_gradient,) = _call_kernel(_backward_queries, *options)
    # (B, S, H, d): one gradient per query head
    like = jax.ShapeDtypeStruct((*key.shape[:2], query.shape[2], key.shape[3]), key.dtype)
    results = {"key_gradient": like, "value_gradient": like}
    pair = _call_kernel(_backward_keys, parameters, BACKWARD_BLOCKS, "keys", arrays, results)
    if parameters.group > 1:
        # (B, S, H, d) -> (B, S, K, H / K, d) -> (B, S, K, d)
        shape = (*key.shape[:3], parameters.group, key.shape[3])
        sums = [jnp.sum(jnp.reshape(part, shape), axis=3, dtype=jnp.float32) for part in pair]
        pair = [part.astype(key.dtype) for part in sums]
    return query_gradient, *pair, None, None, None


_attention.defvjp(_with_logs, _gradients)


def flash_attention(
    query,
    key,
    value,
    key_mask=None,
    seed=None,
    *,
    scale: float,
    causal: bool = False,
    window: int = 0,
    rate: float = 0.0,
):
    """Computes attention with dropout of the weights, `dropout(softmax(scale Q K^T)) V`.

    Args:
        query: queries `(B, T, H, d)`, as the result: batch size B, T queries, H query heads, head
            size d.
        key, value: `(B, S, K, d)` with S keys and K key heads, each shared by H / K query heads.
        key_mask: booleans `(B, S)`, False at hidden keys. A query without any visible key gives a
            mean of values instead of NaN.
        seed: seed of dropout, `(2,)` integers, which a `rate` above 0 requires.
        window: size of the attention window, as in `Parameters`; 0 means no window.
    """
    (rows, length, heads, _), num_keys = query.shape, key.shape[1]
    parameters = Parameters(scale, causal, window, rate, num_keys, heads // key.shape[2])
    block_multiple = max(FORWARD_BLOCKS.outer, BACKWARD_BLOCKS.outer)

    def pad_length(array):
        padding = -array.shape[1] % block_multiple
        return jnp.pad(array, [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2))

    query, key, value = map(pad_length, (query, key, value))
    key_mask = None if key_mask is None else pad_length(key_mask.astype(jnp.int32))
    seed = seed.astype(jnp.uint32) if rate else None
    head_index = jnp.arange(rows * heads, dtype=jnp.uint32).reshape(rows, heads)
    attention = functools.partial(_attention, parameters)
    if distribution := keras.distribution.distribution():
        sharded = PartitionSpec("data", None, "model")
        specs = (sharded, sharded, sharded, PartitionSpec("data"), PartitionSpec())
        attention = jax.shard_map(
            attention,
            mesh=distribution.device_mesh.backend_mesh,
            in_specs=(*specs, PartitionSpec("data", "model")),
            out_specs=sharded,
            check_vma=False,  # the check does not support Pallas kernels
        )
    return attention(query, key, value, key_mask, seed, head_index)[:, :length]


def can_shard(rows: int, heads: int) -> bool:
    """Returns whether `flash_attention` can be sharded over the device mesh, if there is one.

    The size of the mesh's data axis must divide the batch size (`rows`), and the size of the model
    axis must divide the number of key heads.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return True
    data, model = distribution.device_mesh.shape
    return rows % data == 0 and heads % model == 0
