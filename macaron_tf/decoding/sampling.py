"""Continuation of texts by sampling, with stateless random draws.

B is the batch size, K the number of samples per input, and V the vocabulary size.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import tensorflow as tf
from annotated_types import Ge, Gt, Le

from macaron_tf.decoding.beam_search import NEVER, StepFunction, loop_shapes, without_repeats
from macaron_tf.settings import Count, Natural, NonNegative, Settings
from macaron_tf.special import Special


@dataclasses.dataclass(frozen=True)
class GenerationConfig(Settings):
    """Settings for continuing a text. Temperature, top-k and top-p are applied in this order.

    Attributes:
        temperature: divisor of the logits; 0 means greedy search.
        top_k: number of most probable tokens that can be drawn; 0 means no limit.
        top_p: probability p of nucleus sampling. Only the smallest set of most probable tokens with
            a total probability of at least p can be drawn; 1 means no limit.
        num_samples: number of independent samples per input.
        max_tokens: maximum number of new tokens, including the token that ends the text.
        min_tokens: minimum number of new tokens before the token that ends the text.

    References: Holtzman et al. 2020 (nucleus sampling).
    """

    temperature: NonNegative = 1.0
    top_k: Natural = 0
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    num_samples: Count = 1
    # The limit of 2^30 keeps the sum of prompt and new tokens within int32.
    max_tokens: Annotated[int, Ge(1), Le(2**30)] = 128
    min_tokens: Natural = 0

    def check(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise self.error(f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}")


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(
    key: tuple[tf.Tensor, tf.Tensor], counter: tuple[tf.Tensor, tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes 64 random bits for each key and counter with Threefry-2x32-20.

    TensorFlow's stateless random ops take one seed for a whole tensor, and give different bits
    under XLA. With one key per element, the draws for a text do not depend on the other texts.
    Keys, counters and the result are pairs of uint32 tensors, which broadcast.

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


def uniforms(seeds: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Draws uniform random numbers that depend only on the seed and the position.

    They are float32 in [0, 1), multiples of 2^-23. The arguments are int32 and broadcast.
    """
    seeds, positions, zero = (tf.bitcast(x, tf.uint32) for x in (seeds, positions, tf.constant(0)))
    bits, _ = threefry((seeds, zero), (positions, zero))
    # Keep 23 bits. The product u * total is then below `total` in float32 too.
    high_bits = tf.bitwise.right_shift(bits, tf.constant(9, tf.uint32))
    return tf.cast(tf.bitcast(high_bits, tf.int32), tf.float32) * 2.0**-23


class Controls(NamedTuple):
    """Values of `temperature`, `top_k` and `top_p` (see `GenerationConfig`).

    The values are either three Python numbers, which apply to all rows, or three tensors `(B,)`
    with one number per row.
    """

    temperature: float | tf.Tensor = 1.0
    top_k: int | tf.Tensor = 0
    top_p: float | tf.Tensor = 1.0


# Lower bound of temperature and top-p. Smaller values would also keep only the most probable token,
# but the division by a smaller temperature may overflow.
_MINIMUM = 1e-10


def filter_logits(logits: tf.Tensor, controls: Controls | GenerationConfig) -> tf.Tensor:
    """Applies temperature, top-k and top-p to logits, and sets excluded tokens to -inf.

    Tokens with the same logit as the last kept token are also kept. The result is divided by the
    temperature, which must be above 0. The logits are `(B, K, V)` float32, -inf at tokens that are
    already excluded, or any `(..., V)` if the values of `controls` are Python numbers.
    """
    if tf.is_tensor(controls.temperature):
        return _filtered_by_row(logits, controls)
    logits = logits / max(controls.temperature, _MINIMUM)
    size = logits.shape[-1]
    if 0 < controls.top_k < size:
        smallest_kept = tf.math.top_k(logits, controls.top_k)[0][..., -1:]
        logits = tf.where(logits < smallest_kept, NEVER, logits)
    if controls.top_p < 1:
        # After top-k, at most k tokens remain, so only k tokens are sorted.
        sorted_logits, _ = tf.math.top_k(logits, min(controls.top_k or size, size))
        total_before = tf.cumsum(tf.nn.softmax(sorted_logits), axis=-1, exclusive=True)
        # Exclude the tokens after the first ones whose total probability reaches p. The most
        # probable token is always kept.
        is_kept = total_before < max(controls.top_p, _MINIMUM)
        kept_logits = tf.where(is_kept, sorted_logits, float("inf"))
        logits = tf.where(logits < tf.reduce_min(kept_logits, -1, keepdims=True), NEVER, logits)
    return logits


