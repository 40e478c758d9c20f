"""Tests of fused dropout and attention on JAX; on a CPU, Pallas interprets the kernel."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402

from macaron_tf.kernels import flash_attention as flash  # noqa: E402
from macaron_tf.kernels.jax_dropout import derive_key, dropout, random_bits  # noqa: E402

pytestmark = pytest.mark.thorough  # an interpreted kernel takes seconds

SEED = jnp.array([7, 3], jnp.uint32)


def plain(query, key, value, seen, seed, scale, causal, window, rate):
    """Computes what `flash_attention` returns, but with full attention matrices.

    The dropout mask equals the mask of `flash_attention`.
    """
    (rows, length, heads, _), count = query.shape, key.shape[1]
    key, value = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (key, value))
    scores = jnp.einsum("bthd,bshd->bhts", query, key) * scale
    mask = jnp.ones((rows, 1, length, count), bool)
    if seen is not None:
        mask &= seen[:, None, None]
    if causal:
        distances = jnp.arange(length)[:, None] - jnp.arange(count)
        mask &= (distances >= 0) & ((distances < window) if window else True)
    elif window:
        mask &= jnp.abs(jnp.arange(length)[:, None] - jnp.arange(count)) <= window // 2
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    weights = dropout(weights, rate, seed) if rate else weights
    return jnp.einsum("bhts,bshd->bthd", weights, value)


@pytest.mark.parametrize(
    ("causal", "window", "rate", "length", "count", "shared"),
    [
        (False, 0, 0.0, 20, 37, 1),
        (True, 0, 0.3, 37, 37, 2),
        (True, 18, 0.2, 50, 50, 1),
        (False, 37, 0.2, 70, 70, 1),
    ],
    ids=["across", "causal_grouped_dropout", "window_dropout", "local_dropout"],
)
def test_attention_and_its_gradients(causal, window, rate, length, count, shared, monkeypatch):
    small = flash.Blocks(16, 16, 4, 2)
    for name in ("FORWARD_BLOCKS", "BACKWARD_BLOCKS"):
        monkeypatch.setattr(flash, name, small)
    rng = np.random.default_rng(0)
    shapes = [(2, length, 2, 16), *[(2, count, 2 // shared, 16)] * 2, (2, length, 2, 16)]
    *arrays, slope = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    # The last 9 keys of row 1 are hidden. In the causal case, each query still sees a key.
    seen = jnp.arange(count) < jnp.array([[count], [count - 9]])
    options = {"scale": 0.25, "causal": causal, "window": window, "rate": rate}

    def of(attention):
        def loss(*arrays):
            y = attention(*arrays, None if window else seen, SEED, **options)
            return jnp.sum(y * slope), y

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)

    (_, found), slopes = of(flash.flash_attention)
    (_, expected), expected_slopes = of(plain)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    for one, other in zip(slopes, expected_slopes, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_row_without_keys_is_the_mean_of_values():
    query = jnp.ones((1, 3, 1, 16))
    value = jnp.arange(4.0)[None, :, None, None] * jnp.ones((1, 4, 1, 16))
    y = flash.flash_attention(query, value, value, jnp.zeros((1, 4), bool), scale=1.0)
    np.testing.assert_allclose(y, np.full((1, 3, 1, 16), 1.5), rtol=1e-6)


def test_it_lowers_to_triton(monkeypatch):
    call = flash.pl.pallas_call
    compiled = lambda *args, **options: call(*args, **{**options, "interpret": False})  # noqa: E731
    monkeypatch.setattr(flash.pl, "pallas_call", compiled)
    array = jax.ShapeDtypeStruct((2, 200, 4, 64), jnp.bfloat16)
    seen, seed = (jax.ShapeDtypeStruct(*x) for x in (((2, 200), bool), ((2,), jnp.uint32)))

    def loss(*arrays):
        y = flash.flash_attention(*arrays, scale=0.125, causal=True, window=70, rate=0.1)
        return jnp.sum(y.astype(jnp.float32))

    gpu = jax.sharding.AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=gpu)
    with jax.sharding.use_abstract_mesh(mesh):  # JAX 0.12 asks which GPU, where there is none
        step = jax.jit(jax.grad(loss, (0, 1, 2))).trace(array, array, array, seen, seed)
        text = step.lower(lowering_platforms=("cuda",)).as_text()
    assert all(name in text for name in ("forward", "backward_queries", "backward_keys"))


def test_bits_are_as_independent_draws():
    rate, size, seeds = 0.1, 2**16, [(1, 0), (1, 1), (2, 0), (2**31, 5)]
    variance = rate * (1 - rate)
    masks = []
    for seed in seeds:
        key = derive_key(jnp.array(seed, jnp.uint32))
        bits = random_bits(jnp.arange(size, dtype=jnp.uint32), key)
        high = np.bincount(np.asarray(bits >> 24), minlength=256)
        assert ((high - size / 256) ** 2 / (size / 256)).sum() < 255 + 5 * (2 * 255) ** 0.5
        masks.append(np.asarray(bits < round(rate * 2**32)) - rate)
        # Correlations at all lags: the largest of 32,767 normal values is below 6 deviations.
        spectrum = np.fft.rfft(masks[-1], 2 * size)
        lags = np.fft.irfft(spectrum * spectrum.conj())[1 : size // 2]
        assert np.abs(lags).max() < 6 * variance * size**0.5
        assert abs(masks[-1].sum()) < 5 * (variance * size) ** 0.5
    between = np.corrcoef(masks) - np.eye(len(seeds))
    assert np.abs(between).max() < 5 / size**0.5


def test_dropout_follows_its_rate_and_passes_gradients_where_it_kept():
    x = jnp.linspace(1.0, 2.0, 60_000).reshape(100, 20, 30)
    slope = jax.jit(jax.grad(lambda x: jnp.sum(dropout(x, 0.25, SEED))))(x)
    found = np.asarray(dropout(x, 0.25, SEED))
    np.testing.assert_allclose(found, np.where(found > 0, x / 0.75, 0), rtol=1e-6)
    np.testing.assert_allclose(slope, np.where(found > 0, 1 / 0.75, 0), rtol=1e-6)
    assert abs((found > 0).mean() - 0.75) < 5 * (0.25 * 0.75 / x.size) ** 0.5
