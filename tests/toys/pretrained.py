"""`Pretrained` models with random weights and vocabularies of a few letters."""

from macaron_tf.model import Pretrained
from macaron_tf.models import catalog
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary

WORDS = WordPieceVocabulary.train(["a b c d e f"] * 50, size=17)
BYTES = BytePairVocabulary.train(["a b c d"] * 50, 262)
PAIR = {"name": "pair", "first": ["a"], "second": ["b"], "labels": ["no", "yes"]}


def loaded(kind, name: str, vocabulary=WORDS, *arguments, **usage) -> Pretrained:
    network = kind(catalog.config(name, vocab_size=vocabulary.size), *arguments)
    network.build()
    return Pretrained(network, vocabulary=vocabulary, name="made", **usage)
