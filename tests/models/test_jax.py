"""Layers and models give the same results on Keras's JAX backend, because they use `keras.ops`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import numpy_of
from tests.toys.marks import slow
from tests.toys.on_both import ATTENTION, CASES, RECURRENCE, fitted, model_of, recurrence_loss
from tests.toys.processes import python

pytestmark = pytest.mark.thorough


# Each kind of model and of cache once; `make test-slow` runs the others.
QUICK = ("translator_swish_rnn", "modern_bert_tiny", "rotary", "tcn_jsb", "transformer_xl")


@pytest.fixture(scope="module")
def models(request):
    """Returns the models of the tests that run."""
    tests = {item.name for item in request.session.items if item.path == request.path}
    asked = [name for name in CASES if f"test_models_give_the_same_on_jax[{name}]" in tests]
    return {name: model_of(name) for name in asked}


@pytest.fixture(scope="module")
def on_jax(models, tmp_path_factory):
    """Returns the outputs of `models` on JAX.

    All models share one process, because importing JAX takes longer than running them.
    """
    folder = tmp_path_factory.mktemp("jax")
    weights = {
        f"{name}/{i}": w
        for name, model in models.items()
        for i, w in enumerate(model.get_weights())
    }
    np.savez(folder / "weights.npz", **weights)
    pytest.importorskip("jax")
    files = [folder / "weights.npz", folder / "numbers.npz"]
    python("-m", "tests.toys.on_both", *files, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    return np.load(files[1])


@pytest.mark.parametrize("name", slow(*CASES, but=QUICK))
def test_models_give_the_same_on_jax(name, models, on_jax):
    for key, expected in CASES[name][1](models[name]).items():
        found = on_jax[f"{name}/{key}"]
        np.testing.assert_allclose(found, numpy_of(expected), atol=1e-5, err_msg=key)


@pytest.mark.parametrize("implementation", ["auto", "loop", "scan", "turns"])
def test_the_recurrence_has_the_same_gradient_on_jax(implementation, on_jax):
    tensors = [tf.constant(array) for array in RECURRENCE]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = recurrence_loss("scan", *tensors)
    for index, expected in enumerate([loss, *tape.gradient(loss, tensors)]):
        found = on_jax[f"{implementation}/{index}"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_fit_takes_ids_alone_on_jax(on_jax):
    """On JAX, `fit` runs a model's `call` without its `__call__`."""
    np.testing.assert_allclose(on_jax["fitted"], fitted(), atol=1e-5)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_in_one_kernel_is_attention(name, on_jax):
    """Fused attention equals unfused attention with the same dropout mask."""
    np.testing.assert_allclose(on_jax[f"{name}/True"], on_jax[f"{name}/False"], atol=1e-5)
