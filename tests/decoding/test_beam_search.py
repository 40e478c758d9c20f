import functools

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding import BeamSearchConfig, beam_search
from macaron_tf.decoding.beam_search import top_k
from tests.toys.decoding import REAL_SIZE, Toy, trimmed
from tests.toys.marks import slow

PENALTIES = {
    "gnmt": lambda alpha, n: ((5 + n) / 6) ** alpha,
    "fairseq": lambda alpha, n: n**alpha,
    "none": lambda alpha, n: 1.0,
}


def search(toy, sources, limit, jit=None, limits=None, **settings) -> dict:
    """Returns the arrays of `beam_search`.

    With `jit=None`, the search runs eagerly. Otherwise the search runs in a graph, which XLA
    compiles if `jit` is True.
    """
    config, count = BeamSearchConfig(**settings), len(sources)

    def run(**options):
        context, cache = {"rows": tf.constant(sources)}, toy.empty_cache(count, config.beam_size)
        given = (toy.decode_step, context, cache, count, config, limit)
        return beam_search(*given, vocabulary_size=REAL_SIZE, **options)

    if jit is not None:
        run = tf.function(run, jit_compile=jit, autograph=False)
    return {name: value.numpy() for name, value in run(limits=limits).items()}


def check(toy, sources, found, expected, penalty) -> None:
    """Checks the ids, lengths, log-probabilities and scores of every source's outputs.

    Args:
        toy: scorer that computes the expected log-probabilities.
        sources: sources of the batch.
        found: arrays that the search returned.
        expected: list of the expected outputs for each source.
        penalty: function from a length to the divisor of the log-probability.
    """
    for b, (source, outputs) in enumerate(zip(sources, expected, strict=True)):
        assert [trimmed(row) for row in found["ids"][b]] == outputs
        lengths = [len(ids) for ids in outputs]
        np.testing.assert_array_equal(found["lengths"][b], lengths)
        log_probs = [toy.log_prob(source, ids) for ids in outputs]
        np.testing.assert_allclose(found["log_probs"][b], log_probs, rtol=1e-4)
        scores = [log_prob / penalty(n) for log_prob, n in zip(log_probs, lengths, strict=True)]
        np.testing.assert_allclose(found["scores"][b], scores, rtol=1e-4)


@pytest.mark.parametrize(("name", "alpha"), [("gnmt", 0.6), ("fairseq", 1.0), ("none", 0.6)])
def test_large_beam_finds_the_best_of_all(name, alpha):
    limit = 5  # 1 + 3 + 9 + 27 + 81 = 121 outputs
    toy = Toy(3)
    sources = toy.sources(4)
    settings = {"length_penalty": alpha, "length_penalty_name": name, "stopping": "exact"}
    found = search(toy, sources, limit, jit=False, beam_size=100, n_best=5, **settings)
    penalty = functools.partial(PENALTIES[name], alpha)
    expected = [toy.beam_search(source, limit, penalty, 3**limit)[:5] for source in sources]
    check(toy, sources, found, expected, penalty)


@pytest.mark.parametrize("alpha", [0.6, *slow(0.0, 1.0)])
def test_exact_stopping_changes_nothing(alpha):
    """Beam search with exact stopping finds the same outputs as a search that never stops early."""
    limit = 30
    settings = {"beam_size": 3, "n_best": 2, "length_penalty": alpha, "stopping": "exact"}
    penalty = functools.partial(PENALTIES["gnmt"], alpha)
    stopped_early = 0
    for seed in range(6):
        toy = Toy(seed)
        sources = toy.sources(5)
        toy.calls = 0
        found = search(toy, sources, limit, **settings)
        stopped_early += toy.calls < limit
        expected = [toy.beam_search(source, limit, penalty, 3)[:2] for source in sources]
        check(toy, sources, found, expected, penalty)
    assert stopped_early or alpha == 1.0  # with alpha 1.0 the bound is too loose for this limit


