"""Going on from given prompts, token by token: in one graph, or as a stream."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.decoding.beam_search import StepFunction, loop_shapes
from macaron_tf.decoding.drawing import NEVER, Controls, draw, uniforms
from macaron_tf.kernels import compiled_by_xla
from macaron_tf.special_ids import EOS, PAD

ReadFunction = Callable[[tf.Tensor, tf.Tensor, Any, Any], Any]

# Tokens of a row that are read at once, so that memory does not grow with the square of a prompt:
# the scores of a layer, of 32 rows, 12 heads and 1,024 tokens before, are 0.4 GB and not 1.6.
_PIECE = 256


def reader(model: Any) -> ReadFunction | None:
    """How a model reads many tokens at once, `read` of `LanguageModel`; None where it cannot."""
    return model.read if getattr(model, "reads", False) else None


def read_together(
    read_fn: ReadFunction | None, ids: tf.Tensor, lengths: tf.Tensor, context: Any, cache: Any
) -> tuple[tf.Tensor, Any]:
    """Reads what can be of prompts before the first new token: all but the last of the shortest.

    The K samples of a row have the same past: it is read once. Under XLA, which knows no pieces of
    unknown lengths, nothing is read.

    Args:
        read_fn: `(tokens (B, L) int32, index scalar int32, context, cache) -> cache`, `tokens`
            being those at place `index` of the decoder's input and on, `cache` that of one sample
            a row; with None nothing is read.
        ids: (B, P) int32. lengths: (B,) int32, 1 or more.
        context, cache: as in `beam_search`, before the first step.

    Returns:
        scalar int32, how many tokens of each row have been read, and the cache behind them.
    """
    if read_fn is None or compiled_by_xla():
        return tf.constant(0), cache
    end = tf.reduce_min(lengths) - 1

    def piece(index, cache):
        following = tf.minimum(index + _PIECE, end)
        return following, read_fn(ids[:, index:following], index, context, cache)

    values = (tf.constant(0), tf.nest.map_structure(lambda x: x[:, :1], cache))
    index, read = tf.while_loop(
        lambda index, cache: index < end,
        piece,
        values,
        shape_invariants=loop_shapes(values, fixed_rows=False),
    )

    def of_all(one, empty):
        every = tf.repeat(one, tf.shape(empty)[1], axis=1)  # (B, 1, ...) -> (B, K, ...)
        return tf.ensure_shape(every, loop_shapes(empty))

    return index, tf.nest.map_structure(of_all, read, cache)


class Prompts(NamedTuple):
    """What is to be continued, K samples of each of B prompts.

    Attributes:
        ids: (B, P) int32, the decoder's first input (such as [CLS]) and what follows it, PAD after.
        lengths: (B,) int32, 1 or more: that one is none of PAD.
        limits: (B,) int32, new tokens at most; with 0 none.
        seeds: (B, K) int: a sample's draws depend on its own seed and on nothing beside it.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    limits: tf.Tensor
    seeds: tf.Tensor


class Rules(NamedTuple):
    """How tokens are chosen.

    Attributes:
        controls: see `Controls`.
        end_id: ends a text.
        barred: (V,) bool, True where an id is never drawn; None = nowhere. PAD never is.
        min_tokens: new tokens before `end_id` is allowed.
    """

    controls: Controls
    end_id: int = EOS
    barred: np.ndarray | None = None
    min_tokens: int = 0


class State(NamedTuple):
    """Where generation stands.

    Attributes:
        index: scalar int32, the place of `tokens` in the decoder's input.
        tokens: (B, K) int32.
        ended: (B, K) bool.
        log_probs: (B, K) float32, of the new tokens under the model itself.
        cache: of the step function.
    """

    index: tf.Tensor
    tokens: tf.Tensor
    ended: tf.Tensor
    log_probs: tf.Tensor
    cache: Any


