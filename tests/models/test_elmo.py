"""ELMo agrees with its equations in NumPy, computed position by position in float64."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit as sigmoid

from macaron_tf import models
from macaron_tf.models import WordEncoder
from tests.harness import built, numpy_of, softmax, weights_of
from tests.toys.marks import slow
from tests.toys.systems import ELMO, READER, words
from tests.toys.systems import drawn_elmo as drawn


def word_vector(w: dict, prefix: str, characters, filters, num_highways) -> np.ndarray:
    """Computes the vector of a word with max-pooled character filters and highway layers.

    The equations are those of Kim et al. 2016.
    """
    x = w[f"{prefix}table"][characters]  # `(C, E)`
    found = []
    for width, _ in filters:
        windows = np.lib.stride_tricks.sliding_window_view(x, width, axis=0)  # `(places, E, width)`
        values = np.einsum("pew,wef->pf", windows, w[f"{prefix}width_{width}/kernel"])
        found.append(values.max(axis=0) + w[f"{prefix}width_{width}/bias"])
    x = np.maximum(np.concatenate(found), 0)
    for number in range(num_highways):
        name = f"{prefix}highway_{number}"
        transform, carry = np.split(x @ w[f"{name}/inner/kernel"] + w[f"{name}/inner/bias"], 2)
        carry = sigmoid(carry + w[f"{name}/carry_bias"])
        x = carry * x + (1 - carry) * np.maximum(transform, 0)
    return x @ w[f"{prefix}projection/kernel"] + w[f"{prefix}projection/bias"]


def lstm(w: dict, prefix: str, xs: np.ndarray, clip) -> np.ndarray:
    """Computes an LSTM with projection: `(L, D) -> (L, P)` (Sak et al. 2014).

    There are no peepholes, and states are clipped.
    """
    cell = {name.split("/")[-1]: w[name] for name in w if name.startswith(f"{prefix}loop")}
    recurrent, projection = cell["recurrent_kernel"], cell["projection"]
    h, c, hs = np.zeros(projection.shape[1]), np.zeros(projection.shape[0]), []
    limit = np.inf if clip is None else clip
    for x in xs:
        z = x @ w[f"{prefix}inner/kernel"] + w[f"{prefix}inner/bias"] + h @ recurrent
        i, f, g, o = np.split(z, 4)
        c = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g), -limit, limit)
        h = np.clip((sigmoid(o) * np.tanh(c)) @ projection, -limit, limit)
        hs.append(h)
    return np.array(hs)


def layers_of(model, characters: np.ndarray) -> np.ndarray:
    """Returns all layers `(L, 1 + layers, 2 P)` of a sentence `(L, C)` without padding."""
    w, config = weights_of(model), model.config
    shapes = config.filters, config.num_highways
    xs = np.array([word_vector(w, "words/", c, *shapes) for c in characters])
    ways = {"forwards": [xs], "backwards": [xs]}
    for name, found in ways.items():
        for number in range(config.num_layers):
            given = found[-1] if name == "forwards" else found[-1][::-1]
            out = lstm(w, f"{name}/lstm_{number}/", given, config.clip)
            out = out if name == "forwards" else out[::-1]
            found.append(out if number == 0 else out + found[-1])
    pairs = zip(ways["forwards"], ways["backwards"], strict=True)
    return np.stack([np.concatenate(pair, axis=-1) for pair in pairs], axis=1)


@pytest.mark.parametrize("clip", [0.4, None])
def test_its_layers_are_the_equations(clip):
    model, characters = drawn(clip=clip), words(2, 7)
    found = numpy_of(model(characters))
    assert found.shape == (2, 7, 3, 10)
    for row in range(2):
        expected = layers_of(model, characters[row])
        np.testing.assert_allclose(found[row], expected, rtol=1e-5, atol=1e-5)
    last = np.concatenate(model.hidden_states(characters), axis=-1)  # which score words
    np.testing.assert_allclose(last, found[:, :, 2], atol=1e-6)
    if clip:  # of layer 1; layer 2 adds its input
        assert np.abs(found[:, :, 1]).max() == np.float32(clip)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["input", "output", "both"])
def test_an_encoder_has_the_vectors_where_it_is_said(place):
    """ELMo's vectors enter at the LSTM's input, at its output, or at input and output.

    The outputs of the encoder agree with a NumPy implementation.
    """
    config = dataclasses.replace(READER, elmo_place=place)
    model, characters = built(WordEncoder, config, noise=0.5), words(2, 7)
    found, w = numpy_of(model(characters)), weights_of(model)
    layers = numpy_of(model.elmo(characters)).astype("float64")  # `(B, L, J, 2 P)`

    def mixed(name):
        return w[f"{name}/scale"] * np.einsum(
            "bljd,j->bld", layers, softmax(w[f"{name}/scores"][None])[0]
        )

    x, mixtures = numpy_of(model.words(characters)), ("mixture", "output_mixture")
    if place != "output":
        x = np.concatenate([x, mixed(mixtures[0])], axis=-1)
    mask = characters.any(-1)
    h = numpy_of(model.lstm(x.astype("float32"), mask=mask))
    if place != "input":
        h = np.concatenate([h, mixed(mixtures[1])], axis=-1)
    np.testing.assert_allclose(found, h, atol=1e-5)
    used = {name for name in mixtures if any(path.startswith(f"{name}/") for path in w)}
    assert used == {mixtures[0]} if place == "input" else mixtures[1] in used
    assert len(used) == (2 if place == "both" else 1)


@pytest.mark.parametrize("elmo", [ELMO, None])
def test_it_reads_words_whatever_the_padding(elmo):
    model, characters = built(WordEncoder, dataclasses.replace(READER, elmo=elmo)), words(2, 7)
    found = numpy_of(model(characters))
    assert found.shape == (2, 7, model.config.hidden_dim)
    padded = np.pad(characters, ((0, 0), (0, 3), (0, 0)))
    np.testing.assert_allclose(numpy_of(model(padded))[:, :7], found, atol=1e-6)
    # All weights but the language model's are trained.
    frozen = {id(w) for w in model.elmo.weights} if elmo else set()
    assert {id(w) for w in model.weights} - {id(w) for w in model.trainable_weights} == frozen


def test_rows_of_padding_are_not_empty_for_the_lstm(monkeypatch):
    """In a row of padding, one position stays unmasked, because cuDNN's LSTM refuses empty rows."""
    model, characters, masks = built(WordEncoder, READER), words(3, 7), []
    characters[1, 4:] = characters[2] = 0
    alone, lstm = numpy_of(model(characters[:2])), model.lstm
    monkeypatch.setattr(model, "lstm", lambda x, mask: masks.append(mask) or lstm(x, mask=mask))
    np.testing.assert_allclose(numpy_of(model(characters))[:2], alone, atol=1e-6)
    assert numpy_of(masks[0]).sum(axis=1).tolist() == [7, 4, 1] and masks[0][2, 0]


