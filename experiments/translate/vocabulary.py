"""`translate vocabulary`: the joint vocabulary of a recipe."""

import argparse

from experiments import recipes
from experiments.recipe import override
from experiments.translate.recipe import DataConfig, TranslationRecipe
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.text.sentencepiece import SentencePieceVocabulary, interleave


def train_vocabulary(
    data: DataConfig, data_dir: str | None = None, download: bool = False
) -> SentencePieceVocabulary:
    """Trains the joint vocabulary on both sides of the training split.

    Args:
        data: the source, its languages, the size and the normalization.
        data_dir, download: as for `macaron_tf.data.read_pairs`.

    Raises:
        UserError: the text cannot be read, or is too little for the size.
    """
    languages = (data.source_language, data.target_language)
    pairs = read_pairs(data.source, data.train_split, *languages, data_dir, download)
    return SentencePieceVocabulary.train(
        interleave(pairs, languages),
        data.vocabulary_size,
        masks=False,
        character_coverage=1.0,
        normalization=data.normalization,
        languages=languages,
    )


def run(options: argparse.Namespace) -> None:
    """Trains and saves."""
    recipe = override(recipes.load(options.recipe, TranslationRecipe), options.set)
    vocabulary = train_vocabulary(recipe.data, options.data_dir, options.download)
    vocabulary.save(options.out)
    print(f"{vocabulary.pieces} pieces, hash {vocabulary.hash[:12]}, in {options.out}")
