"""Tests of the random number generator, of sampling, and of continuing prompts."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding import Controls, GenerationConfig, Prompts, Rules, generate, sampling
from tests.toys.decoding import EOS, REAL_SIZE, SIZE, Toy, greedy, language_model
from tests.toys.marks import slow, thorough


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [  # The test vectors that Salmon et al. publish with their code.
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers(key, counter, expected, jit):
    words = [tf.constant(word, tf.uint32) for word in (*key, *counter)]
    hashed = tf.function(lambda a, b, c, d: sampling.threefry((a, b), (c, d)), jit_compile=jit)
    assert tuple(int(word) for word in hashed(*words)) == expected


def test_uniforms_are_uniform_in_every_direction():
    count = 20_000
    numbers = tf.range(count)
    for seeds, positions in ((numbers, tf.constant(0)), (tf.constant(-3), numbers)):
        found = sampling.uniforms(seeds, positions).numpy()
        assert found.shape == (count,) and found.min() >= 0 and found.max() < 1
        counts = np.histogram(found, 20, (0, 1))[0]
        assert np.abs(counts - count / 20).max() < 5 * np.sqrt(count / 20)
        assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 5 / np.sqrt(count)


def rows(seed=0):
    logits = np.random.default_rng(seed).normal(size=(6, 2, 50)).astype(np.float32)
    logits[:, :, [3, 7]] = -np.inf
    return tf.constant(logits)


SETTINGS = [(1.0, 0, 1.0), (0.5, 3, 1.0), (2.0, 0, 0.6), (0.9, 10, 0.5), (1.0, 60, 1.0), (0, 0, 1)]


def test_each_row_follows_its_own_controls():
    logits = rows()
    columns = zip(*SETTINGS, strict=True)
    kinds = (tf.float32, tf.int32, tf.float32)
    together = Controls(*(tf.constant(c, kind) for c, kind in zip(columns, kinds, strict=True)))
    filtered = sampling.filter_logits(logits[:5], Controls(*(c[:5] for c in together))).numpy()
    for row, setting in enumerate(SETTINGS[:5]):
        alone = sampling.filter_logits(logits[row : row + 1], Controls(*setting)).numpy()
        np.testing.assert_allclose(filtered[row], alone[0], rtol=1e-6)
    uniform = tf.reshape(sampling.uniforms(tf.range(12), tf.constant(0)), (6, 2))
    drawn = sampling.draw(logits, uniform, together).numpy()
    for row, setting in enumerate(SETTINGS):
        one = slice(row, row + 1)
        alone = sampling.draw(logits[one], uniform[one], Controls(*setting)).numpy()
        np.testing.assert_array_equal(drawn[row], alone[0])


EXTREME = [
    *({"temperature": t} for t in (1e-10, 1e-37, 1e-38, 1e-45, 1e-300, 3e38)),
    *({"top_p": p} for p in (1e-30, 1e-38, 1e-45)),
    {"temperature": 1e-37, "top_p": 1e-38, "top_k": 2**31 - 1},
]


@pytest.mark.parametrize("settings", EXTREME)
@pytest.mark.parametrize("scale", [1.0, -1e5, 3e37])
def test_extreme_settings_draw_nothing_that_is_ruled_out(settings, scale):
    """Tiny temperatures and tiny values of `top_p` give greedy choices.

    A huge temperature draws uniformly. Tokens with the logit -inf are never drawn.
    """
    logits = scale * np.array([9, 1, 3, -2, 2, 9], np.float32)
    logits[[0, 5]] = -np.inf
    logits = tf.tile(tf.constant(logits)[None, None], [1, 4, 1])  # `(1, K, V)`
    uniform = tf.constant([[0.0, 0.3, 0.6, 0.99]])
    hot = settings.get("temperature") == 3e38
    expected = [1, 2, 3, 4] if hot else [int(np.argmax(logits[0, 0]))] * 4
    config = GenerationConfig(**settings)
    rows = [np.array([getattr(config, n)], t) for n, t in zip(Controls._fields, "fif", strict=True)]
    for controls in (config, Controls(*map(tf.constant, rows))):
        drawn = sampling.draw(logits, uniform, controls).numpy()[0].tolist()
        if hot and scale == 3e37:
            assert set(drawn) <= {1, 2, 3, 4}
        else:
            assert drawn == expected
        filtered = sampling.filter_logits(logits, controls).numpy()
        assert not np.isnan(filtered).any() and np.isneginf(filtered[..., [0, 5]]).all()


LOGITS = np.array([-np.inf, 1.0, -np.inf, 0.5, 2.0, 1.5, 0.0], np.float32)


def expected(kept, temperature=1.0):
    weights = np.zeros(7)
    weights[kept] = np.exp(LOGITS[kept] / temperature)
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("settings", "probabilities"),
    [
        ({}, expected([1, 3, 4, 5, 6])),
        ({"temperature": 0.5}, expected([1, 3, 4, 5, 6], 0.5)),
        ({"top_k": 3}, expected([1, 4, 5])),
        # 0.43 + 0.26 of {4, 5, 1, 3, 6} is below 0.7, and the third token reaches it.
        ({"top_p": 0.7}, expected([1, 4, 5])),
        # 0.51 of {4, 5, 1} reaches 0.5 alone.
        ({"top_k": 3, "top_p": 0.5}, expected([4])),
        ({"top_k": 4, "top_p": 0.7, "temperature": 2.0}, expected([1, 4, 5], 2.0)),
    ],
)
def test_draws_follow_the_distribution(settings, probabilities):
    draws = 100_000
    uniform = sampling.uniforms(tf.range(draws), tf.constant(0))
    logits = tf.tile(LOGITS[None, None], [1, draws, 1])
    found = sampling.draw(logits, uniform[None], GenerationConfig(**settings))
    counts = np.bincount(found.numpy()[0], minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    slack = 5 * np.sqrt(draws * probabilities * (1 - probabilities))  # of standard deviations
    assert (np.abs(counts - draws * probabilities) <= slack).all()


V, END = 20, 3


BARRED = np.arange(V) < 3

MODELS = {
    "transformer": {"block": "transformer", "norm": "pre"},
    "macaron": {"block": "macaron", "norm": "pre", "relative_bias": "shared"},
    "swish_rnn": {"block": "swish_rnn", "rnn_step_sizes": (1, 2), "positions": "none"},
    "banded": {"attention_windows": (0, 3)},
    "adaptive": {"adaptive_cutoffs": (6, 12), "adaptive_divisor": 2},
}
ROWS = [[2, 5, 9, 11], [2], [2, 7, 7, 8, 4, 6]]
P, N = 6, 5


@functools.cache
def small(kind):
    return language_model(V, **MODELS[kind])


def asked(rows=ROWS, samples=2, limits=N, seed=1):
    ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    seeds = seed + np.tile(np.arange(samples, dtype=np.int32), (len(rows), 1))
    lengths = np.array([len(row) for row in rows], np.int32)
    limits = np.broadcast_to(np.int32(limits), (len(rows),))
    return Prompts(*(tf.constant(x) for x in (ids, lengths, limits, seeds)))


def run(model, prompts, rules, max_tokens=N, growing=False, read=True):
    room = None if growing else prompts.ids.shape[1] + max_tokens - 1

    @tf.function(autograph=False)
    def whole(prompts):
        context, cache = model.init_decode(prompts.ids.shape[0], prompts.seeds.shape[1], room)
        prefill_fn = model.prefill if read else None
        state = sampling.first_state(prompts, context, cache, prefill_fn)
        return generate(model.decode_step, state, context, prompts, rules, max_tokens)

    return {name: value.numpy() for name, value in whole(prompts).items()}


def without_cache(model):
    """Returns a function from the ids of a row to the logits of the next token.

    The function runs the whole model without a cache. The row is padded with arbitrary tokens, to
    which earlier positions of a causal model do not attend.
    """
    whole = tf.function(lambda ids: model({"token_ids": ids}), autograph=False)

    def next_logits(row):
        padded = np.array([row + [4] * (P + N - len(row))], np.int32)
        return whole(padded).numpy()[0, len(row) - 1].astype(np.float64)

    return next_logits


@pytest.mark.parametrize("kind", slow(*MODELS, but=("transformer", "adaptive")))
def test_greedy_is_the_argmax_of_the_whole_model(kind):
    model, rules = small(kind), Rules(Controls(temperature=0), END, BARRED)
    rows = [ROWS[0], ROWS[2]]  # prefill reads three tokens of both rows
    found, next_logits = run(model, asked(rows), rules), without_cache(model)
    for b, prompt in enumerate(rows):
        new, log_prob = greedy(next_logits, prompt, N, BARRED)
        for k in range(2):
            assert found["ids"][b, k].tolist() == new + [0] * (N - len(new))
            assert found["lengths"][b, k] == len(new)
            np.testing.assert_allclose(found["log_probs"][b, k], log_prob, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("min_tokens", [*slow(0), 4])
def test_any_of_several_ends_ends_a_text(min_tokens):
    model, rules = small("transformer"), Rules(Controls(temperature=0), END, BARRED)
    whole = run(model, asked(), rules)["ids"]
    ends = [END, *{int(row[min_tokens and 4]) for row in whole[:, 0]}]
    found = run(model, asked(), rules._replace(end_id=ends, min_tokens=min_tokens))
    next_logits = without_cache(model)
    for b, prompt in enumerate(ROWS):
        new, _ = greedy(next_logits, prompt, N, BARRED, ends, min_tokens)
        assert found["ids"][b, 0].tolist() == new + [0] * (N - len(new))
        assert found["lengths"][b, 0] == len(new)
        assert len(new) > min_tokens and (min_tokens or len(new) == 1)


@pytest.mark.parametrize("kind", ["transformer", *slow("swish_rnn")])
def test_one_graph_a_growing_cache_and_a_stream_draw_the_same(kind):
    model, rules = small(kind), Rules(Controls(0.8, 12, 0.9), END, BARRED)
    prompts = asked(limits=[N, 3, N])
    found = run(model, prompts, rules)
    if kind == "transformer":
        growing = run(model, prompts, rules, growing=True)
        np.testing.assert_array_equal(growing["ids"], found["ids"])

    @tf.function(autograph=False)
    def step(state, context, prompts):
        return sampling.advance(model.decode_step, state, context, prompts, rules)

    context, cache = model.init_decode(3, 2, P + N - 1)
    state, new = sampling.first_state(prompts, context, cache, model.prefill), []
    while not bool(tf.reduce_all(state.ended)):
        state, tokens = step(state, context, prompts)
        new.append(tokens.numpy())
    for b, limit in enumerate((N, 3, N)):
        for k in range(2):
            tokens = [int(each[b, k]) for each in new if each[b, k]]
            assert tokens == [i for i in found["ids"][b, k] if i]
            assert len(tokens) <= limit
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("kind", "growing"),
    [
        ("transformer", True),
        *thorough(("swish_rnn", False)),
        *slow(("banded", True), ("banded", False)),
    ],
)
def test_a_prompt_read_at_once_is_gone_on_from_as_one_read_by_steps(monkeypatch, kind, growing):
    monkeypatch.setattr(sampling, "_CHUNK", 2)  # three tokens in two chunks
    model, prompts = small(kind), asked([[2, 7, 7, 8, 4, 6], [2, 5, 9, 11], [2, 5, 9, 11]])
    rules = Rules(Controls(0.8), END, BARRED)
    found, by_steps = (run(model, prompts, rules, growing=growing, read=read) for read in (1, 0))
    np.testing.assert_array_equal(found["ids"], by_steps["ids"])
    np.testing.assert_allclose(found["log_probs"], by_steps["log_probs"], atol=1e-4)
    state = sampling.first_state(prompts, *model.init_decode(3, 2), model.prefill)
    assert int(state.index) == 3  # all but the last token of the shortest prompt are read


def test_a_row_depends_on_its_own_prompt_and_seed_alone():
    model, rules = small("transformer"), Rules(Controls(), END, BARRED)
    shapes = ((None, None), (None,), (None,), (None, 3))

    @tf.function(
        input_signature=[Prompts(*(tf.TensorSpec(shape, tf.int32) for shape in shapes))],
        autograph=False,
    )
    def drawn(prompts):
        context, cache = model.init_decode(tf.shape(prompts.ids)[0], 3)
        state = sampling.first_state(prompts, context, cache, model.prefill)
        return generate(model.decode_step, state, context, prompts, rules, N)["ids"]

    together = drawn(asked(samples=3, seed=4)).numpy()
    for b, prompt in enumerate(ROWS):
        for k in (0, 2):
            alone = drawn(asked([prompt], 3, seed=4 + k)).numpy()
            np.testing.assert_array_equal(alone[0, 0], together[b, k])
    assert (together != drawn(asked(samples=3, seed=40)).numpy()).any()


def test_lengths_keep_their_limits():
    prompts = asked([[2, 4], [2, 5, 5], [2]], 200, [6, 0, 4])
    toy, ids = Toy(4), np.arange(SIZE)
    suppressed = (ids == 2) | (ids >= REAL_SIZE)
    context = {"rows": toy.sources(1).repeat(3, axis=0)}
    state = sampling.first_state(prompts, context, toy.empty_cache(3, 200))
    rules = Rules(Controls(2.0), EOS, suppressed, min_tokens=2)
    found = generate(toy.decode_step, state, context, prompts, rules, 6)
    lengths = found["lengths"].numpy()
    assert lengths[0].min() >= 3 and lengths[0].max() == 6
    assert not lengths[1].any()
    assert lengths[2].max() == 4
    ids = found["ids"].numpy()
    for row in ids.reshape(-1, 6):
        text = row[row != 0]
        assert not (text[:-1] == EOS).any() and (row[len(text) :] == 0).all()
