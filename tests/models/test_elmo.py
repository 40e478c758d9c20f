import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import Elmo, ElmoConfig, WordTagger, WordTaggerConfig
from macaron_tf.objectives import SequenceObjective
from macaron_tf.training.fit_model import FitModel
from tests.harness import check_saved, normal, numpy_of, symbolic
from tests.models import elmo_reference

CONFIG = ElmoConfig(
    vocab_size=11,
    lstm_dim=12,
    projection_dim=5,
    clip=0.4,
    max_characters=8,
    char_dim=4,
    filters=((1, 3), (2, 4), (3, 6)),
)


def words(*shape: int, seed: int = 0) -> np.ndarray:
    """Random words of 1 to 6 characters, `(*shape, 8)`."""
    rng = np.random.default_rng(seed)
    characters = rng.integers(1, 261, (*shape, 8)).astype("int32")
    characters[np.arange(8) >= rng.integers(1, 7, shape)[..., None]] = 0
    return characters


def built(**changes) -> Elmo:
    """A model all of whose weights are drawn, large enough for the clipping to be felt."""
    model = Elmo(ElmoConfig(**{**CONFIG.__dict__, **changes}))
    model.build()
    drawn = [0.6 * normal(*w.shape, seed=i) for i, w in enumerate(model.get_weights())]
    model.set_weights(drawn)
    return model


@pytest.mark.parametrize("clip", [0.4, None])
def test_its_layers_are_the_equations(clip):
    model, characters = built(clip=clip), words(2, 7)
    found = numpy_of(model(characters))
    assert found.shape == (2, 7, 3, 10) == symbolic(model, characters).shape
    for row in range(2):
        expected = elmo_reference.layers(model, characters[row])
        np.testing.assert_allclose(found[row], expected, rtol=1e-5, atol=1e-5)
    if clip:  # of the first layer, of which the second is a sum
        assert np.abs(found[:, :, 1]).max() == np.float32(clip)


def test_each_direction_sees_its_own_side_only():
    model, characters = built(), words(1, 7)
    before = numpy_of(model(characters))
    for place in range(7):
        changed = characters.copy()
        changed[:, place] = words(1, seed=9)
        difference = np.abs(numpy_of(model(changed)) - before)[0]
        forward, backward = difference[:, 1:, :5], difference[:, 1:, 5:]
        assert not forward[:place].any() and forward[place:].any()
        assert not backward[place + 1 :].any() and backward[: place + 1].any()


def test_padding_changes_no_word():
    model, characters = built(), words(2, 7)
    padded = np.pad(characters, ((0, 0), (0, 3), (0, 0)))
    np.testing.assert_allclose(
        numpy_of(model(padded))[:, :7], numpy_of(model(characters)), atol=1e-6
    )


def test_scores_come_of_the_last_layer_of_each_direction():
    model, characters = built(), words(2, 7)
    layers = numpy_of(model(characters))
    forward, backward = model.hidden_states(characters)
    np.testing.assert_allclose(numpy_of(forward), layers[:, :, 2, :5], atol=1e-6)
    np.testing.assert_allclose(numpy_of(backward), layers[:, :, 2, 5:], atol=1e-6)
    assert model.logits(forward).shape == (2, 7, 11)


def test_the_original_counts_93_6_million_parameters_but_for_the_words_it_scores():
    """Peters et al.'s released "original" model; AllenNLP states 93.6M, softmax excluded."""
    config = ElmoConfig(vocab_size=1)
    filters = sum(n for _, n in config.filters)
    cnn = 261 * 16 + sum((w * 16 + 1) * n for w, n in config.filters)
    highways = 2 * (2 * (filters + 1) * filters + filters)
    projection = (filters + 1) * 512
    lstm = 4 * 4096 * (512 + 512 + 1) + 4096 * 512
    expected = cnn + highways + projection + 4 * lstm
    assert expected == pytest.approx(93.6e6, rel=0.01)
    tiny = Elmo(CONFIG)
    tiny.build()
    own = 261 * 4 + (4 + 1) * 3 + (8 + 1) * 4 + (12 + 1) * 6
    own += 2 * (2 * 14 * 13 + 13) + 14 * 5 + 4 * (4 * 12 * (5 + 5 + 1) + 12 * 5) + 6 * 11
    assert tiny.count_params() == own


def test_it_is_saved_with_its_configuration(tmp_path):
    model, characters = built(), words(2, 7)
    assert check_saved(model, characters, tmp_path).config == model.config


TAGGER = WordTaggerConfig(4, CONFIG, 6, 5, 4, ((2, 3),), max_characters=8, dropout=0.0)


def test_it_tags_words_whatever_the_padding_and_is_saved(tmp_path):
    model, characters = WordTagger(TAGGER), words(2, 7)
    found = numpy_of(model(characters))
    assert found.shape == (2, 7, 4) == symbolic(model, characters).shape
    padded = np.pad(characters, ((0, 0), (0, 3), (0, 0)))
    np.testing.assert_allclose(numpy_of(model(padded))[:, :7], found, atol=1e-6)
    assert check_saved(model, characters, tmp_path).config == TAGGER


@pytest.mark.parametrize("elmo", [CONFIG, None])
def test_all_is_trained_but_the_language_model(elmo):
    config = WordTaggerConfig(**{**TAGGER.__dict__, "elmo": elmo})
    model = WordTagger(config)
    model.build()
    frozen = [w.numpy() for w in model.elmo.weights] if elmo else []
    before = [w.numpy() for w in model.trainable_variables]
    characters = words(3, 6)
    batch = {
        "inputs": tf.constant(characters),
        "targets": tf.constant(characters[:, :, 1] % 4),
        "weight": tf.ones((3, 6)),
    }
    fit = FitModel(model, SequenceObjective("classes"))
    fit.compile(keras.optimizers.Adam(0.01))
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    losses = fit.fit(dataset, steps_per_epoch=20, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    assert len(model.weights) == len(before) + len(frozen)
    for weight, old in zip(model.trainable_variables, before, strict=True):
        assert not np.array_equal(weight.numpy(), old), weight.path
    if elmo:
        for weight, old in zip(model.elmo.weights, frozen, strict=True):
            np.testing.assert_array_equal(weight.numpy(), old)


def test_words_must_be_equally_wide():
    with pytest.raises(ValueError, match="the language model has 8"):
        WordTaggerConfig(4, CONFIG)
