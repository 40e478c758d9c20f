"""The same model on Keras's JAX backend: layers and models are written in `keras.ops` alone."""

import os
import subprocess
import sys

import numpy as np
import pytest

from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from tests.harness import ids

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
    context, cache = model.start(source, 1, 5)
    steps = []
    for t in range(5):
        logits, cache = model.step(target[:, t : t + 1], t, context, cache)
        steps.append(logits[:, 0])
    return jax.numpy.stack(steps, axis=1)

np.savez(sys.argv[2], whole=whole, cached=cached(data["source"], data["target"]))
"""


@pytest.mark.parametrize("block", ["macaron", "transformer"])
def test_jax_gives_tensorflows_logits(block, tmp_path):
    pytest.importorskip("jax")
    model = EncoderDecoder(EncoderDecoderConfig(24, 16, 32, 2, 2, 2, block=block))
    model.build()
    source, target = ids(3, 7), ids(3, 5, seed=1)
    source[-1, 4:] = 0
    weights = {f"weight_{i:03d}": w for i, w in enumerate(model.get_weights())}
    np.savez(tmp_path / "in.npz", source=source, target=target, **weights)
    done = subprocess.run(
        [sys.executable, "-c", ON_JAX, tmp_path / "in.npz", tmp_path / "out.npz", block],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = np.asarray(model({"source": source, "target": target}))
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["whole"], expected, atol=1e-5)
        np.testing.assert_allclose(found["cached"], expected, atol=1e-5)
