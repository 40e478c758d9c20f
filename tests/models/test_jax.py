"""The same on Keras's JAX backend: layers and models are written in `keras.ops` alone."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import swish_gate
from tests.harness import normal, numpy_of
from tests.models.on_both import CASES, built

KERNEL_ON_JAX = """
import sys
import jax, jax.numpy as jnp, keras, numpy as np
from macaron_tf.kernels import swish_gate
assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
data = np.load(sys.argv[1])
arrays = [data[f"array_{i}"] for i in range(5)]

def loss(*arrays):
    return jnp.sum(swish_gate(*arrays, 2, mask=data["mask"], implementation=sys.argv[3]) ** 2)

found = jax.jit(jax.value_and_grad(loss, argnums=range(5)))(*arrays)
np.savez(sys.argv[2], **{f"found_{i}": a for i, a in enumerate(jax.tree.leaves(found))})
"""


def run_on_jax(*command):
    """Runs a Python program with Keras on JAX."""
    pytest.importorskip("jax")
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def models():
    return {name: built(name) for name in CASES}


@pytest.fixture(scope="module")
def on_jax(models, tmp_path_factory):
    """All numbers from one process, whose imports take longer than the models."""
    folder = tmp_path_factory.mktemp("jax")
    weights = {
        f"{name}/{i}": w
        for name, model in models.items()
        for i, w in enumerate(model.get_weights())
    }
    np.savez(folder / "weights.npz", **weights)
    run_on_jax("-m", "tests.models.on_both", folder / "weights.npz", folder / "numbers.npz")
    return np.load(folder / "numbers.npz")


@pytest.mark.parametrize("name", CASES)
def test_models_give_the_same_on_jax(name, models, on_jax):
    for key, expected in CASES[name][1](models[name]).items():
        found = on_jax[f"{name}/{key}"]
        np.testing.assert_allclose(found, numpy_of(expected), atol=1e-5, err_msg=key)


@pytest.mark.parametrize("implementation", ["auto", "loop", "scan"])
def test_the_recurrence_has_the_same_gradient_on_jax(implementation, tmp_path):
    arrays = [normal(2, 9, 8), *(normal(4, seed=seed) for seed in range(4))]
    mask = np.arange(9) < np.array([[9], [6]])
    inputs = {f"array_{i}": array for i, array in enumerate(arrays)}
    np.savez(tmp_path / "in.npz", mask=mask, **inputs)
    files = (tmp_path / "in.npz", tmp_path / "out.npz")
    run_on_jax("-c", KERNEL_ON_JAX, *files, implementation)
    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = tf.reduce_sum(swish_gate(*tensors, 2, mask=mask, implementation="scan") ** 2)
    with np.load(files[1]) as found:
        for index, expected in enumerate([loss, *tape.gradient(loss, tensors)]):
            np.testing.assert_allclose(found[f"found_{index}"], expected, rtol=1e-5, atol=1e-5)
