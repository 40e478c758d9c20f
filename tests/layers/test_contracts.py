"""Tests that `tests.harness.check_layer` passes for every layer, and of refused arguments."""

import json

import keras
import numpy as np
import pytest

from macaron_tf import layers
from macaron_tf.layers import activation
from macaron_tf.layers.blocks import BLOCKS
from macaron_tf.layers.character_cnn import Highway
from macaron_tf.layers.dense import Dense
from macaron_tf.layers.heads import Pooling
from macaron_tf.layers.norms import Dropout, LayerNormalization
from macaron_tf.layers.recording import Recording
from macaron_tf.layers.relative_attention import RelativeAttention
from macaron_tf.models import TemporalConvolution
from tests.harness import (
    check_checkpoint,
    check_layer,
    ids,
    normal,
    numpy_of,
    randomized,
    rejects,
)

X, X6, X7, TABLE = normal(2, 3, 8), normal(2, 6, 8), normal(2, 7, 6), normal(11, 8, seed=1)
REAL = np.array([[1, 1, 0], [1, 1, 1]], bool)
PADDED = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], bool)
AT = np.array([[0, 1, 2], [4, 0, 0]])
TINY = {"tiny_attention_dim": 4}
GATES = [{}, TINY, {"toeplitz": True}, {"causal": True, **TINY}]
# A layer, its inputs, and optionally arguments of the call and the copy's tolerance.
CONTRACTS = [
    (Dense(6, activation="gelu"), X),
    (Dropout(0.2, seed=5), X),
    (LayerNormalization(epsilon=1e-3), X),
    (layers.FeedForward(16, activation="gelu", activation_dropout=0.1), X),
    (layers.FeedForward(16, gated=True, output_initializer="zeros"), X),
    (layers.TiedEmbedding(20, 8, scale=False), ids(2, 3)),
    (layers.AdaptiveEmbedding(20, 8, (4, 12), 2), ids(2, 3)),
    (layers.SinusoidalPositions(), X),
    (layers.LearnedPositions(5), X),
    (layers.Residual(layers.FeedForward(16), step_size=0.5, dropout=0.1, norm="post"), X),
    (layers.MultiHeadAttention(2, dropout=0.1), X, {"attention_mask": REAL}),
    (layers.MultiHeadAttention(2, causal=True, use_bias=False, window=2), X),
    (layers.MultiHeadAttention(2, cross=True), X, normal(2, 4, 8)),
    (
        RelativeAttention(2, use_bias=False, causal=True, clamp_length=2, dropout=0.1),
        X6,
        {"mask": np.ones((2, 6), bool), "atol": 1e-6},
    ),
    (
        layers.RotaryAttention(4, 6, 50.0, use_bias=False, causal=True, num_kv_heads=2),
        normal(2, 5, 12),
    ),
    *[
        (layers.block_class(name)(num_heads=2, feed_forward_dim=16, norm=norm, dropout=0.1), X)
        for name in sorted(BLOCKS)
        for norm in ("pre", "post")
    ],
    *[(layers.SwishRNN(10, step_size=step, gate="gelu_tanh"), X7) for step in (1, 3)],
    (layers.GatedDeltaNet(2), X7[..., :4]),
    (layers.GatedDeltaNet(2, 4, causal=True), X),
    (layers.MixtureOfExperts(6, 3, gated=True, activation_dropout=0.1), X),
    *[(layers.GatedMLP(12, 6, **g, activation_dropout=0.1), X6, {"mask": PADDED}) for g in GATES],
    *[
        (
            layers.SpatialGating(7, toeplitz=toeplitz, affine=False),
            normal(2, 6, 12),
            {"addition": normal(2, 6, 6, seed=1), "mask": PADDED},
        )
        for toeplitz in (False, True)
    ],
    (layers.CausalConvolution(4, 3, 2), X7),
    (layers.ConvolutionBlock(4, 3, 2, dropout=0.5), X7),
    (TemporalConvolution([4, 5], 3, dropout=0.5), X7),
    (TemporalConvolution([4, 5], 3, last_only=True), X7),
    (layers.CharacterCNN(((1, 3), (2, 4)), 5, vocab_size=20), ids(2, 4, 6)),
    (layers.ProjectedLSTM(6, 3, clip=None, backwards=True), normal(2, 5, 4)),
    (Highway(), normal(2, 5, 4)),
    (layers.LayerMixture(), normal(2, 5, 3, 4)),
    (layers.LayerMixture(normalize=True), normal(2, 5, 3, 4)),
    (layers.Pooler(), X),
    (layers.ClassificationHead(3, dropout=0.5), normal(2, 8)),
    (layers.MaskedLanguageHead(11), X, TABLE),
    (layers.MaskedLanguageHead(11), X, normal(11, 6)),
    (layers.MaskedLanguageHead(11, transform=False), X, TABLE),
    (layers.SpanBoundaryHead(11, max_span=4, position_dim=3), X, X[::-1], AT, TABLE),
    (layers.SpanBoundaryHead(11), X, X[::-1], AT, normal(11, 6)),
    (layers.ReplacedTokenHead(), X),
    (layers.AdaptiveSoftmax(12, (4, 8), 2), X, {"atol": 1e-6}),
]