def first_state(
    prompts: Prompts, context: Any, cache: Any, read_fn: ReadFunction | None = None
) -> State:
    """The state before the first step, behind what is read of all prompts together."""
    index, cache = read_together(read_fn, prompts.ids, prompts.lengths, context, cache)
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
    """One token: the prompt's own while a row is still in it, a drawn one after.

    Args:
        step_fn: as in `beam_search`.
        state, context: of the step function. prompts, rules: what is asked.

    Returns:
        The new state and (B, K) int32, the new token of each text; PAD where it is still in its
        prompt or has ended.
    """
    logits, cache = step_fn(state.tokens, state.index, context, state.cache)
    logits = tf.cast(logits, tf.float32)  # (B, K, V)
    number = (state.index + 1 - prompts.lengths)[:, None]  # (B, 1): of the new token, 0 the first
    all_ids = tf.range(logits.shape[-1])
    early = (number < rules.min_tokens)[..., None]  # (B, 1, 1)
    barred = (all_ids == PAD) | ((all_ids == rules.end_id) & early)  # (B, 1, V)
    if rules.barred is not None:
        barred |= tf.constant(rules.barred)
    seeds = tf.stack([tf.cast(prompts.seeds, tf.int32), tf.zeros_like(state.tokens)], axis=-1)
    uniform = uniforms(seeds, tf.constant(0), state.index)  # (B, K)
    tokens = draw(tf.where(barred, NEVER, logits), uniform, rules.controls)
    chosen = tf.gather(logits, tokens, batch_dims=2) - tf.reduce_logsumexp(logits, -1)
    is_new = (number >= 0) & ~state.ended  # (B, K)
    place = tf.minimum(state.index + 1, tf.shape(prompts.ids)[1] - 1)
    forced = tf.gather(prompts.ids, place, axis=1)[:, None]  # (B, 1)
    new = tf.where(is_new, tokens, PAD)
    ends = is_new & ((tokens == rules.end_id) | (number + 1 >= prompts.limits[:, None]))
    state = State(
        index=state.index + 1,
        tokens=tf.where(number < 0, forced, new),
        ended=state.ended | ends,
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
    read_fn: ReadFunction | None = None,
) -> dict[str, tf.Tensor]:
    """Continues prompts until each text has ended or reached its limit.

    Prompts of several lengths go together: what all have is read at once, see `read_together`, and
    then a row that has left its prompt draws while another one is still told. Works with static
    shapes under XLA (with `max_tokens` a Python int), where prompts are read token by token, and
    with unknown ones in a SavedModel.

    Args:
        step_fn: as in `beam_search`.
        context: as in `beam_search`.
        cache: as in `beam_search`, with room for P + N - 1 tokens, or growing; never reordered.
        prompts, rules: what is asked.
        max_tokens: N, the greatest limit.
        read_fn: see `read_together`; with None prompts are read token by token.

    Returns:
        "ids" (B, K, N) int32, the new tokens alone, with `end_id` where a text ended by itself,
        PAD after; "log_probs" (B, K) float32, of these under the model itself (before temperature
        and filters); "lengths" (B, K) int32, their number.
    """
    places = tf.range(max_tokens)
    start = tuple(first_state(prompts, context, cache, read_fn))
    ids = tf.fill([*tf.unstack(tf.shape(prompts.seeds)), max_tokens], PAD)  # (B, K, N)
    if prompts.seeds.shape.is_fully_defined() and isinstance(max_tokens, int):
        ids = tf.fill([*prompts.seeds.shape, max_tokens], PAD)

    def step(ids, *values):
        state, new = advance(step_fn, State(*values), context, prompts, rules)
        number = (state.index - prompts.lengths)[:, None, None]  # (B, 1, 1)
        return tf.where(places == number, new[:, :, None], ids), *state

    values = (ids, *start)
    values = tf.while_loop(
        lambda ids, *values: ~tf.reduce_all(State(*values).ended),
        step,
        values,
        shape_invariants=loop_shapes(values),
        maximum_iterations=tf.shape(prompts.ids)[1] + max_tokens - 1,
    )
    ids, state = values[0], State(*values[1:])
    lengths = tf.reduce_sum(tf.cast(ids != PAD, tf.int32), axis=-1)
    return {"ids": ids, "log_probs": state.log_probs, "lengths": lengths}


def stream(
    begin: Callable[[Prompts], tuple[Any, State]],
    step: Callable[[State, Any, Prompts], tuple[State, tf.Tensor]],
    prompts: Prompts,
) -> Iterator[np.ndarray]:
    """The same tokens as `generate`'s, each as soon as it is chosen.

    Args:
        begin: gives the context, and the state of `first_state`.
        step: `advance` without its first and last argument, as a `tf.function`: traced once where
            the cache keeps its shape.
        prompts: what is to be continued.

    Yields:
        (B, K) int32: the next new tokens, PAD where a text has none.
    """
    context, state = begin(prompts)
    shortest = int(tf.reduce_min(prompts.lengths))
    while not bool(tf.reduce_all(state.ended)):
        state, new = step(state, context, prompts)
        if int(state.index) >= shortest:
            yield new.numpy()
