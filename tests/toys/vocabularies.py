"""Small parallel texts, and vocabularies trained on them."""

import io
import json
import pathlib
import random

import pytest
import sentencepiece

from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.hub.tokenizers.parts import SPLITS
from macaron_tf.text import NormalizationConfig, SentencePieceVocabulary, WordPieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.sentencepiece import interleave

ENGLISH = "a the man woman dog cat runs sits eats red blue house tree near under and, slowly"
GERMAN = "ein der mann frau hund katze läuft sitzt isst rot blau haus baum neben unter und, groß"


def train_joint(pairs, size: int, **options) -> SentencePieceVocabulary:
    """Trains a joint vocabulary with the defaults of `macaron vocabulary`."""
    options = {"masks": False, "languages": ("en", "de"), "character_coverage": 1.0, **options}
    return SentencePieceVocabulary.train(interleave(pairs, ("en", "de")), size, **options)


def train_bytes(lines, size: int, **options) -> bytes:
    """Trains a SentencePiece model with byte fallback; returns the serialized model.

    PAD, UNK, BOS and EOS have the ids 0 to 3 by default.
    """
    options = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "model_type": "bpe", **options}
    return train_sentencepiece(lines, vocab_size=size, byte_fallback=True, **options)


@pytest.fixture(scope="session")
def toy_pairs() -> list[tuple[str, str]]:
    """Returns 300 made-up pairs of up to 30 words per source sentence."""
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
    """Returns a vocabulary of 60 pieces, trained on the made-up pairs."""
    return train_joint(toy_pairs, 60)


@pytest.fixture(scope="session")
def real_pairs(tfds) -> list[tuple[str, str]]:
    """Returns the 1,014 caption pairs of Multi30k's validation split."""
    return read_pairs("tfds:multi30k", "validation", "en", "de", tfds)


@pytest.fixture(scope="session")
def real_vocabulary(real_pairs) -> SentencePieceVocabulary:
    """Returns a vocabulary of 1,000 lower-case pieces with normalized punctuation."""
    normalization = NormalizationConfig(punctuation=True, lower_case=True)
    return train_joint(real_pairs, 1000, normalization=normalization)


@pytest.fixture(scope="session")
def bert(shared_data) -> WordPieceVocabulary:
    """Returns the vocabulary of BERT's "uncased" models."""
    file = shared_data / "vocabularies" / "bert-base-uncased-vocab.txt"
    return WordPieceVocabulary.from_file(file)


TRAINING = [
    "The quick brown fox jumped over the lazy dog, and the dog didn't mind it at all.",
    "Der schnelle braune Fuchs sprang über den faulen Hund; le renard brun a sauté.",
    "Numbers such as 1,234.56 or 2024 (and signs: -, ., €) are in many texts.",
] * 4


def train_sentencepiece(lines=TRAINING, **options) -> bytes:
    """Trains a SentencePiece model; returns the serialized model."""
    model = io.BytesIO()
    options = {"vocab_size": 75, "model_type": "unigram", "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, **options
    )
    return model.getvalue()


def byte_level_tokenizer(pattern: str, size: int, **options):
    """Trains a byte-level tokenizer by the package tokenizers; all but Llama's normalize to NFC."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    words = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "gpt2")]
    if pattern != "gpt2":
        words = [pre_tokenizers.Split(Regex(SPLITS[pattern]["Regex"]), "isolated"), *words]
    whole = Tokenizer(models.BPE(**options))
    if pattern in ("gpt2", "qwen2"):
        whole.normalizer = normalizers.NFC()
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.Sequence(words), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    whole.train_from_iterator(TRAINING, trainer)
    return whole


def byte_pair_tokenizer(kind, files: str, directory: pathlib.Path, **options):
    """Saves a tokenizer with RoBERTa's byte-level tokens; returns the tokenizer.

    If `files` is "its own", vocab.json and merges.txt replace tokenizer.json.
    """
    learnt = BytePairVocabulary.train(TRAINING, 300)
    names = ["<s>", "<pad>", "</s>", "<unk>", *learnt.units, "<mask>"]
    numbers = {name: number for number, name in enumerate(names)}
    merges = [tuple(merge.split(" ")) for merge in learnt.merges]
    tokenizer = kind(vocab=numbers, merges=merges, **options)
    tokenizer.save_pretrained(directory)
    if files == "its own":
        (directory / "tokenizer.json").unlink()
        (directory / "vocab.json").write_text(json.dumps(numbers))
        (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *learnt.merges]) + "\n")
    return tokenizer


XLNET = {
    "unk_id": 0, "bos_id": 1, "eos_id": 2, "user_defined_symbols": ["<eop>"],
    "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
}  # fmt: skip

UNITS = ["h", "e", "l", "o", "h</w>", "e</w>", "l</w>", "o</w>", ",</w>", "a</w>", "he", "ll",
         "hell", "hello</w>", "aa</w>", "a", "aa"]  # fmt: skip
MERGES = ["h e", "l l", "he ll", "hell o</w>", "a a", "a a</w>"]
