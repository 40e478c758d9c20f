"""Text normalization, tokenization and vocabularies of subword pieces and words."""

import os

from macaron_tf.errors import UserError
from macaron_tf.text.base import PieceVocabulary, check_vocabulary
from macaron_tf.text.byte_pairs import (
    BytePairVocabulary,
    CharacterPairVocabulary,
    MosesPairVocabulary,
)
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from macaron_tf.text.source_target import PairVocabulary, TextVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary
from macaron_tf.text.words import WordVocabulary


def load_encoder_vocabulary(directory: str | os.PathLike) -> PieceVocabulary:
    """Loads a vocabulary with a [MASK] token, and verifies its hash."""
    vocabulary = PieceVocabulary.load(directory)
    if vocabulary.special.mask is None:
        raise UserError(f"the vocabulary in {directory} has no [MASK], which an encoder needs")
    return vocabulary