@pytest.mark.parametrize("stopping", ["complete", "exact"])
def test_a_result_does_not_depend_on_the_neighbours(stopping):
    toy = Toy(1)
    sources = toy.sources(6)
    limits = np.array([3, 12, 5, 9, 1, 7])
    settings = {"beam_size": 4, "n_best": 3, "stopping": stopping}
    together = search(toy, sources, 12, jit=False, limits=limits, **settings)
    for b in range(6):
        alone = search(toy, sources[b : b + 1], int(limits[b]), **settings)
        np.testing.assert_array_equal(together["ids"][b, :, : limits[b]], alone["ids"][0])
        assert not together["ids"][b, :, limits[b] :].any()
        np.testing.assert_allclose(together["scores"][b], alone["scores"][0], rtol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_xla_agrees(beam_size):
    toy = Toy(2)
    sources = toy.sources(5)
    limits = np.array([10, 4, 10, 7, 1])
    settings = {"beam_size": beam_size, "n_best": min(2, beam_size), "limits": limits}
    plain = search(toy, sources, 10, jit=False, **settings)
    compiled = search(toy, sources, 10, jit=True, **settings)
    np.testing.assert_array_equal(plain["ids"], compiled["ids"])
    np.testing.assert_allclose(plain["scores"], compiled["scores"], rtol=1e-4)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_final_sentences_leave_the_batch(beam_size):
    toy = Toy(5)
    sources = toy.sources(12)
    settings = {"beam_size": beam_size, "length_penalty": 1.0, "min_length": 20}
    limits = [3, 9, 3, 4, 7, 3, 12, 2, 9, 3, 5, 2]
    batches = []

    def decode_step(tokens, index, context, cache):
        batches.append(tokens.shape[0])
        return Toy.decode_step(toy, tokens, index, context, cache)

    whole = search(toy, sources, 12, jit=False, limits=limits, **settings)
    toy.decode_step = decode_step
    # Without a graph, each step's batch size can be recorded. The limit is a tensor.
    found = search(toy, sources, tf.constant(12), limits=limits, **settings)
    # Finished rows leave when they are a quarter: 2 of 12 after two steps are fewer, and 6 after
    # three steps are not.
    assert batches == 3 * [12] + 2 * [6] + 2 * [4] + 2 * [3] + 3 * [1]
    np.testing.assert_array_equal(found["ids"], whole["ids"])
    for name in ("scores", "log_probs", "lengths"):
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_repeats(size, beam_size):
    toy, limit = Toy(4), 12
    sources, penalty = toy.sources(6), functools.partial(PENALTIES["none"], 0.0)
    settings = {"beam_size": beam_size, "length_penalty": 0.0, "stopping": "exact"}
    settings["min_length"] = 0 if size == 1 else 5  # there are three words

    def repeats(found) -> bool:
        rows = [trimmed(row)[:-1] for row in found["ids"][:, 0]]  # without EOS
        ngrams = [[ids[i : i + size] for i in range(len(ids) - size + 1)] for ids in rows]
        return any(len(row) > len({*row}) for row in ngrams)

    assert repeats(search(toy, sources, limit, jit=False, **settings))
    settings["no_repeat_ngram_size"] = size
    found = search(toy, sources, limit, jit=False, **settings)
    assert not repeats(found) and found["lengths"].min() > settings["min_length"]
    check(toy, sources, found, [[trimmed(row[0])] for row in found["ids"]], penalty)
    compiled = search(toy, sources, limit, jit=True, **settings)
    dropped = search(toy, sources, tf.constant(limit), limits=[limit] * 6, **settings)
    for other in (compiled, dropped):
        np.testing.assert_array_equal(found["ids"], other["ids"])
        np.testing.assert_allclose(found["log_probs"], other["log_probs"], rtol=1e-4)


def test_min_length_delays_the_end():
    toy = Toy(0)
    found = search(toy, toy.sources(6), 9, jit=False, beam_size=3, n_best=3, min_length=4)
    assert found["lengths"].min() == 5  # four tokens and EOS


def test_fewer_outputs_than_asked_for():
    found = search(Toy(0), Toy(0).sources(2), 2, beam_size=8, n_best=8, stopping="exact")
    # The outputs are EOS alone, or one of three words and EOS.
    np.testing.assert_array_equal(np.isfinite(found["scores"]).sum(axis=1), [4, 4])
    assert not found["ids"][:, 4:].any()
    assert not found["lengths"][:, 4:].any()


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("size", "k"), [(10_000, 7), (72, 7), (7, 7), (1000, 1)])
def test_it_equals_the_ordinary_op_with_and_without_ties(size, k, jit):
    rng = np.random.default_rng(size)
    search = tf.function(lambda x: top_k(x, k), jit_compile=jit)
    for values in (2, 50, 10**6):  # with few values, nearly all tie
        scores = tf.constant(rng.integers(0, values, (6, size)), tf.float32)
        scores = tf.where(scores == 0, float("-inf"), scores)
        for found, expected in zip(search(scores), tf.math.top_k(scores, k), strict=True):
            np.testing.assert_array_equal(found, expected)
