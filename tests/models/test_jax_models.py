"""Language models, encoder-decoders, ELMo and the TCN on Keras's JAX backend."""

import numpy as np
import pytest

from macaron_tf.models import LanguageModel, catalog
from tests.harness import ids, normal, numpy_of
from tests.models.test_jax_backend import run_on_jax

# One process for all models: its imports take longer than they do.
ON_JAX = """
import sys
import jax, keras, numpy as np
from macaron_tf.models import LanguageModel
from macaron_tf.models import catalog
assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
data, outputs = np.load(sys.argv[1]), {}

def filled(name, model):
    model.set_weights([data[f"{name}/weight_{i:03d}"] for i in range(len(model.weights))])
    return model

for name in sys.argv[3].split():
    model = filled(name, catalog.build(name))
    start = f"{name}/input_"
    given = {key[len(start):]: data[key] for key in data.files if key.startswith(start)}
    outputs[name] = jax.jit(lambda given: model(given, training=False))(given.get("", given))

gpt2 = LanguageModel(catalog.config("gpt2_tiny", vocab_size=24, block="swish_rnn"))
gpt2.build()
gpt2 = filled("gpt2", gpt2)

@jax.jit
def behind_read(tokens):
    context, cache = gpt2.init_decode(2, 1, 8)
    cache = gpt2.prefill(tokens[:, :7], 0, context, cache)
    return gpt2.decode_step(tokens[:, 7:], 7, context, cache)[0]

outputs["gpt2"] = jax.jit(lambda tokens: gpt2({"token_ids": tokens}))(data["tokens"])
outputs["behind_read"] = behind_read(data["tokens"])
np.savez(sys.argv[2], **outputs)
"""
PAIRS = {"source": ids(2, 7), "target": ids(2, 5, seed=1)}
INPUTS = {
    "t5_tiny": PAIRS,
    "bart_tiny": PAIRS,
    "elmo_tiny": {"": ids(2, 4, 20, vocab_size=200)},
    "tcn_jsb": {"": normal(2, 9, 88)},
    "tcn_ptb_characters": {"": ids(2, 9)},
}


def test_models_give_the_same_on_jax(tmp_path):
    pytest.importorskip("jax")
    gpt2 = LanguageModel(catalog.config("gpt2_tiny", vocab_size=24, block="swish_rnn"))
    gpt2.build()
    models = {"gpt2": gpt2, **{name: catalog.build(name) for name in INPUTS}}
    tokens = ids(2, 8)
    saved = {"tokens": tokens}
    for name, model in models.items():
        saved |= {f"{name}/weight_{i:03d}": w for i, w in enumerate(model.get_weights())}
        saved |= {f"{name}/input_{key}": value for key, value in INPUTS.get(name, {}).items()}
    np.savez(tmp_path / "in.npz", **saved)
    run_on_jax(ON_JAX, tmp_path, " ".join(INPUTS))
    with np.load(tmp_path / "out.npz") as found:
        for name, given in INPUTS.items():
            expected = numpy_of(models[name](given.get("", given), training=False))
            np.testing.assert_allclose(found[name], expected, atol=1e-5, err_msg=name)
        expected = numpy_of(gpt2({"token_ids": tokens}))
        np.testing.assert_allclose(found["gpt2"], expected, atol=1e-5)
        np.testing.assert_allclose(found["behind_read"][:, 0], expected[:, -1], atol=1e-5)
