"""Text to token ids and back: normalization, the vocabularies of each kind, words."""

import os

from macaron_tf.errors import UserError
from macaron_tf.text.base import PairVocabulary, PieceVocabulary, TextVocabulary, check_vocabulary
from macaron_tf.text.byte_pairs import (
    BytePairVocabulary,
    CharacterPairVocabulary,
    MosesPairVocabulary,
)
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary
from macaron_tf.text.words import WordVocabulary


def load_encoder_vocabulary(directory: str | os.PathLike) -> PieceVocabulary:
    """Reads a vocabulary of any kind that has a [MASK], and verifies its hash."""
    vocabulary = PieceVocabulary.load(directory)
    if vocabulary.mask_id is None:
        raise UserError(
            f"{os.fspath(directory)} is not of an encoder vocabulary, for it has no [MASK]: give "
            "the folder of one that was trained for encoders"
        )
    return vocabulary
