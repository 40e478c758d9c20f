"""`Model` models with random weights and vocabularies of a few letters."""

import dataclasses

from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.model import Model
from macaron_tf.models import catalog
from macaron_tf.models.model_parts import Card
from macaron_tf.tasks import LabelledSettings, Limits, of_classes
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary

WORDS = WordPieceVocabulary.train(["a b c d e f"] * 50, size=17)
BYTES = BytePairVocabulary.train(["a b c d"] * 50, 262)
PAIR = {"name": "pair", "first": ["a"], "second": ["b"], "labels": ["no", "yes"]}


def loaded(kind, name: str, vocabulary=WORDS, *arguments, **facts) -> Model:
    network = kind(catalog.config(name, vocab_size=vocabulary.size), *arguments)
    network.build()
    return Model(network, vocabulary, card=Card(name="made", **facts))


def with_scores(model: Model, mean: float, deviation: float) -> Model:
    """Returns a regression model whose scores have the given mean and deviation."""
    task = dataclasses.replace(get_task("stsb"), mean=mean, deviation=deviation)
    return dataclasses.replace(model, settings=LabelledSettings(task=task, limits=Limits(16)))


def with_classes(model: Model, *labels: str, max_length: int | None = None) -> Model:
    return dataclasses.replace(model, settings=of_classes(model, labels, max_length))