def _filtered_by_row(logits: tf.Tensor, controls: Controls) -> tf.Tensor:
    """Applies `filter_logits` with one temperature, top-k and top-p per row, by one sort."""
    temperature, top_k, top_p = (x[:, None, None] for x in controls)  # (B, 1, 1)
    logits = logits / tf.clip_by_value(temperature, _MINIMUM, 1.0 / _MINIMUM)
    sorted_logits = tf.sort(logits, axis=-1, direction="DESCENDING")  # (B, K, V)
    is_kept = (tf.range(logits.shape[-1]) < top_k) | (top_k <= 0)
    probabilities = tf.nn.softmax(tf.where(is_kept, sorted_logits, NEVER))
    total_before = tf.cumsum(probabilities, axis=-1, exclusive=True)
    is_kept &= (total_before < tf.maximum(top_p, _MINIMUM)) | (top_p >= 1)
    smallest_kept = tf.reduce_min(tf.where(is_kept, sorted_logits, float("inf")), -1, keepdims=True)
    return tf.where(logits < smallest_kept, NEVER, logits)


def draw(logits: tf.Tensor, uniform: tf.Tensor, controls: Controls | GenerationConfig) -> tf.Tensor:
    """Draws a token `(B, K)` for each sample of logits `(B, K, V)` by inverse transform sampling.

    It needs one `uniform (B, K)` in [0, 1) per token; the Gumbel-max trick would need V. Excluded
    tokens have the logit -inf. At temperature 0, the most probable token is taken.
    """
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    is_by_row = tf.is_tensor(controls.temperature)
    if not is_by_row and controls.temperature == 0:
        return best
    if is_by_row:
        greedy = (controls.temperature <= 0)[:, None]  # (B, 1)
        temperature = tf.where(controls.temperature > 0, controls.temperature, 1.0)
        controls = controls._replace(temperature=temperature)
    weights = tf.nn.softmax(filter_logits(logits, controls))
    total = tf.cumsum(weights, axis=-1)
    # Index of the first token whose cumulative probability exceeds u. Its weight is above 0.
    drawn = tf.reduce_sum(tf.cast(total <= uniform[..., None] * total[..., -1:], tf.int32), -1)
    # If `total` is NaN, take the argmax, because the comparison above would give token 0.
    drawn = tf.where(total[..., -1] > 0, drawn, best)
    return tf.where(greedy, best, drawn) if is_by_row else drawn


PrefillFunction = Callable[[tf.Tensor, tf.Tensor, Any, Any], Any]

# Number of prompt tokens that are prefilled at once. Chunks keep the memory for attention scores
# linear in the prompt length: 32 rows, 12 heads and 1,024 tokens take 0.4 GB instead of 1.6 GB.
_CHUNK = 256


