"""Tests that `tests.harness.check_model` passes for every model."""

import copy
import pickle

import keras
import numpy as np
import pytest

from macaron_tf import layers, models
from macaron_tf.model import Model, load
from tests.harness import check_checkpoint, check_model, ids
from tests.toys.marks import slow, thorough
from tests.toys.objectives import tiny

TOKENS, PAIRS = {"token_ids": ids(2, 7)}, {"token_ids": ids(3, 2, 7)}
GPT = {"causal": True, "num_segments": 0}
XL = {**GPT, "positions": "transformer_xl", "clamp_length": 5, "shared_position_biases": True}
T5 = {"hidden_dim": 16, "num_heads": 2, "head_dim": 6, "num_encoder_layers": 1, "dropout": 0.0}
TIED = {"vocab_size": 20, "embedding_dim": 8, "tied": True}
OWN_SOURCE = {"vocab_size": 24, "num_source_layers": 1, "source_vocab_size": 40}
BART = models.catalog.config("bart_tiny", **OWN_SOURCE, logits_bias=True)
# Models with options that no system has, not yet built, and their inputs.
CONTRACTS = [
    (models.CausalMultipleChoice(tiny(**GPT)), PAIRS),
    (models.EncoderClassifier(tiny(), 3), TOKENS),
    (models.LanguageModel(tiny(**GPT, output_bias=True, embedding_dim=8)), TOKENS),
    (
        models.PretrainingEncoder(tiny(), head_options={"transform": False, "activation": "relu"}),
        TOKENS,
    ),
    *(
        (models.SegmentLanguageModel(tiny(**XL, adaptive_cutoffs=(16, 40), **options), 6), TOKENS)
        for options in ({}, {"adaptive_divisor": 2}, {"tied": False})
    ),
    (models.SiameseEncoder(tiny(), "max", True, 3, "|u-v|,u*v"), PAIRS),
    (models.TemporalModel(models.TemporalConfig(20, (6, 8), **TIED)), ids(2, 9)),
    (
        models.EncoderDecoder(
            models.catalog.config("t5_1_1_small", **T5, vocab_size=24, num_decoder_layers=1)
        ),
        {"source": ids(3, 7), "target": ids(3, 6)},
    ),
    *slow((models.EncoderDecoder(BART), {"source": ids(3, 7), "target": ids(3, 6)})),
]


@pytest.mark.parametrize(
    ("model", "inputs"), CONTRACTS, ids=lambda case: case.name if hasattr(case, "name") else ""
)
def test_a_model_keeps_its_contract(model, inputs, tmp_path):
    check_model(model, inputs, tmp_path)
    check_checkpoint(model, lambda model: model(inputs), tmp_path)


def behind(layer, inputs):
    """Returns a functional model that applies a linear layer to the mean of a layer's vectors."""
    x = keras.layers.GlobalAveragePooling1D()(layer(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def frozen(model, *parts):
    """Builds a model, and sets `trainable` of its parts in the given order; returns the model.

    Each part is a pair of a function from the model to a layer, and a bool.
    """
    if not model.built:
        model.build()
    for part, trainable in parts:
        part(model).trainable = trainable
    return model


TEXT, VECTORS = keras.Input((None,), dtype="int32"), keras.Input((None, 8))
BLOCK = {"num_heads": 2, "feed_forward_dim": 16}
# A model with frozen parts, and its number of trained weights.
FROZEN = {
    "encoder": lambda: (behind(models.Encoder(tiny()), TEXT), [(lambda m: m.layers[1], False)], 2),
    "given": lambda: (behind(models.Encoder(tiny(), trainable=False), TEXT), [], 2),
    "block": lambda: (
        behind(layers.MacaronBlock(**BLOCK), VECTORS),
        [(lambda m: m.layers[1], False), (lambda m: m.layers[1].attention_1.sublayer, True)],
        2 + 4,
    ),
    "product": lambda: (
        behind(layers.MacaronBlock(**BLOCK), VECTORS),
        [(lambda m: m.layers[1].attention_1.sublayer.query_key_value, False)],
        2 + 18 - 2,
    ),
    "stack": lambda: (
        models.EncoderTokenClassifier(tiny(num_layers=2, sharing="all"), 3),
        [(lambda m: m.encoder.stack.blocks[1], False)],
        2 + 5,
    ),
}
COPIES = {
    "keras": lambda m, file: m.save(file) or keras.saving.load_model(file),
    "clone": lambda m, file: keras.models.clone_model(m),
    "deepcopy": lambda m, file: copy.deepcopy(m),
    "pickle": lambda m, file: pickle.loads(pickle.dumps(m)),
    "config": lambda m, file: type(m).from_config(m.get_config()),
}


@pytest.mark.parametrize("case", thorough(*FROZEN, but=("encoder", "stack")))
def test_frozen_layers_stay_frozen_in_every_copy(case, tmp_path):
    model, parts, trained = FROZEN[case]()
    frozen(model, *parts)
    flags = [weight.trainable for weight in model.weights]
    assert len(model.trainable_weights) == sum(flags) == trained
    for way in COPIES if case == "encoder" else ("keras", "clone"):
        found = frozen(COPIES[way](model, tmp_path / "model.keras"))
        assert [weight.trainable for weight in found.weights] == flags, way


def test_layers_that_are_frozen_before_they_are_built():
    model = models.EncoderTokenClassifier(tiny(num_layers=2), 3)
    model.encoder.trainable = False
    model.encoder.stack.blocks[1].trainable = True
    copied = type(model).from_config(model.get_config())
    copied.encoder.stack.blocks[0].trainable = True  # the last assignment counts
    for one, blocks in ((model, 1), (copied, 2)):
        one.build()
        assert len(one.trainable_weights) == 2 + 12 * blocks


def test_a_folder_keeps_frozen_layers_and_a_layer_s_own_dtype(tmp_path):
    model = models.EncoderTokenClassifier(tiny(), 3, dtype="mixed_bfloat16")
    model.head.dtype_policy = "float32"
    frozen(model, (lambda m: m.encoder, False))
    Model(model).save_pretrained(tmp_path / "folder")
    found = load(tmp_path / "folder").network
    assert len(found.trainable_weights) == 2
    kinds = [one.compute_dtype for one in (found, found.encoder.stack, found.head.dense)]
    assert kinds == ["bfloat16", "bfloat16", "float32"]
    np.testing.assert_array_equal(found(TOKENS), model(TOKENS))
