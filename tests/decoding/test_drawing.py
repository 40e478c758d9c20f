import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.decoding import Controls, draw, filter_logits
from macaron_tf.decoding.sampling import threefry, uniforms


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [  # The known answers that Salmon et al. publish with their code.
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers(key, counter, expected, jit):
    words = [tf.constant(word, tf.uint32) for word in (*key, *counter)]
    found = tf.function(lambda a, b, c, d: threefry((a, b), (c, d)), jit_compile=jit)(*words)
    assert tuple(int(word) for word in found) == expected


def test_uniforms_are_uniform_in_every_direction():
    count = 20_000
    numbers = tf.range(count)
    zeros = tf.zeros_like(numbers)
    for seeds, streams, places in (
        (tf.stack([numbers, zeros], -1), 0, 0),
        (tf.stack([zeros, numbers], -1), 0, 0),
        (tf.constant([-3, 5]), numbers, 0),
        (tf.constant([1, 0]), 0, numbers),
    ):
        found = uniforms(seeds, tf.constant(streams), tf.constant(places)).numpy()
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
    columns = np.array(SETTINGS, np.float32).T
    together = Controls(
        tf.constant(columns[0]), tf.constant(columns[1].astype(np.int32)), tf.constant(columns[2])
    )
    filtered = filter_logits(logits[:5], Controls(*(c[:5] for c in together))).numpy()
    for row, setting in enumerate(SETTINGS[:5]):
        alone = filter_logits(logits[row : row + 1], Controls(*setting)).numpy()
        np.testing.assert_allclose(filtered[row], alone[0], rtol=1e-6)
    uniform = uniforms(tf.constant([7, 0]), tf.range(12), tf.constant(0))
    uniform = tf.reshape(uniform, (6, 2))
    drawn = draw(logits, uniform, together).numpy()
    for row, setting in enumerate(SETTINGS):
        one = slice(row, row + 1)
        alone = draw(logits[one], uniform[one], Controls(*setting)).numpy()
        np.testing.assert_array_equal(drawn[row], alone[0])


def test_what_is_ruled_out_is_never_drawn():
    logits = tf.constant([[[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]]])
    for u, expected in ((0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-23, 3)):
        assert draw(logits, tf.constant([[u]]), Controls()).numpy() == expected
