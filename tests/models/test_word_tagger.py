import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.models import WordTagger, WordTaggerConfig
from macaron_tf.objectives import SequenceObjective
from macaron_tf.training.fit_model import FitModel
from tests.harness import numpy_of
from tests.models.test_elmo import CONFIG, words

TAGGER = WordTaggerConfig(4, CONFIG, 6, 5, 4, ((2, 3),), max_characters=8, dropout=0.0)


def test_it_tags_words_whatever_the_padding_and_is_saved(tmp_path):
    model, characters = WordTagger(TAGGER), words(2, 7)
    found = numpy_of(model(characters))
    assert found.shape == (2, 7, 4) == model.compute_output_shape(characters.shape)
    padded = np.pad(characters, ((0, 0), (0, 3), (0, 0)))
    np.testing.assert_allclose(numpy_of(model(padded))[:, :7], found, atol=1e-6)
    model.save(tmp_path / "tagger.keras")
    loaded = keras.saving.load_model(tmp_path / "tagger.keras")
    assert loaded.config == TAGGER
    np.testing.assert_allclose(numpy_of(loaded(characters)), found, atol=1e-6)


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


def test_places_must_agree():
    with pytest.raises(ValueError, match="the language model has 8"):
        WordTaggerConfig(4, CONFIG)