@pytest.mark.parametrize("case", CONTRACTS, ids=lambda case: type(case[0]).__name__)
def test_a_layer_keeps_its_contract(case, tmp_path):
    layer, *inputs = case
    options = inputs.pop() if isinstance(inputs[-1], dict) else {}
    check_layer(layer, *inputs, **options)
    if isinstance(layer, Recording):
        options = {name: value for name, value in options.items() if name != "atol"}
        check_checkpoint(layer, lambda layer: layer(*inputs, **options), tmp_path)


def test_layers_of_any_ids_and_of_one_rank():
    """A layer for vectors of one rank and width refuses others, and unsigned ids are ids."""
    layers_by_class = {type(layer): (layer, x) for layer, x, *_ in CONTRACTS}
    assert len([layer for layer, _ in layers_by_class.values() if layer.input_spec]) > 15
    for layer, x in layers_by_class.values():
        if isinstance(layer, Recording) and layer.input_rank:
            fresh = type(layer).from_config(layer.get_config())
            words = f"layer '{layer.name}' is incompatible.*expected ndim=3, found ndim="
            rejects(words + "2", fresh, x[0])
            rejects(words + "4", layer, x[None])
            if layer.built and not isinstance(layer, Pooling):
                rejects(f"axis -1 of input shape to have value {x.shape[-1]}", layer, x[..., :-1])


class Nested(Recording, keras.layers.Layer):
    """A layer with parts in nested lists, dicts and tuples, some of which `build` makes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.pairs = [(Dense(3), {"drop": Dropout(0.5)}), (Dense(4), {})]

    def build(self, x_shape):
        for (dense, _), width in zip(self.pairs, (x_shape[-1], 3), strict=True):
            dense.build((None, width))
        self.by_name = {"norms": [self.part(LayerNormalization, (None, 4)) for _ in range(2)]}
        self.scales = [self.add_weight(shape=(4,), name=f"scale_{n}") for n in range(2)]

    def call(self, x, training=None):
        for dense, drops in self.pairs:
            x = dense(x)
            x = drops["drop"](x, training=training) if drops else x
        for norm, scale in zip(self.by_name["norms"], self.scales, strict=True):
            x = norm(x) * scale
        return x


def test_a_checkpoint_holds_parts_in_nested_collections(tmp_path):
    layer = randomized(Nested(), (None, 5))
    layer(normal(2, 5), training=True)  # the state of the dropout's seed moves
    check_checkpoint(layer, lambda layer: layer(normal(2, 5)), tmp_path)


@pytest.mark.parametrize(
    "layer",
    [
        layers.FeedForward(16, activation_dropout=0.5),
        layers.MultiHeadAttention(2, dropout=0.5),
        RelativeAttention(2, dropout=0.5),
        layers.GatedMLP(12, 6, activation_dropout=0.5),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_dropout_acts_in_training_only(layer):
    still = numpy_of(layer(X6))
    np.testing.assert_array_equal(numpy_of(layer(X6, training=False)), still)
    assert np.abs(numpy_of(layer(X6, training=True)) - still).max() > 1e-3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: activation("geluu"), "geluu"),
        (lambda: RelativeAttention(2, cross=True), "has no cross, window"),
        (lambda: layers.MultiHeadAttention(3)(X), "hidden_dim=8 is not a multiple of num_heads=3"),
        (lambda: layers.MultiHeadAttention(2)(X, attention_mask=REAL[0]), "have rank 2, 3 or 4"),
        (lambda: layers.LearnedPositions(5)(X6), "sequence of 6 exceeds max_length=5"),
        (lambda: layers.GatedMLP(12, 6)(normal(1, 7, 8)), "of 7 exceeds max_length=6"),
        (lambda: layers.AdaptiveSoftmax(12, (4, 4)), "must ascend"),
        (
            lambda: layers.AdaptiveSoftmax(12, (4, 8), 4).build((None, 8)),
            "divisor=4 leaves no width in cluster 2",
        ),
    ],
)
def test_bad_arguments_are_named(make, words):
    rejects(words, make)


@keras.saving.register_keras_serializable(package="tests")
class Base(Recording, keras.layers.Layer):
    def __init__(self, width, initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.width = width


@keras.saving.register_keras_serializable(package="tests")
class Derived(Base):
    def __init__(self, width, inner=None, activation="relu", **kwargs):
        super().__init__(2 * width, **kwargs)
        self.inner = inner


def test_the_arguments_come_back():
    """Arguments of a class and its base, whose names are the same, and objects are recorded."""
    objects = {
        "inner": Base(1, name="within"),
        "activation": keras.activations.gelu,
        "initializer": keras.initializers.RandomNormal(stddev=0.5),
    }
    layer = Derived(3, **objects, name="outside")
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    copy = keras.saving.deserialize_keras_object(saved)
    assert copy.get_config() == layer.get_config()
    assert (copy.width, copy.name, copy.inner.width, copy.inner.name) == (6, "outside", 1, "within")
    assert copy.initializer.stddev == 0.5 and copy.activation is keras.activations.gelu
