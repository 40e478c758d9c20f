"""Sampling: stateless random draws, continuing prompts, and sampling from an encoder-decoder."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import tensorflow as tf
from annotated_types import Ge, Gt, Le

from macaron_tf.decoding.beam_search import NEVER, LengthLimits, StepFunction, loop_shapes
from macaron_tf.kernels import compiled_by_xla
from macaron_tf.settings import Count, Natural, NonNegative, Settings
from macaron_tf.special_ids import BOS, EOS, PAD


@dataclasses.dataclass(frozen=True)
class DrawSettings(Settings):
    """Settings of sampling a token: temperature, then top-k, then top-p.

    Attributes:
        temperature: divisor of the logits; 0: greedy search.
        top_k: number of most probable tokens that are kept; 0: all.
        top_p: probability p of nucleus sampling (Holtzman et al. 2020): only the smallest set of
            most probable tokens that reaches p is kept; 1: all.
        num_samples: K, the independent samples of each input.
    """

    section: ClassVar[str] = "decoding"

    temperature: NonNegative = 1.0
    top_k: Natural = 0
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    num_samples: Count = 1


@dataclasses.dataclass(frozen=True)
class SamplingConfig(LengthLimits, DrawSettings):
    """Settings of sampling from an encoder-decoder."""


@dataclasses.dataclass(frozen=True)
class GenerationConfig(DrawSettings):
    """Settings of continuing a text with a language model; sample k uses the seed + k.

    Attributes:
        max_tokens: most new tokens, with the token that ends the text.
        min_tokens: new tokens before the text may end.
    """

    max_tokens: Annotated[int, Ge(1), Le(2**30)] = 128  # int32 holds the sum with a prompt's
    min_tokens: Natural = 0

    def check(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise self.error(
                f"min_tokens={self.min_tokens} must be at most max_tokens={self.max_tokens}"
            )


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(
    key: tuple[tf.Tensor, tf.Tensor], counter: tuple[tf.Tensor, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Threefry-2x32 with 20 rounds: 64 random bits for each key and counter.

    TensorFlow's stateless draws take one seed for a whole tensor, and XLA draws other bits. Here
    each element has its own seed, so that a text's draws do not depend on its batch.

    Args:
        key, counter: two uint32 words each, of shapes that broadcast.

    Returns:
        Two uint32 words of the common shape.

    References: Salmon et al. 2011, section 3.2.
    """
    keys = (*key, key[0] ^ key[1] ^ tf.constant(_PARITY, tf.uint32))
    left, right = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            rotated = tf.bitwise.left_shift(right, tf.constant(rotation, tf.uint32))
            rotated |= tf.bitwise.right_shift(right, tf.constant(32 - rotation, tf.uint32))
            right = left ^ rotated
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + tf.constant(group + 1, tf.uint32)
    return left, right


