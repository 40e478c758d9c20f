"""Computes outputs of all model types on the current backend, to compare TensorFlow with JAX.

KERAS_BACKEND=jax python -m tests.toys.on_both WEIGHTS.npz NUMBERS.npz
"""

import functools
import sys

import keras
import numpy as np
from keras import ops

from macaron_tf import models
from macaron_tf.kernels import recurrence, swish_gate
from macaron_tf.layers import MultiHeadAttention, attention
from tests.harness import ids, normal

V, B, L = 24, 3, 8
TOKENS = ids(B, L)
PADDED = np.where(np.arange(L) < np.array([[8], [8], [4]]), TOKENS, 0)
PAIR = {"source": PADDED, "target": ids(B, 5, seed=1)}
ORDER = np.full((B, L), -1, "int32")
ORDER[:, [1, 6]] = [[0, 1], [1, 0], [0, 1]]
QUERIES = {"token_ids": TOKENS, "order": ORDER, "masked_positions": np.array([[1, 6]] * B, "int32")}


def config(name, **changes):
    return models.catalog.config(name, vocab_size=V, **changes)


def called(inputs):
    return lambda model: {"whole": model(inputs, training=False)}


def by_steps(model, tokens, context, cache, start=0):
    """Decodes tokens `(B, L)` one at a time with a cache; returns the logits."""
    found = []
    for t in range(start, tokens.shape[1]):
        logits, cache = model.decode_step(tokens[:, t : t + 1], t, context, cache)
        found.append(logits[:, 0])
    return ops.stack(found, axis=1)


def translated(model):
    cached = by_steps(model, PAIR["target"], *model.init_decode(PAIR["source"], 1, 5))
    return {"whole": model(PAIR, training=False), "cached": cached}


def prefilled(model, room):
    context, cache = model.init_decode(B, 1, room)
    cache = model.prefill(TOKENS[:, :7], 0, context, cache)
    return by_steps(model, TOKENS, context, cache, start=7)


def continued(model):
    return {"whole": model({"token_ids": TOKENS}), "prefilled": prefilled(model, L)}


def remembered(model):
    memory, found = model.init_memory(B), []
    for start in (0, 4):
        hidden, memory = model.with_memory({"token_ids": TOKENS[:, start : start + 4]}, memory)
        found.append(model.logits(hidden))
    return {
        "segments": ops.concatenate(found, axis=1),
        "cached": by_steps(model, TOKENS, *model.init_decode(B, 1)),
        "prefilled": prefilled(model, None),
    }


def over_the_mean():
    """Returns a functional model that averages an encoder's vectors over unpadded positions."""
    tokens = keras.Input((None,), dtype="int32")
    hidden = models.Encoder(config("bert_rab_tiny"))(tokens)
    return keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(hidden))


def translator(block):
    return models.EncoderDecoder(models.EncoderDecoderConfig(V, 16, 32, 2, 2, 2, block=block))


def encoder(name):
    return models.Encoder(config(name))


def language_model(**options):
    return models.LanguageModel(config("gpt2_tiny", **options))


# Settings of language models, features of encoders besides the ids, and inputs of other models.
LANGUAGE_MODELS = {
    "gpt2": {"block": "swish_rnn", "attention_windows": (0, 3)},
    "rotary": {"positions": "rotary", "num_kv_heads": 1, "attention_windows": (0, 3)},
    "norms": {"positions": "rotary", "qk_norm": "heads", "norm": "output"},
    "deltanet": {"block": ("gated_deltanet", "transformer"), "num_experts": 2},
    "solvers": {"scheme": "channels/2 width 1 by heun, tokens by rk4, channels/2 again"},
}
ENCODERS = {one: {} for one in ("bert_rab_tiny", "albert_tiny", "modern_bert_tiny", "amlp_tiny")}
ENCODERS |= {"swish_rnn_tiny": {"document_ids": np.cumsum(PADDED % 3 == 0, axis=1)}}
OTHERS = {
    "t5_tiny": PAIR,
    "bart_tiny": PAIR,
    "elmo_tiny": ids(2, 4, 20, vocab_size=200),
    "tcn_jsb": normal(2, 9, 88),
    "tcn_ptb_characters": ids(2, 9),
}
# Dict mapping name to (function that makes the model, function from model to outputs).
CASES = {
    f"translator_{block}": (functools.partial(translator, block), translated)
    for block in ("macaron", "transformer", "swish_rnn")
}
for name, more in ENCODERS.items():
    CASES[name] = functools.partial(encoder, name), called({"token_ids": PADDED, **more})
