"""FlashAttention with dropout on JAX: one kernel, which keeps scores and weights on the chip.

It is written in Pallas, which Triton compiles for GPUs; on CPUs it runs interpreted. A program
instance holds one block of queries of one head and loops over the blocks of keys; in the gradient
of keys and values it holds a block of keys and loops over queries. Dropout's random bits are a hash
of (row, head, query, key), so that the gradient can compute them again, and the size of the blocks
does not change them.

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

# Base-2 score of a hidden key: below any real score, but small enough for float32 to add log2 of a
# sum to it. So a row without visible keys gives the mean of all values.
HIDDEN = -2048.0
# Score of keys that only pad the last block; rows without visible keys do not see them either.
OUTSIDE = -1e30


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes of the blocks of queries and keys, and Triton's options.

    Attributes:
        outer: size of the block that a program instance holds.
        inner: size of the other side's block, of which each iteration reads one.
        warps, stages: Triton's `num_warps` and `num_stages`.
    """

    outer: int
    inner: int
    warps: int
    stages: int


@dataclasses.dataclass(frozen=True)
class Form:
    """Static parameters of the kernels.

    Attributes:
        scale: factor of the scores.
        causal, window: see `MultiHeadAttention`.
        rate: dropout rate.
        length: S, the number of keys.
        group: number of query heads that share a key and value head.
    """

    scale: float
    causal: bool
    window: int
    rate: float
    length: int
    group: int

    def scores(self, query, key, seen, queries, keys):
        """Base-2 scores `(Q, K)` of blocks `query (Q, d)` and `key (K, d)`.

        Args:
            seen: `(K,)` int32, 0 at hidden keys; None: all are visible.
            queries, keys: positions `(Q,)` and `(K,)`.
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
        """How many positions before and after its own a query sees; None: all."""
        if self.causal:
            return (self.window - 1 if self.window else None), 0
        half = self.window // 2 if self.window else None
        return half, half

    def dropped(self, weights, key, queries, keys):
        """Weights `(Q, K)` after dropout, with a key of two uint32 for the random bits."""
        numbers = queries.astype(jnp.uint32)[:, None] * jnp.uint32(self.length)
        bits = random_bits(numbers + keys.astype(jnp.uint32)[None], key)
        return jnp.where(kept(bits, self.rate), weights * (1.0 / (1.0 - self.rate)), 0.0)

    def keys_of(self, first, size: int, block: int, count: int):
        """Range (start, end) of the key blocks that `size` queries from `first` on can see."""
        return _range(first, size, block, count, *self.reach)

    def queries_of(self, first, size: int, block: int, count: int):
        """Range (start, end) of the query blocks that can see `size` keys from `first` on."""
        return _range(first, size, block, count, *reversed(self.reach))


def _range(first, size: int, block: int, count: int, before: int | None, after: int | None):
    """Range of those of `count` blocks with positions in [first - before, first + size + after)."""
    start = 0 if before is None else lax.div(lax.max(first - before, 0), block)
    if after is None:
        return start, count
    return start, lax.min(lax.div(first + size + after + block - 1, block), count)


def _key_of(seed, place):
    """Key of dropout's random bits for a row and head; None without dropout."""
    return None if seed is None else key_of((seed[0], seed[1]), place[...])


def _numbers(block, size: int):
    return block * size + jnp.arange(size, dtype=jnp.int32)


def _forward(form: Form, blocks: Blocks, query, key, value, seen, seed, place, output, logs):
    """Forward kernel for one block of queries.

    It writes the outputs `(Q, d)` and, for the gradient, log2 of the sums of exponentials `(Q,)`.
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
    """For the gradient kernels: the weights `(Q, K)` after dropout, and the gradient of the scores.

    Args:
        logs: `(Q,)`, from the forward kernel.
        cotangent: `(Q, d)`, the gradient of the outputs.
        inner: `(Q,)`, inner products of cotangent and outputs.
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
    """Gradient kernel for one block of queries `(Q, d)`."""
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
    """Gradient kernel for one block of keys and values, `(K, d)` each, from one query head."""
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


# Chosen on an H200 at d = 64.
FORWARD = Blocks(128, 64, warps=4, stages=3)
OF_QUERIES = Blocks(64, 64, warps=4, stages=3)
OF_KEYS = Blocks(64, 64, warps=4, stages=3)


def _run(kernel, form: Form, blocks: Blocks, outer: str, arrays: dict, results: dict):
    """Runs a kernel for each block of `outer`, each row and each head.

    Args:
        outer: "queries" or "keys".
        arrays, results: inputs, and shapes and dtypes of the outputs, by name: `(B, T, H, d)` and
            `(B, H, T)` for queries, `(B, S, K, d)` and `(B, S)` for keys.
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
    # (B, S, H, d), the gradients from each query head
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
    """Attention with dropout of the weights, `softmax(scale Q K^T) V`: `(B, T, H, d)`.

    Args:
        query: `(B, T, H, d)`.
        key, value: `(B, S, K, d)`; each head is shared by H / K query heads.
        seen: `(B, S)` boolean, False at keys that no query attends. A row without any True gives a
            mean of values. None: all are visible.
        seed: `(2,)` uint32, the seed of dropout.
        scale: factor of the scores.
        causal, window: see `MultiHeadAttention`.
        rate: dropout rate; 0: none.
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
    """Whether rows and key heads are divisible by the axes of the device mesh, if there is one."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return True
    data, model = distribution.device_mesh.shape
    return rows % data == 0 and heads % model == 0
