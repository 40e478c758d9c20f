"""A small real corpus and vocabulary for the tests of this room."""

import random

import pytest

from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.sentencepiece import interleave
from macaron_tf.text.vocabulary import Vocabulary

ENGLISH = "a the man woman dog cat runs sits eats red blue house tree near under and, slowly"
GERMAN = "ein der mann frau hund katze läuft sitzt isst rot blau haus baum neben unter und, groß"


@pytest.fixture(scope="session")
def toy_pairs() -> list[tuple[str, str]]:
    """300 made-up pairs of 1 to 30 words."""
    rng = random.Random(0)
    pairs = []
    for _ in range(300):
        length = min(30, 1 + int(rng.expovariate(0.15)))
        source = " ".join(rng.choices(ENGLISH.split(), k=length))
        target = " ".join(rng.choices(GERMAN.split(), k=length + rng.randint(0, 2)))
        pairs.append((source, target))
    return pairs


@pytest.fixture(scope="session")
def toy_vocabulary(toy_pairs) -> Vocabulary:
    """60 pieces over the made-up pairs."""
    return Vocabulary.train(interleave(toy_pairs, ("en", "de")), 60)


@pytest.fixture(scope="session")
def real_pairs(tfds_dir) -> list[tuple[str, str]]:
    """1,014 image captions."""
    return read_pairs("tfds:multi30k", "validation", "en", "de", tfds_dir)


@pytest.fixture(scope="session")
def real_vocabulary(real_pairs) -> Vocabulary:
    """1,000 pieces over the captions, punctuation normalized, lower-cased."""
    normalization = NormalizationConfig(punctuation=True, lower_case=True)
    return Vocabulary.train(interleave(real_pairs, ("en", "de")), 1000, normalization=normalization)
