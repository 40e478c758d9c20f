"""Preparation of the corpus of a pre-training recipe, and training of its vocabulary."""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from macaron_tf.data.corpus.documents import corpus_mixture, open_source, source_readers
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.corpus.shards import FORMAT
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory
from macaron_tf.io.paths import as_path
from macaron_tf.text import (
    BytePairVocabulary,
    MosesPairVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
    WordPieceVocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.text.base import RECORD
from macaron_tf.text.normalization import NormalizationConfig

if TYPE_CHECKING:
    from macaron_tf.runs.pretraining import PretrainingRecipe


def train_vocabulary(recipe: "PretrainingRecipe", tfds: Tfds | None = None) -> PieceVocabulary:
    """Trains the vocabulary of a recipe on at most ten million lines of text."""
    config, lines = recipe.vocabulary, vocabulary_lines(recipe, tfds)
    size, lower_case = config.size, config.lower_case
    if config.kind == "wordpiece":
        return WordPieceVocabulary.train(lines, size, lower_case, config.max_characters)
    if config.kind == "byte_bpe":
        return BytePairVocabulary.train(lines, size, lower_case=lower_case)
    options = {"model_type": "bpe", "normalization": NormalizationConfig(lower_case=lower_case)}
    if config.kind == "unigram":
        options |= {"model_type": "unigram", "fold_accents": lower_case}
    return SentencePieceVocabulary.train(lines, size, **options)


def vocabulary_lines(recipe: "PretrainingRecipe", tfds: Tfds | None = None) -> Iterator[str]:
    """Yields the non-blank lines that the vocabulary of a recipe is trained on.

    The function takes one document from each source in turn. If `corpus.language_alpha` is set, the
    function instead samples documents from the monolingual sources (from all sources if there are
    none), with the sampling weights of the languages. Words in rare languages are then split into
    fewer subword pieces (Conneau and Lample 2019, section 3.1).
    """
    corpus, max_documents = recipe.corpus, recipe.vocabulary.max_documents
    if corpus.language_alpha is not None:
        monolingual = tuple(source for source in corpus.sources if not source.is_translation)
        corpus = dataclasses.replace(
            corpus, sources=monolingual or corpus.sources, packing=None, batch_alpha=None
        )
    sources = [open_source(source, tfds, max_documents) for source in corpus.sources]
    if corpus.language_alpha is None:
        # The trainer reads at most ten million lines. Reading in turn covers all sources.
        texts = itertools.chain.from_iterable(itertools.zip_longest(*sources, fillvalue=""))
    else:
        readers = source_readers(corpus, tfds, max_documents)
        texts = (document.text for document in corpus_mixture(corpus, readers))
    for text in texts:
        yield from filter(str.strip, text.splitlines() if isinstance(text, str) else text)


def prepare_corpus(
    recipe: "PretrainingRecipe",
    out: str | None,
    vocabulary_dir: str | None,
    tfds: Tfds | None = None,
    vocabulary: PieceVocabulary | None = None,
    **options,
) -> PretrainingCorpus:
    """Prepares the corpus of a recipe, or opens the corpus if it is already prepared.

    Without `vocabulary_dir` and `vocabulary`, the function uses the vocabulary in `out`. If `out`
    has no vocabulary, the function trains a vocabulary.

    Args:
        out: folder of the corpus; `None` means a folder in `cache_directory()`, whose name is a
            hash of the settings.
        vocabulary_dir: folder of an existing vocabulary, which takes precedence over `vocabulary`.
        options: further arguments of `macaron_tf.data.corpus.writing.prepare`.
    """
    if out is None:
        settings = [FORMAT, *map(repr, (recipe.corpus, recipe.vocabulary))]
        settings += [vocabulary.hash if vocabulary else vocabulary_dir, tfds and tfds.data_dir]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        out = cache_directory() / "corpora" / digest
    if vocabulary_dir:
        vocabulary = load_encoder_vocabulary(vocabulary_dir)
    elif vocabulary is None:
        vocabulary = _corpus_vocabulary(recipe, out, tfds)
    if isinstance(vocabulary, MosesPairVocabulary):
        raise UserError(f"a {vocabulary.kind} vocabulary needs the language of each line")
    return prepare(recipe.corpus, vocabulary, out, tfds=tfds, **options)


def _corpus_vocabulary(
    recipe: "PretrainingRecipe", out: str | os.PathLike, tfds: Tfds | None
) -> PieceVocabulary:
    """Loads the vocabulary in the corpus folder `out`, or trains a vocabulary if there is none."""
    if not (as_path(out) / RECORD).exists():
        print(f"training a vocabulary of {recipe.vocabulary.size:,} pieces", flush=True)
        return train_vocabulary(recipe, tfds)
    vocabulary = load_encoder_vocabulary(out)
    found = recipe.vocabulary.of(vocabulary)
    for name in ("kind", "size", "lower_case"):
        saved, wanted = (getattr(config, name) for config in (found, recipe.vocabulary))
        if saved != wanted:
            found = f"{out} contains a vocabulary with {name}={saved!r}, but the recipe needs"
            raise UserError(f"{found} {name}={wanted!r}: choose another folder, or set it")
    return vocabulary
