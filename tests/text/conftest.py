"""Small corpora of pairs and joint vocabularies over them."""

import io
import random

import pytest
import sentencepiece

from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.text import NormalizationConfig, SentencePieceVocabulary, WordPieceVocabulary
from macaron_tf.text.sentencepiece import interleave

ENGLISH = "a the man woman dog cat runs sits eats red blue house tree near under and, slowly"
GERMAN = "ein der mann frau hund katze läuft sitzt isst rot blau haus baum neben unter und, groß"


def train_joint(pairs, size: int, **options) -> SentencePieceVocabulary:
    """A translator's vocabulary, as `translate vocabulary` trains it."""
    options = {"masks": False, "languages": ("en", "de"), "character_coverage": 1.0, **options}
    return SentencePieceVocabulary.train(interleave(pairs, ("en", "de")), size, **options)


def train_bytes(lines, size: int, **options) -> bytes:
    """A SentencePiece model whose last resort is bytes; ids as in a translator's vocabulary."""
    model = io.BytesIO()
    options = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "model_type": "bpe", **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, byte_fallback=True,
        minloglevel=2, **options,
    )  # fmt: skip
    return model.getvalue()


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
def toy_vocabulary(toy_pairs) -> SentencePieceVocabulary:
    """60 pieces over the made-up pairs."""
    return train_joint(toy_pairs, 60)


@pytest.fixture(scope="session")
def real_pairs(tfds) -> list[tuple[str, str]]:
    """1,014 image captions."""
    return read_pairs("tfds:multi30k", "validation", "en", "de", tfds)


@pytest.fixture(scope="session")
def real_vocabulary(real_pairs) -> SentencePieceVocabulary:
    """1,000 pieces over the captions, punctuation normalized, lower-cased."""
    normalization = NormalizationConfig(punctuation=True, lower_case=True)
    return train_joint(real_pairs, 1000, normalization=normalization)


@pytest.fixture(scope="session")
def bert(shared_data) -> WordPieceVocabulary:
    """The vocabulary of BERT's "uncased" models."""
    return WordPieceVocabulary.from_file(
        shared_data / "vocabularies" / "bert-base-uncased-vocab.txt"
    )
