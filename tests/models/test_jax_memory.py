"""Segments with memory, two streams and cached steps on Keras's JAX backend."""

import numpy as np
import pytest

from macaron_tf.models import catalog
from macaron_tf.models.memory import SegmentLanguageModel
from macaron_tf.models.two_stream import TwoStreamModel
from tests.harness import ids, numpy_of
from tests.models.test_jax_backend import run_on_jax

ON_JAX = """
import sys
import jax, keras, numpy as np
from macaron_tf.models import catalog
from macaron_tf.models.memory import SegmentLanguageModel
from macaron_tf.models.two_stream import TwoStreamModel
assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
data = np.load(sys.argv[1])
config = catalog.config("transformer_xl_tiny", vocab_size=24, block="swish_rnn")
xl = SegmentLanguageModel(config, 5)
xlnet = TwoStreamModel(catalog.config("xlnet_tiny", vocab_size=24), 5)
for name, model in (("xl", xl), ("xlnet", xlnet)):
    model.build()
    model.set_weights([data[f"{name}_{i:03d}"] for i in range(len(model.weights))])

@jax.jit
def segments(tokens):
    past, found = xl.init_memory(3), []
    for start in (0, 4):
        hidden, past = xl.with_memory({"token_ids": tokens[:, start : start + 4]}, past)
        found.append(xl.logits(hidden))
    return jax.numpy.concatenate(found, axis=1)

@jax.jit
def cached(tokens):
    context, cache = xl.init_decode(3, 1)
    found = []
    for t in range(8):
        logits, cache = xl.decode_step(tokens[:, t : t + 1], t, context, cache)
        found.append(logits[:, 0])
    return jax.numpy.stack(found, axis=1)

@jax.jit
def behind_read(tokens):
    context, cache = xl.init_decode(3, 1)
    cache = xl.prefill(tokens[:, :7], 0, context, cache)
    return xl.decode_step(tokens[:, 7:], 7, context, cache)[0]

inputs = {"token_ids": data["tokens"], "order": data["order"], "masked_positions": data["places"]}
xl.keep_memory(3)
np.savez(
    sys.argv[2],
    segments=segments(data["tokens"]),
    cached=cached(data["tokens"]),
    behind_read=behind_read(data["tokens"]),
    guessed=jax.jit(lambda given: xlnet(given)["masked_language"])(inputs),
)
"""


def test_memories_and_streams_give_the_same_on_jax(tmp_path):
    pytest.importorskip("jax")
    config = catalog.config("transformer_xl_tiny", vocab_size=24, block="swish_rnn")
    xl = SegmentLanguageModel(config, 5)
    xlnet = TwoStreamModel(catalog.config("xlnet_tiny", vocab_size=24), 5)
    weights = {}
    for name, model in (("xl", xl), ("xlnet", xlnet)):
        model.build()
        weights |= {f"{name}_{i:03d}": w for i, w in enumerate(model.get_weights())}
    tokens, places = ids(3, 8), np.array([[1, 6]] * 3, "int32")
    order = np.full((3, 8), -1, "int32")
    order[:, 1], order[:, 6] = [0, 1, 0], [1, 0, 1]
    np.savez(tmp_path / "in.npz", tokens=tokens, order=order, places=places, **weights)
    run_on_jax(ON_JAX, tmp_path, "")
    past, expected = xl.init_memory(3), []
    for start in (0, 4):
        hidden, past = xl.with_memory({"token_ids": tokens[:, start : start + 4]}, past)
        expected.append(numpy_of(xl.logits(hidden)))
    past, steps = xl.init_memory(3), []
    for t in range(8):
        hidden, past = xl.with_memory({"token_ids": tokens[:, t : t + 1]}, past)
        steps.append(numpy_of(xl.logits(hidden)))
    inputs = {"token_ids": tokens, "order": order, "masked_positions": places}
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["segments"], np.concatenate(expected, 1), atol=1e-5)
        np.testing.assert_allclose(found["cached"], np.concatenate(steps, 1), atol=1e-5)
        np.testing.assert_allclose(found["behind_read"], steps[-1], atol=1e-5)
        guessed = numpy_of(xlnet(inputs)["masked_language"])
        np.testing.assert_allclose(found["guessed"], guessed, atol=1e-5)
