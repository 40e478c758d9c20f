"""Tests of translation by beam search, with fixed and growing caches."""

import types

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from macaron_tf import decoding
from macaron_tf.decoding.translator import target_limits
from macaron_tf.models import catalog
from macaron_tf.special import Special
from tests.toys.decoding import check_greedy, shaken
from tests.toys.marks import slow

SIZE = 24


@pytest.fixture(scope="module")
def model():
    sizes = {"hidden_dim": 16, "feed_forward_dim": 32}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = catalog.build("macaron_tiny", vocab_size=SIZE, **sizes, **layers)
    return shaken(model, 0.4, seed=0)


def whole_logits(model, source, target):
    return np.array(model({"source": source, "target": target}, training=False))


def sources(batch, length, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.zeros((batch, length), np.int32)
    for b in range(batch):
        real = rng.integers(1, length)
        rows[b, :real] = rng.integers(4, SIZE, real)
        rows[b, real] = 3
    return rows


GREATEST = 2**31 - 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_length_offset": GREATEST}, [256, 256]),
        ({"max_length_offset": 1 - 2**31}, [1, 1]),
        ({"max_length_ratio": 3e38, "max_length_offset": 1 - 2**31}, [256, 256]),
        ({"max_length_ratio": 1e10, "max_length": GREATEST}, [GREATEST, GREATEST]),
        ({"max_length": GREATEST}, [54, 52]),
        ({"max_length_ratio": 1.3, "max_length_offset": 2}, [8, 5]),
    ],
)
def test_limits_do_not_overflow(settings, expected):
    config = decoding.BeamSearchConfig(**settings)
    source = tf.constant([[5, 6, 7, 3], [5, 3, 0, 0]])
    signature = [tf.TensorSpec((None, None), tf.int32)]
    unknown = tf.function(lambda rows: target_limits(rows, config, 0), input_signature=signature)
    np.testing.assert_array_equal(target_limits(source, config, 0)[1], expected)
    greatest, limits = unknown(source)
    assert greatest == max(expected)
    np.testing.assert_array_equal(limits, expected)


@pytest.mark.parametrize("name", ["fairseq", *slow("gnmt")])
def test_a_huge_length_penalty_leaves_numbers(model, name):
    source = tf.constant(sources(2, 6))
    config = decoding.BeamSearchConfig(
        beam_size=3, length_penalty=1e3, length_penalty_name=name, n_best=2, max_length=12
    )
    found = decoding.translate_ids(model, source, config)
    assert np.isfinite(found["scores"]).all() and np.isfinite(found["log_probs"]).all()
    own = decoding.score_ids(model, source, found["ids"][:, 0])["log_probs"]
    np.testing.assert_allclose(found["log_probs"][:, 0], own, rtol=1e-4)


def test_a_beam_of_one_is_the_uncached_argmax(model):
    source = sources(4, 6, seed=1)
    check_greedy(model, source, lambda *rows: whole_logits(model, *rows), 8)


def test_scores_leave_padding_out():
    logits = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    target = np.array([[4, 3, 0], [1, 4, 3]])

    def model(inputs, training):
        np.testing.assert_array_equal(inputs["target"], [[2, 4, 3], [2, 1, 4]])
        return tf.constant(logits)

    model.config = types.SimpleNamespace(special=Special())
    scored = decoding.score_ids(model, tf.constant([[3], [3]]), tf.constant(target))
    log_probs = scipy.special.log_softmax(logits, axis=-1)
    expected = np.take_along_axis(log_probs, target[..., None], -1)[..., 0] * (target != 0)
    np.testing.assert_allclose(scored["token_log_probs"], expected, rtol=1e-5)
    np.testing.assert_allclose(scored["log_probs"], expected.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(scored["lengths"], [2, 3])


class Letters:
    """A vocabulary whose pieces are the letters a to t."""

    pieces = SIZE

    def encode_lines(self, lines):
        return [[ord(c) - ord("a") + 4 for c in line if c.isalpha()] for line in lines]

    def decode_lines(self, rows):
        rows = [list(row) for row in rows]
        rows = [row[: row.index(3)] if 3 in row else row for row in rows]
        return ["".join(chr(i - 4 + ord("a")) for i in row if i > 3) for row in rows]


@pytest.fixture(scope="module")
def translator(model):
    config = decoding.BeamSearchConfig(n_best=2, max_length=10)
    return decoding.LineTranslator(model, Letters(), config, batch_tokens=10, max_source_length=8)


def test_lines_come_back_in_order(translator):
    lines = ["abcdefgh", "", "b", "  ", "cab", "b", "ttt"]
    result = translator.translate(lines)
    assert not result.warnings
    assert len(result.best) == len(lines)
    assert result.best[1] == result.best[3] == ""
    assert result.best[2] == result.best[5]
    for line, hypotheses in zip(lines, result.hypotheses, strict=True):
        if line.strip():
            assert len(hypotheses) == 2
            assert hypotheses[0].score >= hypotheses[1].score
            alone = translator.translate([line]).hypotheses[0]
            assert [h.text for h in alone] == [h.text for h in hypotheses]
    assert translator._search.experimental_get_tracing_count() == 1


def test_streaming_equals_translating_at_once_and_cuts_long_lines(translator):
    lines = ["ab", "c", "", "abcdefgh", "abcdefghij"]
    chunks = list(translator.stream((line + "\n" for line in lines), chunk_size=2))
    assert [len(chunk.best) for chunk in chunks] == [2, 2, 1]
    streamed = [text for chunk in chunks for text in chunk.best]
    assert streamed == translator.translate(lines).best
    assert not chunks[0].warnings and not chunks[1].warnings
    assert chunks[2].warnings == [
        "line 5 has more than 8 tokens, so only the first 8 tokens are translated."
    ]
    assert chunks[2].best[0] == chunks[1].best[1] != ""
    long = translator.translate(["abcdefgh" * 500_000])
    assert long.warnings == [chunks[2].warnings[0].replace("5", "1")]
    assert long.best == chunks[2].best[:1]


def test_no_lines(model):
    assert decoding.LineTranslator(model, Letters()).translate([]).hypotheses == []


@pytest.mark.parametrize("jit_compile", [False, True])
def test_xla_updates_a_fixed_cache_only_where_it_compiles_the_rest(model, jit_compile):
    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(rows):
        context, cache = model.init_decode(rows, 2, 5)
        return model.decode_step(tf.zeros((4, 2), tf.int32), 3, context, cache)

    graph = step.get_concrete_function(tf.TensorSpec((4, 6), tf.int32)).graph
    found = any(operation.type.startswith("Xla") for operation in graph.get_operations())
    assert found == jit_compile
