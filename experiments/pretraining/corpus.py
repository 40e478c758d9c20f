"""`pretrain prepare` and `pretrain vocabulary`: from documents to rows that a training streams."""

import argparse
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterator

from experiments import recipes
from experiments.pretraining.recipe import PretrainingRecipe, VocabularyConfig
from experiments.recipe import override
from macaron_tf.cache import cache_directory
from macaron_tf.data import storage
from macaron_tf.data.documents import documents
from macaron_tf.data.encoder_vocabulary import (
    PieceVocabulary,
    SentencePieceEncoderVocabulary,
    WordPieceVocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.data.normalization import NormalizationConfig
from macaron_tf.data.piece_vocabulary import RECORD
from macaron_tf.data.pretraining_corpus import PretrainingCorpus, prepare
from macaron_tf.errors import UserError


def train_vocabulary(
    recipe: PretrainingRecipe, data_dir: str | None = None, download: bool = False
) -> PieceVocabulary:
    """Trains a recipe's vocabulary on the lines of its documents, ten million at most.

    Args:
        recipe: names the sources, the kind and the size.
        data_dir, download: as for `macaron_tf.data.documents.documents`.

    Raises:
        UserError: the text cannot be read, or is too little for the size.
    """
    config = recipe.vocabulary

    def lines() -> Iterator[str]:
        sources = [
            itertools.islice(
                documents(source.source, source.split, data_dir, download), config.max_documents
            )
            for source in recipe.corpus.sources
        ]
        # In turn: the trainer reads so many lines, and all sources shall be among them.
        for group in itertools.zip_longest(*sources, fillvalue=""):
            for document in group:
                yield from filter(str.strip, document.splitlines())

    if config.kind == "wordpiece":
        return WordPieceVocabulary.train(lines(), config.size, lower_case=config.lower_case)
    normalization = NormalizationConfig(lower_case=config.lower_case)
    return SentencePieceEncoderVocabulary.train(lines(), config.size, normalization=normalization)


def prepare_corpus(
    recipe: PretrainingRecipe,
    out: str | pathlib.Path | None = None,
    vocabulary_dir: str | None = None,
    data_dir: str | None = None,
    download: bool = False,
) -> PretrainingCorpus:
    """A recipe's corpus, prepared now unless it is already.

    Args:
        recipe: corpus and vocabulary settings.
        out: its folder; a folder of `cache_directory()` named by the settings when None.
        vocabulary_dir: a vocabulary to use instead of training one.
        data_dir, download: as for `macaron_tf.data.documents.documents`.

    Raises:
        UserError: as `macaron_tf.data.pretraining_corpus.prepare`.
    """
    if out is None:
        settings = [repr(recipe.corpus), repr(recipe.vocabulary), vocabulary_dir, data_dir]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        out = cache_directory() / "corpora" / digest
    if vocabulary_dir:
        vocabulary = load_encoder_vocabulary(vocabulary_dir)
    elif storage.exists(storage.join(out, RECORD)):
        vocabulary = load_encoder_vocabulary(out)
        _check_vocabulary(recipe.vocabulary, vocabulary, out)
    else:
        print(f"training a vocabulary of {recipe.vocabulary.size:,} pieces", flush=True)
        vocabulary = train_vocabulary(recipe, data_dir, download)
    return prepare(recipe.corpus, vocabulary, out, data_dir=data_dir, download=download)


def described(vocabulary: PieceVocabulary) -> VocabularyConfig:
    """What a vocabulary is, in a recipe's words; `max_documents` it cannot tell."""
    settings = vocabulary.settings()
    lower_case = {**settings, **settings.get("normalization", {})}["lower_case"]
    return VocabularyConfig(vocabulary.kind, vocabulary.pieces, lower_case)


def _check_vocabulary(config: VocabularyConfig, vocabulary: PieceVocabulary, where) -> None:
    """Refuses a corpus's vocabulary that is not of the recipe's kind, size and case."""
    found = described(vocabulary)
    for name in ("kind", "size", "lower_case"):
        theirs, ours = getattr(found, name), getattr(config, name)
        if theirs != ours:
            raise UserError(
                f"{where} holds a vocabulary of {name} {theirs!r}, the recipe wants {ours!r}: "
                f"prepare another folder, or --set vocabulary.{name}={theirs}"
            )


def run_prepare(options: argparse.Namespace) -> None:
    """Prepares and says what to do next."""
    recipe = override(recipes.load(options.recipe, PretrainingRecipe), options.set)
    corpus = prepare_corpus(
        recipe, options.corpus, options.vocabulary, options.data_dir, options.download
    )
    print(f"{options.corpus}: {corpus.summary()}")
    print(f"next: {recipe.command} train {options.recipe} RUN --corpus {options.corpus}")


def run_vocabulary(options: argparse.Namespace) -> None:
    """Trains and saves."""
    recipe = override(recipes.load(options.recipe, PretrainingRecipe), options.set)
    vocabulary = train_vocabulary(recipe, options.data_dir, options.download)
    vocabulary.save(options.out)
    print(f"{vocabulary.pieces} pieces, hash {vocabulary.hash[:12]}, in {options.out}")
