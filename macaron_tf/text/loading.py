"""The vocabularies of encoders, and which of them a folder holds."""

import os

from macaron_tf.errors import UserError
from macaron_tf.io.paths import join
from macaron_tf.text.base import RECORD, PieceVocabulary, read_record
from macaron_tf.text.byte_pairs import BytePairVocabulary, CharacterPairVocabulary
from macaron_tf.text.encoder_sentencepiece import SentencePieceEncoderVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary

__all__ = [
    "BytePairVocabulary",
    "CharacterPairVocabulary",
    "PieceVocabulary",
    "SentencePieceEncoderVocabulary",
    "WordPieceVocabulary",
    "load_encoder_vocabulary",
]

_KINDS = {
    kind.kind: kind
    for kind in (
        WordPieceVocabulary,
        SentencePieceEncoderVocabulary,
        BytePairVocabulary,
        CharacterPairVocabulary,
    )
}


def load_encoder_vocabulary(directory: str | os.PathLike) -> PieceVocabulary:
    """Reads a vocabulary of any class; `vocabulary.json` says which.

    Args:
        directory: the folder that `save` wrote, `gs://` included.

    Returns:
        The vocabulary, its hash verified.

    Raises:
        UserError: a file is missing, damaged, of no encoder vocabulary, or not the one the hash
            was taken of.
    """
    kind = read_record(directory)["kind"]
    if kind not in _KINDS:
        raise UserError(
            f"{join(directory, RECORD)} is of an unknown kind {kind!r}: it must be one of "
            f"{', '.join(_KINDS)}"
        )
    return _KINDS[kind].load(directory)
