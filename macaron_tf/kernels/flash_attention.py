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

from macaron_tf.kernels.jax_dropout import kept, key_of, random_bits

# Base-2 score of a hidden key. It is below any real score. Its magnitude is small enough that
# float32 can add the log2 of a sum to it. A row without visible keys therefore gives the mean of
# all values.
HIDDEN = -2048.0
# Score of keys that pad the last block. Even a row without visible keys ignores such keys.
OUTSIDE = -1e30


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
class Form:
    """Static parameters of the kernels.

    Attributes:
        scale: factor for the scores.
        causal: whether a query sees only keys at its own or an earlier position.
        window: size of the attention window; 0 means no window. If `causal`, a query sees its own
            position and `window` - 1 earlier positions. Otherwise, a query sees `window` // 2
            positions on each side.
        rate: dropout rate.
        length: number of keys, without padding of the last block.
        group: number of query heads that share a key and value head.
    """

    scale: float
    causal: bool
    window: int
    rate: float
    length: int
    group: int

    def scores(self, query, key, seen, queries, keys):
        """Computes base-2 attention scores `(Q, K)` of a block of queries and a block of keys.

        Args:
            query: block of queries, `(Q, d)`.
            key: block of keys, `(K, d)`.
            seen: int32 `(K,)`, 0 at hidden keys; `None` means that all keys are visible.
            queries: positions of the queries, `(Q,)`.
            keys: positions of the keys, `(K,)`.
        """
        scores = jnp.dot(query, key.T, preferred_element_type=jnp.float32)
        scores *= self.scale * math.log2(math.e)
        if seen is not None:
            scores = jnp.where((seen != 0)[None], scores, HIDDEN)
        distances, (before, after) = queries[:, None] - keys[None], self.reach
        if before is not None:
            scores = jnp.where(distances <= before, scores, HIDDEN)
        if after is not None:
            scores = jnp.where(distances >= -after, scores, HIDDEN)
        return jnp.where((keys < self.length)[None], scores, OUTSIDE)

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """Numbers of visible positions before and after a query. `None` means no limit."""
        if self.causal:
            return (self.window - 1 if self.window else None), 0
        half = self.window // 2 if self.window else None
        return half, half

    def dropped(self, weights, key, queries, keys):
        """Applies dropout to attention weights `(Q, K)`.

        Args:
            weights: attention weights.
            key: PRNG key of two uint32.
            queries: positions of the queries, `(Q,)`.
            keys: positions of the keys, `(K,)`.
        """
        numbers = queries.astype(jnp.uint32)[:, None] * jnp.uint32(self.length)
        bits = random_bits(numbers + keys.astype(jnp.uint32)[None], key)
        return jnp.where(kept(bits, self.rate), weights * (1.0 / (1.0 - self.rate)), 0.0)

    def keys_of(self, first, size: int, block: int, count: int):
        """Returns the range of key blocks that are visible from a block of queries.

        Args:
            first: position of the first query.
            size: number of queries.
            block: number of keys per block.
            count: number of key blocks.

        Returns:
            Index of the first key block, and index after the last key block.
        """
        return _range(first, size, block, count, *self.reach)

    def queries_of(self, first, size: int, block: int, count: int):
        """Returns the range of query blocks from which a block of keys is visible.

        Args:
            first: position of the first key.
            size: number of keys.
            block: number of queries per block.
            count: number of query blocks.

        Returns:
            Index of the first query block, and index after the last query block.
        """
        return _range(first, size, block, count, *reversed(self.reach))


def _range(first, size: int, block: int, count: int, before: int | None, after: int | None):
    """Returns the range of blocks with positions in [first - before, first + size + after).

    There are `count` blocks of `block` positions. `None` for `before` or `after` means no limit.
    """
    start = 0 if before is None else lax.div(lax.max(first - before, 0), block)
    if after is None:
        return start, count
    return start, lax.min(lax.div(first + size + after + block - 1, block), count)


def _key_of(seed, place):
    """Returns the PRNG key for a batch row and a head. Without dropout, the result is `None`."""
    return None if seed is None else key_of((seed[0], seed[1]), place[...])


def _numbers(block, size: int):
    return block * size + jnp.arange(size, dtype=jnp.int32)