class Prompts(NamedTuple):
    """Batch of B prompts, each with K samples to draw.

    Attributes:
        ids: `(B, P)` int32, P = maximum prompt length. A row contains the decoder's first input
            (such as [CLS]), then the prompt, then PAD.
        lengths: `(B,)` int32, number of ids in each row that are not PAD, 1 or more.
        limits: `(B,)` int32, maximum number of new tokens for each row.
        seeds: `(B, K)` int32, random seed of each sample. A sample's draws do not depend on the
            other rows of the batch.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    limits: tf.Tensor
    seeds: tf.Tensor


class Rules(NamedTuple):
    """Rules for drawing new tokens.

    Attributes:
        end_id: id of the token that ends a text, or ids of several such tokens.
        is_suppressed: booleans `(V,)`, True at ids that are never drawn. PAD is never drawn either.
        min_tokens: minimum number of new tokens before the end.
        no_repeat_ngram_size: size of the n-grams that the new tokens contain at most once; 0 means
            no limit.
    """

    controls: Controls | GenerationConfig
    end_id: int | Sequence[int]
    is_suppressed: np.ndarray | bool = False
    min_tokens: int = 0
    pad: int = Special.pad
    no_repeat_ngram_size: int = 0


class State(NamedTuple):
    """Loop state of `generate`.

    Attributes:
        index: scalar int32, position of `tokens` in the decoder's input.
        tokens: `(B, K)` int32, next input token of each sample.
        ended: `(B, K)` bool, whether the sample has ended.
        log_probs: `(B, K)` float32, total log-probability of the new tokens, before temperature,
            top-k and top-p.
    """

    index: tf.Tensor
    tokens: tf.Tensor
    ended: tf.Tensor
    log_probs: tf.Tensor
    cache: Any


def first_state(
    prompts: Prompts, context: Any, cache: Any, prefill_fn: PrefillFunction | None = None
) -> State:
    """Prefills the prompts and returns the state before the first step.

    The first min(lengths) - 1 tokens of every row are prefilled in chunks, once for the K samples
    of a row.

    `prefill_fn` maps `tokens (B, L)` int32, which begin at position `index` scalar int32 of the
    decoder's input, the context and a cache for K = 1 to a cache. `None` means no prefill.
    """
    index = tf.constant(0)
    if prefill_fn is not None:
        end = tf.reduce_min(prompts.lengths) - 1

        def chunk(index, cache):
            chunk_end = tf.minimum(index + _CHUNK, end)
            return chunk_end, prefill_fn(prompts.ids[:, index:chunk_end], index, context, cache)

        def for_all_samples(prefilled, empty):
            # (B, 1, ...) -> (B, K, ...)
            repeated = tf.repeat(prefilled, tf.shape(empty)[1], axis=1)
            # tf.while_loop requires the static shape, which tf.repeat loses.
            return tf.ensure_shape(repeated, loop_shapes(empty))

        values = (index, tf.nest.map_structure(lambda x: x[:, :1], cache))
        options = {"shape_invariants": loop_shapes(values, fixed_rows=False)}
        index, filled = tf.while_loop(lambda index, _: index < end, chunk, values, **options)
        cache = tf.nest.map_structure(for_all_samples, filled, cache)
    zeros = tf.zeros_like(prompts.seeds)  # (B, K)
    return State(
        index=index,
        tokens=zeros + prompts.ids[:, index, None],
        ended=(zeros + prompts.limits[:, None]) <= 0,
        log_probs=tf.cast(zeros, tf.float32),
        cache=cache,
    )


def advance(
    step_fn: StepFunction,
    state: State,
    context: Any,
    prompts: Prompts,
    rules: Rules,
    drawn: tf.Tensor | None = None,
) -> tuple[State, tf.Tensor]:
    """Runs one decoding step, in which each row reads a prompt token or draws a new token.

    `drawn (B, K, N)` int32 contains the new tokens of earlier steps, for
    `rules.no_repeat_ngram_size`.

    The second result is the drawn tokens `(B, K)` int32, PAD for a sample that still reads its
    prompt or that has ended.
    """
    logits, cache = step_fn(state.tokens, state.index, context, state.cache)
    logits = tf.cast(logits, tf.float32)  # (B, K, V)
    new_index = (state.index + 1 - prompts.lengths)[:, None]  # (B, 1), index of the new token
    is_last = new_index + 1 >= prompts.limits[:, None]  # (B, 1)
    all_ids = np.arange(logits.shape[-1])
    is_early = (new_index < rules.min_tokens)[..., None]  # (B, 1, 1)
    is_suppressed = tf.constant((all_ids == rules.pad) | rules.is_suppressed)
    is_end = tf.constant(np.isin(all_ids, rules.end_id))  # (V,)
    is_suppressed |= is_end & is_early  # (B, 1, V)
    allowed = tf.where(is_suppressed, NEVER, logits)
    if rules.no_repeat_ngram_size and drawn is not None:
        allowed = without_repeats(allowed, drawn, new_index, rules.no_repeat_ngram_size)
    tokens = draw(allowed, uniforms(prompts.seeds, state.index), rules.controls)  # (B, K)
    token_log_probs = tf.gather(logits, tokens, batch_dims=2) - tf.reduce_logsumexp(logits, -1)
    is_new = (new_index >= 0) & ~state.ended  # (B, K)
    next_position = tf.minimum(state.index + 1, tf.shape(prompts.ids)[1] - 1)
    prompt_tokens = tf.gather(prompts.ids, next_position, axis=1)[:, None]  # (B, 1)
    new_tokens = tf.where(is_new, tokens, rules.pad)
    state = State(
        index=state.index + 1,
        tokens=tf.where(new_index < 0, prompt_tokens, new_tokens),
        ended=state.ended | is_new & (tf.gather(is_end, tokens) | is_last),
        log_probs=state.log_probs + tf.where(is_new, token_log_probs, 0.0),
        cache=cache,
    )
    return state, new_tokens


def generate(
    step_fn: StepFunction,
    state: State,
    context: Any,
    prompts: Prompts,
    rules: Rules,
    max_tokens: int | tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Continues prompts by sampling until each text has ended or reached its limit.

    After the common prefill, some rows draw tokens while others still read their prompts.

    Args:
        step_fn, context: see `beam_search`.
        state: result of `first_state`, or of later calls of `advance`. A cache of fixed size must
            have a capacity of P + `max_tokens` - 1 tokens.
        max_tokens: N, the maximum of the prompts' limits.

    Returns:
        Dict of `"ids"` `(B, K, N)` int32, the new tokens and then PAD; PAD also stands for tokens
            that an earlier call of `advance` drew. The last token is an `end_id` if the text ended
            before its limit. `"log_probs"` `(B, K)` float32 are sums over the new tokens, before
            temperature, top-k and top-p. `"lengths"` `(B, K)` int32 count the ids that are not PAD,
            including the `end_id`.
    """
    positions, seeds = tf.range(max_tokens), prompts.seeds
    ids = tf.fill([*tf.unstack(tf.shape(seeds)), max_tokens], rules.pad)  # (B, K, N)

    def step(ids, *values):
        state, new_tokens = advance(step_fn, State(*values), context, prompts, rules, ids)
        new_index = (state.index - prompts.lengths)[:, None, None]  # (B, 1, 1)
        return tf.where(positions == new_index, new_tokens[:, :, None], ids), *state

    values = (ids, *state)
    values = tf.while_loop(
        lambda ids, *values: ~tf.reduce_all(State(*values).ended),
        step,
        values,
        shape_invariants=loop_shapes(values),
        maximum_iterations=tf.shape(prompts.ids)[1] + max_tokens - 1,
    )
    ids, state = values[0], State(*values[1:])
    lengths = tf.reduce_sum(tf.cast(ids != rules.pad, tf.int32), axis=-1)
    return {"ids": ids, "log_probs": state.log_probs, "lengths": lengths}