@pytest.mark.parametrize("place", ["input", "none", *slow("both")])
def test_a_classifier_takes_the_largest_of_its_words_vectors(place):
    config = dataclasses.replace(READER, elmo_place=place)
    model = built(models.EncoderClassifier, config, 3, noise=0.5)
    characters = np.pad(words(2, 7), ((0, 0), (0, 2), (0, 0)))
    h, w = numpy_of(model.encoder(characters)), weights_of(model)
    pooled = np.tanh(h[:, :7].max(1) @ w["pooler/dense/kernel"] + w["pooler/dense/bias"])
    expected = pooled @ w["head/dense/kernel"] + w["head/dense/bias"]
    np.testing.assert_allclose(numpy_of(model(characters)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_a_language_model_is_taken_over_and_trained_where_it_is_not_frozen():
    elmo, characters = drawn(), words(2, 7)
    for frozen in (True, False):
        encoder = models.WordEncoder(dataclasses.replace(READER, elmo_frozen=frozen))
        encoder.build()
        encoder.copy_elmo(elmo)
        np.testing.assert_array_equal(encoder.elmo(characters), elmo(characters))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(characters, training=True))
        weights = encoder.elmo.trainable_weights
        assert bool(weights) is not frozen
        assert all(g is not None for g in tape.gradient(loss, [w.value for w in weights]))