def _forward(form: Form, blocks: Blocks, query, key, value, seen, seed, place, output, logs):
    """Computes attention for one block of queries, as a Pallas kernel.

    The kernel writes the outputs `(Q, d)` and, for the gradient, the log2 of the softmax
    denominators, `(Q,)`.
    """
    first, own, drop = pl.program_id(0), query[...], _key_of(seed, place)
    queries = _numbers(first, blocks.outer)

    def turn(block, state):
        total, most, mean = state
        here, keys = pl.ds(block * blocks.inner, blocks.inner), _numbers(block, blocks.inner)
        scores = form.scores(own, key[here, :], None if seen is None else seen[here], queries, keys)
        highest = jnp.maximum(most, jnp.max(scores, axis=1))
        weights = jnp.exp2(scores - highest[:, None])  # (Q, K)
        before = jnp.exp2(most - highest)
        total = total * before + jnp.sum(weights, axis=1)
        if drop is not None:
            weights = form.dropped(weights, drop, queries, keys)
        part = jnp.dot(
            weights.astype(value.dtype), value[here, :], preferred_element_type=jnp.float32
        )
        return total, highest, mean * before[:, None] + part

    zeros = jnp.zeros((blocks.outer,), jnp.float32)
    start = (zeros, zeros + OUTSIDE, jnp.zeros(own.shape, jnp.float32))
    count = key.shape[0] // blocks.inner
    bounds = form.keys_of(first * blocks.outer, blocks.outer, blocks.inner, count)
    total, most, mean = lax.fori_loop(*bounds, turn, start)
    output[...] = (mean / total[:, None]).astype(output.dtype)
    logs[...] = most + jnp.log2(total)


def _weights(form: Form, drop, scores, logs, cotangent, value, inner, queries, keys):
    """Computes attention weights and the gradient of the scores, for the gradient kernels.

    Args:
        form: static parameters.
        drop: PRNG key of dropout. `None` means no dropout.
        scores: base-2 scores, `(Q, K)`.
        logs: log2 of the softmax denominators from the forward kernel, `(Q,)`.
        cotangent: gradient with respect to the outputs, `(Q, d)`.
        value: block of values, `(K, d)`.
        inner: inner product of `cotangent` and the output for each query, `(Q,)`.
        queries: positions of the queries, `(Q,)`.
        keys: positions of the keys, `(K,)`.

    Returns:
        Weights after dropout, and the gradient with respect to the scores, both `(Q, K)`.
    """
    weights = jnp.exp2(scores - logs[:, None])
    sloped = jnp.dot(cotangent, value.T, preferred_element_type=jnp.float32)
    after = weights
    if drop is not None:
        after = form.dropped(weights, drop, queries, keys)
        sloped = form.dropped(sloped, drop, queries, keys)
    return after, weights * (sloped - inner[:, None]) * form.scale


def _backward_queries(
    form: Form, blocks: Blocks, query, key, value, seen, seed, place, logs, inner, cotangent, result
):
    """Computes the gradient with respect to one block of queries `(Q, d)`, as a Pallas kernel."""
    first, own, drop = pl.program_id(0), query[...], _key_of(seed, place)
    queries, log, product, slope = (
        _numbers(first, blocks.outer),
        logs[...],
        inner[...],
        cotangent[...],
    )

    def turn(block, total):
        here, keys = pl.ds(block * blocks.inner, blocks.inner), _numbers(block, blocks.inner)
        held = key[here, :]
        scores = form.scores(own, held, None if seen is None else seen[here], queries, keys)
        given = (scores, log, slope, value[here, :], product, queries, keys)
        _, sloped = _weights(form, drop, *given)
        return total + jnp.dot(sloped.astype(held.dtype), held, preferred_element_type=jnp.float32)

    count = key.shape[0] // blocks.inner
    bounds = form.keys_of(first * blocks.outer, blocks.outer, blocks.inner, count)
    total = lax.fori_loop(*bounds, turn, jnp.zeros(own.shape, jnp.float32))
    result[...] = total.astype(result.dtype)


