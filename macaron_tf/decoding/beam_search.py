"""Batched beam search inside the graph, over any step function with a cache."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from macaron_tf.decoding.config import BeamSearchConfig
from macaron_tf.decoding.drawing import NEVER, top_k
from macaron_tf.special_ids import BOS, EOS, PAD

StepFunction = Callable[[tf.Tensor, tf.Tensor, Any, Any], tuple[tf.Tensor, Any]]
ReorderFunction = Callable[[Any, tf.Tensor], Any]


def length_penalty(length: tf.Tensor, name: str, alpha: float) -> tf.Tensor:
    """What log P is divided by: 1 or more, and never less for a longer hypothesis.

    Args:
        length: any shape, int or float; tokens including EOS, 1 or more.
        name: "gnmt", ((5 + length) / 6) ** alpha; "fairseq", length ** alpha; "none", 1.
        alpha: 0 or more.

    Returns:
        float32, the shape of `length`.
    """
    length = tf.cast(length, tf.float32)
    if name == "none" or alpha == 0:
        return tf.ones_like(length)
    return (length if name == "fairseq" else (5.0 + length) / 6.0) ** alpha


def gather_beams(cache: Any, parents: tf.Tensor) -> Any:
    """Reorders axis 1 of every tensor (B, K, ...) of a nested structure.

    Args:
        cache: nested structure of tensors (B, K, ...).
        parents: (B, K) int32, the old place of each new hypothesis.

    Returns:
        The structure with `tensor[b, k] = old[b, parents[b, k]]`.
    """
    return tf.nest.map_structure(lambda x: tf.gather(x, parents, axis=1, batch_dims=1), cache)


def loop_shapes(values: Any, fixed_rows: bool = True) -> Any:
    """Shapes that hold all through a loop: an axis that starts at 0 is one that grows.

    Args:
        values: nested structure of the loop's first tensors.
        fixed_rows: axis 0 keeps its size; otherwise the loop may change it.

    Returns:
        The structure with a `tf.TensorShape` for each tensor.
    """

    def shape(x):
        kept = [None if size == 0 else size for size in x.shape]
        return tf.TensorShape(kept if fixed_rows else [None, *kept[1:]][: len(kept)])

    return tf.nest.map_structure(shape, values)


def read_before(
    step_fn: StepFunction, before: Sequence[int], tokens: tf.Tensor, context: Any, cache: Any
) -> Any:
    """The cache after ids that a decoder reads before BOS.

    Args:
        step_fn, context, cache: as of `beam_search`.
        before: the ids.
        tokens: (B, K) int32.
    """
    for place, number in enumerate(before):
        _, cache = step_fn(tf.fill(tf.shape(tokens), number), tf.constant(place), context, cache)
    return cache


class _State(NamedTuple):
    index: tf.Tensor  # scalar int32: the place being filled
    tokens: tf.Tensor  # (B, K) int32: the last token of each live hypothesis
    live_ids: tf.Tensor  # (B, K, T) int32
    live_log_probs: tf.Tensor  # (B, K) float32, best first; -inf where there is no hypothesis
    ended_ids: tf.Tensor  # (B, K, T) int32
    ended_scores: tf.Tensor  # (B, K) float32, best first; -inf where there is no hypothesis
    final: tf.Tensor  # (B,) bool: this sentence's ended pool is frozen
    cache: Any


def beam_search(
    step_fn: StepFunction,
    context: Any,
    cache: Any,
    batch_size: int | tf.Tensor,
    config: BeamSearchConfig,
    max_length: int | tf.Tensor,
    *,
    limits: tf.Tensor | None = None,
    vocabulary_size: int | None = None,
    reorder_fn: ReorderFunction = gather_beams,
    before: Sequence[int] = (),
) -> dict[str, tf.Tensor]:
    """The n best outputs of each sentence.

    At each step the 2K best continuations of the K live hypotheses compete; those that end with
    EOS and rank among the first K join a pool of the K best ended ones, by
    log P / penalty(length), and the K best others live on. At a sentence's limit only EOS may
    follow, so every output ends with EOS and its log P is the model's own.

    A sentence is final when no live hypothesis can enter its n best. The bound is exact: log P
    only falls and the penalty only grows with length, so a live hypothesis never scores above
    log P / penalty(limit). With `config.stopping == "complete"` it is also final once K have
    ended. The pool of a final sentence is frozen, so a result does not depend on its neighbours.

    Works with static shapes under XLA and with unknown B and T in a SavedModel. Where T is unknown
    too, final sentences leave the batch: the others go on without them.

    Args:
        step_fn: `(tokens (B, K) int32, index scalar int32, context, cache) ->
            (logits (B, K, V), cache)`; `tokens` are the tokens at place `index` of the decoder's
            input, BOS at index 0.
        context: nested structure given to `step_fn`, never reordered; tensors (B, ...) where T is
            a tensor.
        cache: nested structure of tensors (B, K, ...), of the same shapes after each step but
            for axes that are 0 at first, which may grow.
        batch_size: B.
        config: the settings.
        max_length: T, the places of the output; a Python int under XLA.
        limits: (B,) int32, each sentence's greatest length with EOS; default T for all.
        vocabulary_size: ids from here up are never produced; default V.
        reorder_fn: `(cache, parents (B, K)) -> cache`; default `gather_beams`. A cache that
            keeps track of ancestors can do better than to move all its tensors.
        before: ids that the decoder reads before BOS, at the first indices; a cache of fixed room
            has places for them too.

    Returns:
        With N = `config.n_best`, best first: "ids" (B, N, T) int32, EOS-terminated, PAD after;
        "scores" (B, N) float32, log P / penalty; "log_probs" (B, N) float32; "lengths" (B, N)
        int32, EOS included. Where fewer than N outputs exist: all PAD, -inf, -inf, 0.
    """
    beams = config.beam_size
    limits = tf.fill([batch_size], max_length) if limits is None else limits
    limits = tf.maximum(tf.minimum(tf.cast(limits, tf.int32), max_length), 1)
    places = tf.range(max_length)

    def step(state: _State, context: Any, limits: tf.Tensor) -> _State:
        limit_penalty = length_penalty(limits, config.length_penalty_name, config.length_penalty)
        logits, new_cache = step_fn(state.tokens, state.index + len(before), context, state.cache)
        here = places == state.index  # (T,)
        scores, parents, tokens, eos_scores = _continuations(
            logits, state.live_log_probs, vocabulary_size
        )
        # EOS must be among the K best of all continuations, as in fairseq: it is what makes
        # beam 1 greedy, and it keeps poor early endings out of the pool.
        threshold = tf.math.top_k(tf.concat([scores, eos_scores], 1), beams)[0][:, -1:]
        last = state.index + 1 >= limits
        ends = (eos_scores >= threshold) & (state.index >= config.min_length) | last[:, None]
        penalty = length_penalty(state.index + 1, config.length_penalty_name, config.length_penalty)
        new_scores = tf.where(ends & ~state.final[:, None], eos_scores / penalty, NEVER)
        ended_scores, kept = tf.math.top_k(tf.concat([state.ended_scores, new_scores], 1), beams)
        with_eos = tf.where(here, EOS, state.live_ids)
        ended_ids = tf.gather(tf.concat([state.ended_ids, with_eos], 1), kept, batch_dims=1)

        live_ids = state.live_ids
        if beams > 1:
            live_ids = tf.gather(live_ids, parents, batch_dims=1)
            new_cache = reorder_fn(new_cache, parents)
        live_ids = tf.where(here, tokens[:, :, None], live_ids)
        final = (
            state.final
            | last
            | (ended_scores[:, config.n_best - 1] >= scores[:, 0] / limit_penalty)
        )
        if config.stopping == "complete":
            final |= ended_scores[:, -1] > NEVER
        return _State(
            state.index + 1, tokens, live_ids, scores, ended_ids, ended_scores, final, new_cache
        )

    nothing = tf.fill([batch_size, beams, max_length], PAD)
    # All K start equal, so all but the first are ruled out: otherwise they would stay copies.
    start = tf.tile(tf.constant([[0.0] + [NEVER] * (beams - 1)]), [batch_size, 1])
    state = _State(
        index=tf.constant(0),
        tokens=tf.fill([batch_size, beams], BOS),
        live_ids=nothing,
        live_log_probs=start,
        ended_ids=nothing,
        ended_scores=tf.fill([batch_size, beams], NEVER),
        final=tf.fill([batch_size], False),
        cache=cache,
    )
    # What may grow does so from here on.
    empty = state
    state = state._replace(cache=read_before(step_fn, before, state.tokens, context, cache))
    if isinstance(max_length, int):
        state = _until_few_live(step, state, context, limits, max_length, 0, empty)
        ended_ids, ended_scores = state.ended_ids, state.ended_scores
    else:
        ended_ids, ended_scores = _dropping_final(step, state, context, limits, max_length, empty)
    ids = ended_ids[:, : config.n_best]
    scores = ended_scores[:, : config.n_best]
    ids = tf.where(tf.math.is_inf(scores)[:, :, None], PAD, ids)
    lengths = tf.reduce_sum(tf.cast(ids != PAD, tf.int32), axis=-1)
    penalty = length_penalty(
        tf.maximum(lengths, 1), config.length_penalty_name, config.length_penalty
    )
    return {"ids": ids, "scores": scores, "log_probs": scores * penalty, "lengths": lengths}


def _until_few_live(
    step: Callable, state: _State, context: Any, limits: tf.Tensor, max_length, few, like: _State
) -> _State:
    """Steps until no more than a few sentences are not final; what is 0 in `like` may grow."""
    # Plain tuples: outside a graph, while_loop takes no other type back.
    values = tf.while_loop(
        lambda *values: tf.math.count_nonzero(~_State(*values).final, dtype=tf.int32) > few,
        lambda *values: tuple(step(_State(*values), context, limits)),
        tuple(state),
        shape_invariants=loop_shapes(tuple(like)),
        maximum_iterations=max_length,
    )
    return _State(*values)


def _dropping_final(
    step: Callable, state: _State, context: Any, limits: tf.Tensor, max_length, empty: _State
) -> tuple[tf.Tensor, tf.Tensor]:
    """Steps until all are final; the final ones are left out whenever they are a quarter.

    Leaving them out moves all tensors once, which a step with a growing cache does twice.

    Returns:
        ended ids (B, K, T) and scores (B, K) of all sentences.
    """

    def part(rows, state, context, limits, ended_ids, ended_scores):
        few = 3 * tf.size(rows) // 4
        state = _State(*state)
        state = _until_few_live(step, state, context, limits, max_length, few, state)
        ended_ids = tf.tensor_scatter_nd_update(ended_ids, rows[:, None], state.ended_ids)
        ended_scores = tf.tensor_scatter_nd_update(ended_scores, rows[:, None], state.ended_scores)
        live = tf.where(~state.final)[:, 0]
        rows, others, context, limits = tf.nest.map_structure(
            lambda x: tf.gather(x, live), (rows, tuple(state)[1:], context, limits)
        )
        return rows, (state.index, *others), context, limits, ended_ids, ended_scores

    rows = tf.range(tf.size(state.final))
    values, shapes = (
        (rows, tuple(one), context, limits, state.ended_ids, state.ended_scores)
        for one in (state, empty)
    )
    *_, ended_ids, ended_scores = tf.while_loop(
        lambda rows, *_: tf.size(rows) > 0,
        part,
        values,
        shape_invariants=loop_shapes(shapes, fixed_rows=False),
    )
    return ended_ids, ended_scores


def _continuations(
    logits: tf.Tensor, log_probs: tf.Tensor, vocabulary_size: int | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The K best continuations by an ordinary token, and each hypothesis's score with EOS.

    Top-k runs on the raw logits and only its few results become log-probabilities, so the
    (B, K, V) pass that log_softmax would write is never made. The result is exact: of one
    hypothesis's continuations, no more than K can be among the K best of all.

    Args:
        logits: (B, K, V).
        log_probs: (B, K) of the hypotheses so far.
        vocabulary_size: ids from here up are ruled out.

    Returns:
        scores (B, K) best first, parents (B, K), tokens (B, K), EOS scores (B, K).
    """
    beams, size = logits.shape[1:]
    real_size = size if vocabulary_size is None else vocabulary_size
    # Enough that K remain after PAD, BOS, EOS and the vocabulary's padding are struck out.
    count = min(size, beams + 3 + size - real_size)
    logits = tf.cast(logits, tf.float32)
    # (B K, C) -> (B, K, C)
    top, ids = (
        tf.reshape(x, [-1, beams, count]) for x in top_k(tf.reshape(logits, [-1, size]), count)
    )
    largest = top[:, :, :1]
    log_total = tf.math.log(tf.reduce_sum(tf.exp(logits - largest), -1, keepdims=True)) + largest
    base = log_probs[:, :, None] - log_total  # (B, K, 1)
    barred = (ids == PAD) | (ids == BOS) | (ids == EOS) | (ids >= real_size)
    scores = tf.where(barred, NEVER, top + base)
    # (B, K, C) -> (B, K * C)
    scores, places = tf.math.top_k(tf.reshape(scores, [-1, beams * count]), beams)
    tokens = tf.gather(tf.reshape(ids, [-1, beams * count]), places, batch_dims=1)
    return scores, places // count, tokens, logits[:, :, EOS] + base[:, :, 0]