for name, inputs in OTHERS.items():
    CASES[name] = functools.partial(models.catalog.build, name), called(inputs)
for name, options in LANGUAGE_MODELS.items():
    CASES[name] = functools.partial(language_model, **options), continued
CASES |= {
    "mean": (over_the_mean, lambda model: {"whole": model(PADDED)}),
    "transformer_xl": (
        lambda: models.SegmentLanguageModel(config("transformer_xl_tiny", block="swish_rnn"), 5),
        remembered,
    ),
    "xlnet": (
        lambda: models.TwoStreamModel(config("xlnet_tiny"), 5),
        lambda model: {"guessed": model(QUERIES)["masked_language"]},
    ),
}


# Input and weight vectors of a gated recurrence, and its mask; row 0 has two documents.
RECURRENCE = [normal(2, 9, 8), *(normal(4, seed=seed) for seed in range(4))]
MASK = np.where(np.arange(9) < np.array([[9], [6]]), 1, 0)
MASK[0, 4:6] = 2


def recurrence_loss(implementation, *arrays):
    gated = swish_gate(*arrays, 2, mask=MASK, implementation=implementation)
    return ops.sum(gated**2)


# Attention layers in training mode with dropout: (constructor arguments, call arguments).
ATTENTION = {
    "causal": ({"causal": True, "window": 9, "num_kv_heads": 1}, {"mask": MASK}),
    "local": ({"window": 5}, {"mask": MASK}),
    "across": ({"cross": True}, {"memory": normal(2, 9, 8, seed=2), "memory_mask": MASK}),
}


def attention_and_gradient(name, fused: bool):
    """Returns the outputs of an attention layer and their gradient with respect to its input.

    With `fused`, one kernel computes attention. Otherwise, attention matrices are materialized.
    """
    import jax

    (arguments, options), x = ATTENTION[name], normal(2, 9, 8)
    keras.utils.set_random_seed(3)
    layer = MultiHeadAttention(2, head_dim=16, dropout=0.3, **arguments)
    layer.build(x.shape, options["memory"].shape if "memory" in options else None)
    places = [(variable, variable.value) for variable in layer.non_trainable_variables]

    def loss(x):
        with keras.StatelessScope(places):
            y = layer(x, training=True, **options)
        return ops.sum(y**2), y

    attention.runs_fused = lambda *_: fused
    (_, y), slope = jax.jit(jax.value_and_grad(loss, has_aux=True))(x)
    return np.stack([y, slope])


def fitted():
    """Returns the logits of a classifier after a step of `fit` on ids alone, and stateless ones."""
    model = models.EncoderClassifier(
        config("bert_rab_tiny", dropout=0.0, attention_dropout=0.0), 3, head_dropout=0.0
    )
    model.build()
    model.set_weights([0.1 * normal(*w.shape, seed=i) for i, w in enumerate(model.get_weights())])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(PADDED, np.arange(B), verbose=0, shuffle=False)
    weights = model.trainable_variables, model.non_trainable_variables
    return np.stack([model(PADDED), model.stateless_call(*weights, PADDED)[0]])


def model_of(name):
    model = CASES[name][0]()
    if not model.built:
        model.build()
    return model


def main(weights, numbers):
    import jax

    assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
    data, found = np.load(weights), {}
    for name in dict.fromkeys(key.partition("/")[0] for key in data):
        numbers_of, model = CASES[name][1], model_of(name)
        model.set_weights([data[f"{name}/{i}"] for i in range(len(model.weights))])
        for key, value in jax.jit(functools.partial(numbers_of, model))().items():
            found[f"{name}/{key}"] = value
    for implementation in ("auto", "loop", "scan", "turns"):
        loss = functools.partial(recurrence_loss, implementation)
        if implementation == "turns":  # on a GPU; 5 steps are one full turn of 4 and a remainder
            recurrence._unroll = lambda: 4
            loss = functools.partial(recurrence_loss, "loop")
        value, slopes = jax.jit(jax.value_and_grad(loss, argnums=range(5)))(*RECURRENCE)
        found |= {f"{implementation}/{i}": number for i, number in enumerate([value, *slopes])}
    for name in ATTENTION:
        for fused in (False, True):
            found[f"{name}/{fused}"] = attention_and_gradient(name, fused)
    np.savez(numbers, fitted=fitted(), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
