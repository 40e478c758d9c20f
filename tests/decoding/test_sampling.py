import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding import SamplingConfig, sample
from tests.decoding.toy import REAL_SIZE, Toy, trimmed

LOGITS = np.array([3.0, 1.0, 3.0, 0.5, 2.0, 1.5, 0.0, 4.0], np.float32)


def run(toy, sources, limit, seed=0, jit=False, **settings):
    config = SamplingConfig(**settings)

    @tf.function(jit_compile=jit)
    def draw(seed):
        return sample(
            toy.step,
            tf.constant(sources),
            toy.empty_cache(len(sources), config.num_samples),
            len(sources),
            config,
            limit,
            seed=seed,
            vocabulary_size=REAL_SIZE,
        )

    return {name: value.numpy() for name, value in draw(tf.constant(seed)).items()}


def first_tokens(draws, seed=0, **settings):
    """The first token of many samples from one distribution over ids 0 to 7, id 7 barred."""
    config = SamplingConfig(num_samples=draws, **settings)
    return sample(
        lambda tokens, index, context, cache: (tf.tile(LOGITS[None, None], [1, draws, 1]), cache),
        None,
        {},
        1,
        config,
        2,
        seed=seed,
        vocabulary_size=7,
    )["ids"].numpy()[0, :, 0]


def expected(kept, temperature=1.0):
    weights = np.zeros(8)
    weights[kept] = np.exp(LOGITS[kept] / temperature)
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("settings", "probabilities"),
    [
        ({}, expected([1, 3, 4, 5, 6])),
        ({"temperature": 0.5}, expected([1, 3, 4, 5, 6], 0.5)),
        ({"top_k": 3}, expected([1, 4, 5])),
        # 0.43 + 0.26 of {4, 5, 1, 3, 6} is short of 0.7, and the third one reaches it.
        ({"top_p": 0.7}, expected([1, 4, 5])),
        # 0.51 of {4, 5, 1} reaches 0.5 alone.
        ({"top_k": 3, "top_p": 0.5}, expected([4])),
        ({"top_k": 4, "top_p": 0.7, "temperature": 2.0}, expected([1, 4, 5], 2.0)),
    ],
)
def test_draws_follow_the_distribution(settings, probabilities):
    draws = 100_000
    counts = np.bincount(first_tokens(draws, **settings), minlength=8)
    assert not counts[probabilities == 0].any()
    # Five standard deviations of a binomial count.
    slack = 5 * np.sqrt(draws * probabilities * (1 - probabilities))
    assert (np.abs(counts - draws * probabilities) <= slack).all()


def test_a_seed_repeats_and_another_differs():
    toy = Toy(0)
    sources = toy.sources(4)
    one, again, other = (run(toy, sources, 10, seed, num_samples=5)["ids"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert (one[:, 0] != one[:, 1]).any()


@pytest.mark.parametrize("jit", [False, True])
def test_zero_temperature_is_greedy(jit):
    toy = Toy(1)
    sources = toy.sources(6)
    found = run(toy, sources, 8, jit=jit, temperature=0.0)
    for b, source in enumerate(sources):
        assert trimmed(found["ids"][b, 0]) == toy.greedy(source, 8)


def test_log_probs_are_the_models():
    toy = Toy(2)
    sources = toy.sources(3)
    found = run(toy, sources, 8, temperature=0.7, top_k=3, num_samples=4)
    for b, source in enumerate(sources):
        for k in range(4):
            ids = trimmed(found["ids"][b, k])
            assert ids[-1] == 3
            assert found["lengths"][b, k] == len(ids)
            np.testing.assert_allclose(
                found["log_probs"][b, k], toy.log_prob(source, ids), rtol=1e-4
            )


def test_xla_draws_the_same_and_keeps_the_rules():
    toy = Toy(3)
    settings = {"top_k": 4, "top_p": 0.9, "num_samples": 3}
    plain, compiled = (
        run(toy, toy.sources(3), 6, 7, jit=jit, **settings)["ids"] for jit in (False, True)
    )
    np.testing.assert_array_equal(plain, compiled)
    for row in compiled.reshape(-1, 6):
        ids = trimmed(row)
        assert ids[-1] == 3
        assert set(ids[:-1]) <= {1, 4, 5}
