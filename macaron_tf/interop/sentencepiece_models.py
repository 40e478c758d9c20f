"""SentencePiece models of other libraries, their pieces in our order."""

import base64
import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.sentencepiece import CONTROL, SentencePieceVocabulary

_Model = sentencepiece_model_pb2.ModelProto
_Kind = _Model.SentencePiece
_LAST_RESORT = 100.0  # more than the score of any other way to cut a word


@dataclasses.dataclass(frozen=True)
class ForeignPieces:
    """Another library's pieces.

    Attributes:
        model: whose settings the new model has; its own pieces do not count.
        pieces: in the order of their ids.
    """

    model: Any
    pieces: Sequence[Any]


def pieces_of_file(file: pathlib.Path) -> ForeignPieces:
    """Reads a `.model` file.

    Args:
        file: `spiece.model`, whose ids are the model's, or fairseq's `sentencepiece.bpe.model`.

    Raises:
        UserError: it is no such file.
    """
    model = _Model()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # protobuf's DecodeError is another class in each of its versions
        raise UserError(f"{file} is no SentencePiece model: {error}.") from None
    pieces = list(model.pieces)
    if file.name == "sentencepiece.bpe.model":
        # Theirs are <unk>, <s>, </s>; fairseq puts its own four before the rest, one after it.
        special = [_piece(text) for text in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
        pieces = [*special[:4], *pieces[3:], special[4]]
    return ForeignPieces(model, pieces)


def pieces_of_tokenizer(tokenizer: Mapping[str, Any]) -> ForeignPieces:
    """The pieces of a `tokenizer.json` of a unigram model.

    Args:
        tokenizer: what the file holds.
    """
    model = _Model()
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    charsmap = _charsmap(tokenizer.get("normalizer") or {})
    if charsmap:
        model.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmap)
    pieces = [_piece(text, score) for text, score in tokenizer["model"]["vocab"]]
    for token in tokenizer.get("added_tokens") or ():
        if token["id"] == len(pieces):
            pieces.append(_piece(token["content"]))
        elif token["id"] < len(pieces):
            special = token.get("special")
            pieces[token["id"]].type = _Kind.CONTROL if special else _Kind.USER_DEFINED
    return ForeignPieces(model, pieces)


def without_commas(source: ForeignPieces) -> ForeignPieces:
    """The pieces, those of a digit and a comma at their end being the last resort.

    XLNet cut such a piece once more, and its `tokenizer.json` has these scores.
    """
    pieces = list(source.pieces)
    for place, piece in enumerate(pieces):
        if re.search(r"\d,$", piece.piece) and piece.type == _Kind.NORMAL:
            pieces[place] = _piece(piece.piece, piece.score - _LAST_RESORT)
    return ForeignPieces(source.model, pieces)


def encoder_model(
    source: ForeignPieces, order: Sequence[int], **options: bool | int
) -> SentencePieceVocabulary:
    """Our vocabulary of these pieces: it cuts text as theirs does.

    Args:
        source: the pieces.
        order: at each of our ids the one of theirs, PAD, UNK, [CLS], [SEP] and [MASK] first.
        options: `lower_case`, and the vocabulary's `fold_accents`, `pair_separators`, `cls_last`.
    """
    model = _Model()
    model.trainer_spec.CopyFrom(source.model.trainer_spec)
    model.normalizer_spec.CopyFrom(source.model.normalizer_spec)
    spec = model.trainer_spec
    spec.pad_piece, spec.unk_piece = "<pad>", "<unk>"
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = 0, 1, -1, -1
    special = ("<pad>", "<unk>", *CONTROL)
    for place, theirs in enumerate(order):
        piece = model.pieces.add()
        if place < len(special):
            piece.piece = special[place]
            piece.type = _Kind.UNKNOWN if place == spec.unk_id else _Kind.CONTROL
        else:
            piece.CopyFrom(source.pieces[theirs])
    normalization = NormalizationConfig(lower_case=options.pop("lower_case"))
    return SentencePieceVocabulary(
        model.SerializeToString(deterministic=True), normalization, **options
    )


def _piece(text: str, score: float = 0.0):
    return _Kind(piece=text, score=score, type=_Kind.NORMAL)


def _charsmap(normalizer: Mapping[str, Any]) -> str | None:
    """The table of SentencePiece's normalization, wherever it stands."""
    if normalizer.get("type") == "Sequence":
        found = map(_charsmap, normalizer["normalizers"])
        return next(filter(None, found), None)
    return normalizer.get("precompiled_charsmap")