def _backward_keys(
    form: Form,
    blocks: Blocks,
    query,
    key,
    value,
    seen,
    seed,
    place,
    logs,
    inner,
    cotangent,
    of_key,
    of_value,
):
    """Computes the gradients with respect to one block of keys and values, as a Pallas kernel.

    The kernel writes the contributions of one query head, `(K, d)` each.
    """
    first, own, held, drop = pl.program_id(0), key[...], value[...], _key_of(seed, place)
    keys = _numbers(first, blocks.outer)
    visible = None if seen is None else seen[...]

    def turn(block, totals):
        here, queries = pl.ds(block * blocks.inner, blocks.inner), _numbers(block, blocks.inner)
        asked, slope = query[here, :], cotangent[here, :]
        scores = form.scores(asked, own, visible, queries, keys)
        given = (scores, logs[here], slope, held, inner[here], queries, keys)
        weights, sloped = _weights(form, drop, *given)
        parts = ((sloped, asked), (weights, slope))
        return tuple(
            total + jnp.dot(one.astype(other.dtype).T, other, preferred_element_type=jnp.float32)
            for total, (one, other) in zip(totals, parts, strict=True)
        )

    count = query.shape[0] // blocks.inner
    bounds = form.queries_of(first * blocks.outer, blocks.outer, blocks.inner, count)
    zeros = jnp.zeros(own.shape, jnp.float32)
    for result, total in zip(
        (of_key, of_value), lax.fori_loop(*bounds, turn, (zeros, zeros)), strict=True
    ):
        result[...] = total.astype(result.dtype)


# These values were tuned on an H200 for a head size of 64.
FORWARD = Blocks(128, 64, warps=4, stages=3)
OF_QUERIES = Blocks(64, 64, warps=4, stages=3)
OF_KEYS = Blocks(64, 64, warps=4, stages=3)


