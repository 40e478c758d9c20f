"""The same model on Keras's JAX backend: layers and models are written in `keras.ops` alone."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.kernels import swish_gate
from macaron_tf.models import (
    Encoder,
    EncoderDecoder,
    EncoderDecoderConfig,
    catalog,
)
from tests.harness import ids, normal

ON_JAX = """
import sys
import jax, keras, numpy as np
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
data = np.load(sys.argv[1])
model = EncoderDecoder(EncoderDecoderConfig(24, 16, 32, 2, 2, 2, block=sys.argv[3]))
model.build()
model.set_weights([data[f"weight_{i:03d}"] for i in range(len(model.weights))])
whole = model({"source": data["source"], "target": data["target"]}, training=False)

@jax.jit
def cached(source, target):
    context, cache = model.init_decode(source, 1, 5)
    steps = []
    for t in range(5):
        logits, cache = model.decode_step(target[:, t : t + 1], t, context, cache)
        steps.append(logits[:, 0])
    return jax.numpy.stack(steps, axis=1)

np.savez(sys.argv[2], whole=whole, cached=cached(data["source"], data["target"]))
"""


ENCODER_ON_JAX = """
import sys
import jax, keras, numpy as np
from macaron_tf.models import Encoder
from macaron_tf.models import catalog
assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
data = np.load(sys.argv[1])
model = Encoder(catalog.config(sys.argv[3], vocab_size=24))
model.build()
model.set_weights([data[f"weight_{i:03d}"] for i in range(len(model.weights))])
encode = jax.jit(lambda tokens: model({"token_ids": tokens}, training=False))
np.savez(sys.argv[2], hidden=encode(data["tokens"]))
"""


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


@pytest.mark.parametrize("implementation", ["auto", "loop", "scan"])
def test_the_recurrence_has_the_same_gradient_on_jax(implementation, tmp_path):
    pytest.importorskip("jax")
    arrays = [normal(2, 9, 8), *(normal(4, seed=seed) for seed in range(4))]
    mask = np.arange(9) < np.array([[9], [6]])
    inputs = {f"array_{i}": array for i, array in enumerate(arrays)}
    np.savez(tmp_path / "in.npz", mask=mask, **inputs)
    run_on_jax(KERNEL_ON_JAX, tmp_path, implementation)
    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = tf.reduce_sum(swish_gate(*tensors, 2, mask=mask, implementation="scan") ** 2)
    with np.load(tmp_path / "out.npz") as found:
        for index, expected in enumerate([loss, *tape.gradient(loss, tensors)]):
            np.testing.assert_allclose(found[f"found_{index}"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", ["macaron", "transformer", "swish_rnn"])
def test_jax_gives_tensorflows_logits(block, tmp_path):
    pytest.importorskip("jax")
    model = EncoderDecoder(EncoderDecoderConfig(24, 16, 32, 2, 2, 2, block=block))
    model.build()
    source, target = ids(3, 7), ids(3, 5, seed=1)
    source[-1, 4:] = 0
    weights = {f"weight_{i:03d}": w for i, w in enumerate(model.get_weights())}
    np.savez(tmp_path / "in.npz", source=source, target=target, **weights)
    run_on_jax(ON_JAX, tmp_path, block)
    expected = np.asarray(model({"source": source, "target": target}))
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["whole"], expected, atol=1e-5)
        np.testing.assert_allclose(found["cached"], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["bert_rab_tiny", "swish_rnn_tiny", "albert_tiny", "amlp_tiny"])
def test_encoders_give_the_same_on_jax(name, tmp_path):
    pytest.importorskip("jax")
    model = Encoder(catalog.config(name, vocab_size=24))
    model.build()
    tokens = ids(3, 7)
    tokens[-1, 4:] = 0
    weights = {f"weight_{i:03d}": w for i, w in enumerate(model.get_weights())}
    np.savez(tmp_path / "in.npz", tokens=tokens, **weights)
    run_on_jax(ENCODER_ON_JAX, tmp_path, name)
    expected = np.asarray(model({"token_ids": tokens}))
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["hidden"], expected, atol=1e-5)


def run_on_jax(program, folder, argument):
    """Runs a program that reads in.npz and writes out.npz, with Keras on JAX."""
    done = subprocess.run(
        [sys.executable, "-c", program, folder / "in.npz", folder / "out.npz", argument],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