def uniforms(seeds: tf.Tensor, streams: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Uniform draws: equal seed, stream and position give equal draws.

    Args:
        seeds: (..., 2) int, the two words of a seed.
        streams, positions: int32, of shapes that broadcast with `seeds[..., 0]`.

    Returns:
        float32 in [0, 1), multiples of 2^-23, of the common shape.
    """
    words = [tf.bitcast(tf.cast(x, tf.int32), tf.uint32) for x in (seeds, streams, positions)]
    bits, _ = threefry((words[0][..., 0], words[0][..., 1]), (words[2], words[1]))
    # 23 bits: with u < 1 - 2^-23 a product u * total is below total in float32 too.
    kept = tf.bitwise.right_shift(bits, tf.constant(9, tf.uint32))
    return tf.cast(tf.bitcast(kept, tf.int32), tf.float32) * 2.0**-23


class Controls(NamedTuple):
    """`temperature`, `top_k` and `top_p` of `DrawSettings`: numbers, or a tensor `(B,)` by row."""

    temperature: float | tf.Tensor = 1.0
    top_k: int | tf.Tensor = 0
    top_p: float | tf.Tensor = 1.0


# The least temperature and top-p. Smaller ones have the same effect, only the likeliest token is
# kept, but division by them may overflow.
_LEAST = 1e-10


def filter_logits(logits: tf.Tensor, controls: Controls | DrawSettings) -> tf.Tensor:
    """Applies temperature (above 0), top-k and top-p; excluded tokens become -inf.

    Tokens that tie with the last one kept are kept as well.

    Args:
        logits: (B, K, V) float32, or (..., V) with numbers in `controls`; -inf where a token is
            excluded already.
    """
    if tf.is_tensor(controls.temperature):
        return _filtered_by_row(logits, controls)
    logits = logits / max(controls.temperature, _LEAST)
    size = logits.shape[-1]
    if 0 < controls.top_k < size:
        least = tf.math.top_k(logits, controls.top_k)[0][..., -1:]
        logits = tf.where(logits < least, NEVER, logits)
    if controls.top_p < 1:
        # After top-k no more than k can be kept, so only they need sorting.
        ordered, _ = tf.math.top_k(logits, min(controls.top_k or size, size))
        before = tf.cumsum(tf.nn.softmax(ordered), axis=-1, exclusive=True)
        # The first token whose predecessors reach p is out; the most probable one never is.
        kept = tf.where(before < max(controls.top_p, _LEAST), ordered, float("inf"))
        logits = tf.where(logits < tf.reduce_min(kept, -1, keepdims=True), NEVER, logits)
    return logits


def _filtered_by_row(logits: tf.Tensor, controls: Controls) -> tf.Tensor:
    """`filter_logits` with controls by row. One sort of all tokens serves both filters."""
    temperature, top_k, top_p = (x[:, None, None] for x in controls)  # (B, 1, 1)
    logits = logits / tf.clip_by_value(temperature, _LEAST, 1.0 / _LEAST)
    ordered = tf.sort(logits, axis=-1, direction="DESCENDING")  # (B, K, V)
    kept = (tf.range(logits.shape[-1]) < top_k) | (top_k <= 0)
    share = tf.nn.softmax(tf.where(kept, ordered, NEVER))
    before = tf.cumsum(share, axis=-1, exclusive=True)
    kept &= (before < tf.maximum(top_p, _LEAST)) | (top_p >= 1)
    least = tf.reduce_min(tf.where(kept, ordered, float("inf")), -1, keepdims=True)
    return tf.where(logits < least, NEVER, logits)


def draw(logits: tf.Tensor, uniform: tf.Tensor, controls: Controls | DrawSettings) -> tf.Tensor:
    """Draws a token from each row of logits, `(B, K)` int32.

    It inverts the cumulative distribution, which needs one uniform number per token instead of V.

    Args:
        logits: (B, K, V) float32; -inf where a token is excluded.
        uniform: (B, K) float32 in [0, 1); the same number draws the same token.
    """
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    by_row = tf.is_tensor(controls.temperature)
    if not by_row and controls.temperature == 0:
        return best
    if by_row:
        greedy = (controls.temperature <= 0)[:, None]  # (B, 1)
        heat = tf.where(controls.temperature > 0, controls.temperature, 1.0)
        controls = controls._replace(temperature=heat)
    weights = tf.nn.softmax(filter_logits(logits, controls))
    total = tf.cumsum(weights, axis=-1)
    # The first token whose cumulative share exceeds u, which never has weight 0.
    drawn = tf.reduce_sum(tf.cast(total <= uniform[..., None] * total[..., -1:], tf.int32), -1)
    drawn = tf.where(total[..., -1] > 0, drawn, best)  # a total of NaN draws token 0
    return tf.where(greedy, best, drawn) if by_row else drawn


PrefillFunction = Callable[[tf.Tensor, tf.Tensor, Any, Any], Any]

# Tokens of a row that one pass prefills. In chunks, memory does not grow with the square of a
# prompt's length: attention scores of 32 rows, 12 heads and 1,024 tokens take 0.4 GB, not 1.6.
_CHUNK = 256


class Prompts(NamedTuple):
    """B prompts, each to be continued K times.

    Attributes:
        ids: `(B, P)` int32, the decoder's first input (such as [CLS]) and the prompt, then PAD.
        lengths: `(B,)` int32, 1 or more, the ids of each row without PAD.
        limits: `(B,)` int32, most new tokens of each row; 0: none.
        seeds: `(B, K)` int; a sample's draws depend on its seed only, not on its batch.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    limits: tf.Tensor
    seeds: tf.Tensor


class Rules(NamedTuple):
    """Rules for choosing new tokens.

    Attributes:
        controls: see `DrawSettings`.
        end_id: id of the token that ends a text.
        barred: function of ids `(V,)` that returns True for ids never to draw, besides PAD.
        min_tokens: new tokens before `end_id` is allowed.
        closes: whether the token at a text's limit is `end_id`, however improbable.
        uniform: function of a position that returns uniform draws `(B, K)`; None: draws from each
            text's seed.
    """

    controls: Controls | DrawSettings
    end_id: int = EOS
    barred: Callable[[tf.Tensor], tf.Tensor] = lambda ids: ids == PAD
    min_tokens: int = 0
    closes: bool = False
    uniform: Callable[[tf.Tensor], tf.Tensor] | None = None


class State(NamedTuple):
    """The state of the loop that continues prompts."""

    index: tf.Tensor  # scalar int32, the position of `tokens` in the decoder's input
    tokens: tf.Tensor  # (B, K) int32
    ended: tf.Tensor  # (B, K) bool
    log_probs: tf.Tensor  # (B, K) float32, of the new tokens, before temperature and filters
    cache: Any


def first_state(
    prompts: Prompts, context: Any, cache: Any, prefill_fn: PrefillFunction | None = None
) -> State:
    """Returns the state before the first step, after prefilling the prompts.

    The first min(lengths) - 1 tokens of all rows are prefilled in chunks, once for the K samples of
    a row. Nothing is prefilled under XLA, which cannot slice chunks of unknown length.

    Args:
        prompts: see `Prompts`.
        context, cache: as in `beam_search`.
        prefill_fn: `(tokens (B, L) int32, index scalar int32, context, cache) -> cache`. `tokens`
            begin at position `index` of the decoder's input, and `cache` has one sample per row.
            None: no prefill.
    """
    index = tf.constant(0)
    if prefill_fn is not None and not compiled_by_xla():
        end = tf.reduce_min(prompts.lengths) - 1

        def chunk(index, cache):
            following = tf.minimum(index + _CHUNK, end)
            return following, prefill_fn(prompts.ids[:, index:following], index, context, cache)

        def for_all_samples(one, empty):
            every = tf.repeat(one, tf.shape(empty)[1], axis=1)  # (B, 1, ...) -> (B, K, ...)
            # Restore the static shape; tf.while_loop requires it.
            return tf.ensure_shape(every, loop_shapes(empty))

        values = (index, tf.nest.map_structure(lambda x: x[:, :1], cache))
        shapes = loop_shapes(values, fixed_rows=False)
        index, filled = tf.while_loop(
            lambda index, cache: index < end, chunk, values, shape_invariants=shapes
        )
        cache = tf.nest.map_structure(for_all_samples, filled, cache)
    like = tf.cast(tf.zeros_like(prompts.seeds), tf.int32)  # (B, K)
    return State(
        index=index,
        tokens=like + prompts.ids[:, index, None],
        ended=(like + prompts.limits[:, None]) <= 0,
        log_probs=tf.cast(like, tf.float32),
        cache=cache,
    )


def advance(
    step_fn: StepFunction, state: State, context: Any, prompts: Prompts, rules: Rules
) -> tuple[State, tf.Tensor]:
    """Makes one step: a row reads the next token of its prompt, or draws a new one after it.

    Returns:
        The new state, and `(B, K)` int32, each text's new token, PAD within the prompt and after
        the end.
    """
    logits, cache = step_fn(state.tokens, state.index, context, state.cache)
    logits = tf.cast(logits, tf.float32)  # (B, K, V)
    number = (state.index + 1 - prompts.lengths)[:, None]  # (B, 1): of the new token, from 0
    is_last = number + 1 >= prompts.limits[:, None]  # (B, 1)
    all_ids = tf.range(logits.shape[-1])
    early = (number < rules.min_tokens)[..., None]  # (B, 1, 1)
    barred = (all_ids == PAD) | rules.barred(all_ids)
    barred |= (all_ids == rules.end_id) & early  # (B, 1, V)
    if rules.uniform:
        uniform = rules.uniform(state.index)  # (B, K)
    else:
        seeds = tf.stack([tf.cast(prompts.seeds, tf.int32), tf.zeros_like(state.tokens)], axis=-1)
        uniform = uniforms(seeds, tf.constant(0), state.index)  # (B, K)
    tokens = draw(tf.where(barred, NEVER, logits), uniform, rules.controls)
    if rules.closes:
        tokens = tf.where(is_last, rules.end_id, tokens)
    chosen = tf.gather(logits, tokens, batch_dims=2) - tf.reduce_logsumexp(logits, -1)
    is_new = (number >= 0) & ~state.ended  # (B, K)
    following = tf.minimum(state.index + 1, tf.shape(prompts.ids)[1] - 1)
    forced = tf.gather(prompts.ids, following, axis=1)[:, None]  # (B, 1)
    new = tf.where(is_new, tokens, PAD)
    state = State(
        index=state.index + 1,
        tokens=tf.where(number < 0, forced, new),
        ended=state.ended | is_new & ((tokens == rules.end_id) | is_last),
        log_probs=state.log_probs + tf.where(is_new, chosen, 0.0),
        cache=cache,
    )
    return state, new


def generate(
    step_fn: StepFunction,
    context: Any,
    cache: Any,
    prompts: Prompts,
    rules: Rules,
    max_tokens: int | tf.Tensor,
    prefill_fn: PrefillFunction | None = None,
) -> dict[str, tf.Tensor]:
    """Continues prompts until each text has ended or reached its limit.

    Prompts of a batch may differ in length: after the common prefill, some rows draw tokens while
    others still read their prompts. It works with static shapes under XLA (`max_tokens` a Python
    int), where prompts are read token by token, and with unknown shapes in a SavedModel.

    Args:
        step_fn, context: as in `beam_search`.
        cache: as in `beam_search`, growing or with room for P + N - 1 tokens; it is not reordered.
        prompts: see `Prompts`.
        rules: see `Rules`.
        max_tokens: N, the greatest limit.
        prefill_fn: see `first_state`.

    Returns:
        "ids" `(B, K, N)` int32, the new tokens, with `end_id` if a text ended before its limit,
        then PAD; "log_probs" `(B, K)` float32, the sum of their log-probabilities before
        temperature and filters; "lengths" `(B, K)` int32, their number.
    """
    state = first_state(prompts, context, cache, prefill_fn)
    ids, state = go_on(step_fn, context, state, prompts, rules, max_tokens)
    lengths = tf.reduce_sum(tf.cast(ids != PAD, tf.int32), axis=-1)
    return {"ids": ids, "log_probs": state.log_probs, "lengths": lengths}


def go_on(
    step_fn: StepFunction,
    context: Any,
    state: State,
    prompts: Prompts,
    rules: Rules,
    max_tokens: int | tf.Tensor,
) -> tuple[tf.Tensor, State]:
    """Runs `advance` until each text has ended; the loop of `generate`.

    Returns:
        The new tokens `(B, K, N)` int32, PAD where this call drew none, and the last state.
    """
    positions = tf.range(max_tokens)
    ids = tf.fill([*tf.unstack(tf.shape(prompts.seeds)), max_tokens], PAD)  # (B, K, N)
    if prompts.seeds.shape.is_fully_defined() and isinstance(max_tokens, int):
        ids = tf.fill([*prompts.seeds.shape, max_tokens], PAD)

    def step(ids, *values):
        state, new = advance(step_fn, State(*values), context, prompts, rules)
        number = (state.index - prompts.lengths)[:, None, None]  # (B, 1, 1)
        return tf.where(positions == number, new[:, :, None], ids), *state

    values = (ids, *state)
    values = tf.while_loop(
        lambda ids, *values: ~tf.reduce_all(State(*values).ended),
        step,
        values,
        shape_invariants=loop_shapes(values),
        maximum_iterations=tf.shape(prompts.ids)[1] + max_tokens - 1,
    )
    return values[0], State(*values[1:])


def sample(
    step_fn: StepFunction,
    context: Any,
    cache: Any,
    batch_size: int | tf.Tensor,
    config: SamplingConfig,
    max_length: int | tf.Tensor,
    *,
    seed: tf.Tensor | int,
    limits: tf.Tensor | None = None,
    vocabulary_size: int | None = None,
    prefix: Sequence[int] = (),
) -> dict[str, tf.Tensor]:
    """Samples K = `config.num_samples` outputs per sentence; at temperature 0, greedy search.

    At a sentence's limit EOS follows, however improbable. Like `beam_search`, it works under XLA
    and in a SavedModel.

    Args: as in `beam_search`, with a cache that is not reordered, and
        seed: scalar or `(2,)` int. Equal seeds and batches give equal draws. A draw depends on the
            sentence's position in the batch.

    Returns:
        "ids" `(B, K, T)` int32, ended by EOS, then PAD; "log_probs" `(B, K)` float32, before
        temperature and filters; "lengths" `(B, K)` int32, with EOS.
    """
    limits = tf.fill([batch_size], max_length) if limits is None else limits
    seed = tf.cast(tf.convert_to_tensor(seed), tf.int32)
    seed = tf.stack([seed, 0]) if seed.shape.rank == 0 else seed
    streams = tf.range(batch_size * config.num_samples)
    streams = tf.reshape(streams, [batch_size, config.num_samples])
    prompts = Prompts(
        ids=tf.tile(tf.constant([[*prefix, BOS]]), [batch_size, 1]),
        lengths=tf.fill([batch_size], len(prefix) + 1),
        limits=tf.maximum(tf.minimum(tf.cast(limits, tf.int32), max_length), 1),
        seeds=streams,
    )

    def barred(ids):
        beyond = False if vocabulary_size is None else ids >= vocabulary_size
        return (ids == PAD) | (ids == BOS) | beyond

    rules = Rules(
        config,
        barred=barred,
        min_tokens=config.min_length,
        closes=True,
        uniform=lambda index: uniforms(seed, streams, index - len(prefix)),
    )
    return generate(step_fn, context, cache, prompts, rules, max_length)