def _run(kernel, form: Form, blocks: Blocks, outer: str, arrays: dict, results: dict):
    """Runs a kernel for each block of queries or keys, each row and each head.

    Arrays for queries have shapes `(B, T, H, d)` and `(B, H, T)`: batch size B, T queries, H query
    heads, and head size d. Arrays for keys have shapes `(B, S, K, d)` and `(B, S)`: S keys and K
    key heads.

    Args:
        kernel: kernel to run.
        form: static parameters.
        blocks: block sizes.
        outer: `"queries"` if a program instance holds a block of queries, or `"keys"`.
        arrays: dict mapping name to input array.
        results: dict mapping name to the shape and dtype of an output.
    """
    rows, length, heads, _ = arrays["query"].shape
    sizes = {"queries": length, "keys": arrays["key"].shape[1]}

    def spec(name: str, array):
        if array is None:
            return None
        if name == "seed":
            return pl.BlockSpec((2,), lambda i, b, h: (0,))
        if name == "place":
            return pl.BlockSpec((None, None), lambda i, b, h: (b, h))
        side = "queries" if name in ("query", "output", "cotangent", "logs", "inner") else "keys"
        size, at = (blocks.outer, True) if side == outer else (sizes[side], False)
        if name == "seen":
            return pl.BlockSpec((None, size), lambda i, b, h: (b, i if at else 0))
        if array.ndim == 3:
            return pl.BlockSpec((None, None, size), lambda i, b, h: (b, h, i if at else 0))
        shared = form.group if name in ("key", "value") else 1
        return pl.BlockSpec(
            (None, size, None, array.shape[-1]),
            lambda i, b, h: (b, i if at else 0, h // shared, 0),
        )

    return pl.pallas_call(
        functools.partial(kernel, form, blocks),
        grid=(sizes[outer] // blocks.outer, rows, heads),
        in_specs=[spec(name, array) for name, array in arrays.items()],
        out_specs=[spec(name, array) for name, array in results.items()],
        out_shape=list(results.values()),
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=jax.default_backend() == "cpu",
        name=kernel.__name__.strip("_"),
    )(*arrays.values())


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(form: Form, query, key, value, seen, seed, place):
    return _with_logs(form, query, key, value, seen, seed, place)[0]


def _with_logs(form: Form, query, key, value, seen, seed, place):
    rows, length, heads, _ = query.shape
    given = {"query": query, "key": key, "value": value}
    given |= {"seen": seen, "seed": seed, "place": place}
    results = {
        "output": jax.ShapeDtypeStruct(query.shape, query.dtype),
        "logs": jax.ShapeDtypeStruct((rows, heads, length), jnp.float32),
    }
    output, logs = _run(_forward, form, FORWARD, "queries", given, results)
    return output, (query, key, value, seen, seed, place, output, logs)


def _gradients(form: Form, residuals, cotangent):
    query, key, value, seen, seed, place, output, logs = residuals
    # (B, T, H, d) x (B, T, H, d) -> (B, H, T)
    inner = jnp.einsum("bthd,bthd->bht", output, cotangent, preferred_element_type=jnp.float32)
    arrays = {"query": query, "key": key, "value": value, "seen": seen, "seed": seed}
    arrays |= {"place": place, "logs": logs, "inner": inner, "cotangent": cotangent}
    like = jax.ShapeDtypeStruct(query.shape, query.dtype)
    (of_query,) = _run(_backward_queries, form, OF_QUERIES, "queries", arrays, {"output": like})
    # (B, S, H, d): one gradient per query head
    like = jax.ShapeDtypeStruct((*key.shape[:2], query.shape[2], key.shape[3]), key.dtype)
    results = {"of_key": like, "of_value": like}
    pair = _run(_backward_keys, form, OF_KEYS, "keys", arrays, results)
    if form.group > 1:
        # (B, S, H, d) -> (B, S, K, H / K, d) -> (B, S, K, d)
        shape = (*key.shape[:3], form.group, key.shape[3])
        pair = [
            jnp.sum(jnp.reshape(part, shape), axis=3, dtype=jnp.float32).astype(key.dtype)
            for part in pair
        ]
    return of_query, *pair, None, None, None


_attention.defvjp(_with_logs, _gradients)


def flash_attention(
    query,
    key,
    value,
    seen=None,
    seed=None,
    *,
    scale: float,
    causal: bool = False,
    window: int = 0,
    rate: float = 0.0,
):
    """Computes attention with dropout of the weights, `dropout(softmax(scale Q K^T)) V`.

    Args:
        query: queries `(B, T, H, d)` with batch size B, T queries, H query heads, and head size d.
        key: keys `(B, S, K, d)` with S keys and K key heads. Each key head is shared by H / K query
            heads.
        value: values `(B, S, K, d)`.
        seen: booleans `(B, S)`, False at hidden keys; `None` means that all keys are visible. A
            query without any visible key gives the mean of all values.
        seed: seed of dropout, `(2,)` uint32.
        scale: factor for the scores.
        causal: whether a query sees only keys at its own or an earlier position.
        window: size of the attention window, as in `Form`; 0 means no window.
        rate: dropout rate; 0 means no dropout.

    Returns:
        Outputs `(B, T, H, d)`.
    """
    (rows, length, heads, _), count = query.shape, key.shape[1]
    form = Form(scale, causal, window, rate, count, heads // key.shape[2])
    whole = max(FORWARD.outer, OF_QUERIES.outer, OF_KEYS.outer)

    def filled(array):
        spare = -array.shape[1] % whole
        return jnp.pad(array, [(0, 0), (0, spare)] + [(0, 0)] * (array.ndim - 2))

    query, key, value = filled(query), filled(key), filled(value)
    seen = None if seen is None else filled(seen.astype(jnp.int32))
    seed = seed.astype(jnp.uint32) if rate else None
    place = jnp.arange(rows * heads, dtype=jnp.uint32).reshape(rows, heads)
    attention = functools.partial(_attention, form)
    if distribution := keras.distribution.distribution():
        cut, whole = PartitionSpec("data", None, "model"), PartitionSpec()
        attention = jax.shard_map(
            attention,
            mesh=distribution.device_mesh.backend_mesh,
            in_specs=(cut, cut, cut, PartitionSpec("data"), whole, PartitionSpec("data", "model")),
            out_specs=cut,
            check_vma=False,  # the check does not support Pallas kernels
        )
    return attention(query, key, value, seen, seed, place)[:, :length]


def divides(rows: int, heads: int) -> bool:
    """Returns whether `flash_attention` can be sharded over the device mesh.

    The size of the mesh's data axis must divide the batch size, and the size of the model axis must
    divide the number of key heads. Without a device mesh, the result is True.

    Args:
        rows: batch size.
        heads: number of key heads.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return True
    data, model = distribution.device_mesh.shape
    return rows % data == 0 and heads % model == 0
