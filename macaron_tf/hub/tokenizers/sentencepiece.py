"""Readers for SentencePiece vocabularies in Hugging Face folders."""

import base64
import pathlib
import re
from typing import TypeAlias

from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.tokenizers.folder import MEND, SENTINEL, Tokenizer, special_of, with_added
from macaron_tf.io.paths import refuse_damage
from macaron_tf.special import Special
from macaron_tf.text import NormalizationConfig, PieceVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary

_Model: TypeAlias = sentencepiece_model_pb2.ModelProto
_Piece: TypeAlias = sentencepiece_model_pb2.ModelProto.SentencePiece
_SCORE_PENALTY = 100.0  # makes any other segmentation of a word preferable


def read_llama_vocabulary(directory: pathlib.Path) -> SentencePieceVocabulary:
    """Reads the tokenizer of a Llama 2 model, which is a SentencePiece BPE tokenizer.

    If padding and [MASK] are missing, they have ids after all tokens.

    Raises:
        UserError: a file is damaged, or the vocabulary lacks a special token.
    """
    tokenizer = Tokenizer(directory, ["tokenizer.model"])
    model, pieces = _sentencepiece_model(tokenizer)
    names = [piece.piece for piece in pieces]
    defaults = {"unk_token": ("<unk>",), "bos_token": ("<s>",), "eos_token": ("</s>",)}
    ids = [names.index(name) for name in tokenizer.special_tokens(names, defaults)]
    pad = tokenizer.token("pad_token")
    pad_id = names.index(pad) if pad in names else None
    special = special_of([None if pad_id in ids else pad_id, *ids, None], len(names))
    vocabulary = SentencePieceVocabulary(
        _model_file(model, pieces, special), verbatim=True, special=special
    )
    return with_added(vocabulary, tokenizer)


def read_t5_vocabulary(directory: pathlib.Path) -> PieceVocabulary:
    """Reads the tokenizer of a T5 model, which is a SentencePiece unigram tokenizer.

    The tokenizer also has sentinels, the tokens `<extra_id_0>`, `<extra_id_1>` and so on, which T5
    puts in place of corrupted spans. If macaron_tf did not export the model, T5's decoder starts
    with the padding token, and [MASK] has an id after all tokens.

    Raises:
        UserError: a file is missing or damaged, or the vocabulary lacks a special token.
    """
    tokenizer = Tokenizer(directory, ["spiece.model"])
    model, pieces = _sentencepiece_model(tokenizer)
    names = [piece.piece for piece in pieces]
    matches = [SENTINEL.fullmatch(name) for name in names]
    sentinels = {int(match[1]): index for index, match in enumerate(matches) if match}
    if not sentinels:  # the model's file lacks sentinels, which follow its pieces in reverse order
        count = tokenizer.options.get("extra_ids", 100)
        sentinels = {index: len(names) + count - 1 - index for index in range(count)}
        pieces += [_piece(f"<extra_id_{index}>") for index in reversed(range(count))]
    defaults = {"pad_token": ("<pad>",), "unk_token": ("<unk>",), "eos_token": ("</s>",)}
    pad, unknown, end = map(names.index, tokenizer.special_tokens(names, defaults))
    # A model that macaron_tf exported has separate tokens for [CLS] and [MASK].
    extra_names = (tokenizer.token(field) for field in ("cls_token", "mask_token"))
    start, mask = (names.index(name) if name in names else None for name in extra_names)
    ids = [pad, unknown, pad if start is None else start, end, mask]
    in_order = [sentinels[index] for index in sorted(sentinels)]
    special = special_of(ids, len(pieces), in_order)
    vocabulary = SentencePieceVocabulary(_model_file(model, pieces, special), special=special)
    return with_added(vocabulary, tokenizer)


def read_sentencepiece(tokenizer: Tokenizer) -> PieceVocabulary:
    """Reads the tokenizer of an XLM-R, ALBERT or XLNet model (see `read_vocabulary`).

    Raises:
        UserError: a file is damaged, the vocabulary lacks a special token, or the tokenizer keeps
            accents (`keep_accents`).
    """
    model, pieces = _sentencepiece_model(tokenizer)
    names = [piece.piece for piece in pieces]
    special_names = tokenizer.special_tokens(set(names))
    # XLM-R's SentencePiece model normalizes text. XLNet and ALBERT strip accents before
    # SentencePiece.
    is_xlnet, fold_accents = "<cls>" in special_names, "<s>" not in special_names
    if tokenizer.normalizer_types:
        fold_accents = "StripAccents" in tokenizer.normalizer_types
    if is_xlnet and tokenizer.file:
        # XLNet's tokenizer splits pieces that end in a digit and a comma again. A score penalty has
        # the same effect. The scores in `tokenizer.json` include the penalty.
        for piece in pieces:
            if re.search(r"\d,$", piece.piece) and piece.type == _Piece.NORMAL:
                piece.score -= _SCORE_PENALTY
    accents = {"keep_accents": bool(tokenizer.options.get("keep_accents"))}
    ForeignConfig(accents, f"the tokenizer of {tokenizer.directory}").require(
        {"keep_accents": False}
    )
    # By default ALBERT lower-cases and XLNet does not.
    lower_by_default = fold_accents and not is_xlnet
    if tokenizer.tokenizer_json:
        lower_by_default = "Lowercase" in tokenizer.normalizer_types
    lower_case = bool(tokenizer.options.get("do_lower_case", lower_by_default))
    special = special_of([names.index(name) for name in special_names], len(pieces))
    vocabulary = SentencePieceVocabulary(
        _model_file(model, pieces, special),
        NormalizationConfig(lower_case=lower_case),
        fold_accents=fold_accents,
        pair_separators=tokenizer.separators(1 if fold_accents else 2),
        cls_last=is_xlnet,
        special=special,
    )
    return with_added(vocabulary, tokenizer)


def _sentencepiece_model(tokenizer: Tokenizer) -> tuple[_Model, list[_Piece]]:
    """Reads a SentencePiece model file, or builds a model without pieces from `tokenizer.json`.

    Returns:
        The model, and a list of all pieces and added tokens in the order of the Hugging Face ids.
        The caller must use this list instead of `model.pieces`, which may be empty or in another
        order.
    """
    model = _Model()
    if tokenizer.file:
        try:
            model.ParseFromString(tokenizer.file.read_bytes())
        except Exception as error:  # protobuf's DecodeError differs between its versions
            raise UserError(
                f"{tokenizer.file} is not a SentencePiece model ({error}): download or copy the "
                "file again"
            ) from None
        pieces = list(model.pieces)
        if tokenizer.file.name == "sentencepiece.bpe.model":
            # The file begins with <unk>, <s> and </s>. fairseq replaces these three by four special
            # pieces and appends <mask>.
            special = [_piece(text) for text in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
            pieces = [*special[:4], *pieces[3:], special[4]]
        return model, _with_added_pieces(tokenizer, pieces)
    file = tokenizer.directory / "tokenizer.json"
    with refuse_damage(file, MEND):
        model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
        # The normalizer with SentencePiece's table is the only step or one of several steps.
        for step in tokenizer.normalizer.get("normalizers", [tokenizer.normalizer]):
            if charsmap := step.get("precompiled_charsmap"):
                model.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmap)
        pieces = [_piece(text, score) for text, score in tokenizer.model["vocab"]]
        if tokenizer.model.get("byte_fallback"):
            model.trainer_spec.byte_fallback = True
            by_name = {piece.piece: piece for piece in pieces}
            for name in (f"<0x{byte:02X}>" for byte in range(256)):
                if name not in by_name:
                    raise UserError(
                        f"{file} has byte_fallback=true, but lacks the token {name} of the 256 "
                        "byte tokens: give another tokenizer"
                    )
                by_name[name].type = _Piece.BYTE
        for token in tokenizer.tokenizer_json.get("added_tokens") or ():
            if token["id"] < len(pieces):
                special = token.get("special")
                pieces[token["id"]].type = _Piece.CONTROL if special else _Piece.USER_DEFINED
    return model, _with_added_pieces(tokenizer, pieces)


def _with_added_pieces(tokenizer: Tokenizer, pieces: list[_Piece]) -> list[_Piece]:
    """Appends added tokens to the pieces of a SentencePiece model, and returns the pieces.

    The function appends the tokens in `tokenizer.all_added` whose ids follow the ids of the pieces,
    and unused pieces for ids between them. The function also removes tokens that were already in
    `pieces` from `tokenizer.added`, because SentencePiece itself finds these tokens in text.

    Raises:
        UserError: an added token has a far larger id than the pieces.
    """
    tokenizer.added = {name: n for name, n in tokenizer.added.items() if n >= len(pieces)}
    for name, token_id in sorted(tokenizer.all_added.items(), key=lambda item: item[1]):
        if token_id >= 2 * len(pieces):
            raise UserError(
                f"{tokenizer.directory} gives the added token {name!r} the id {token_id}, far from "
                f"its {len(pieces)} pieces: {MEND}"
            )
        if token_id >= len(pieces):
            gap = range(len(pieces), token_id)
            pieces += [_Piece(piece=f"<unused {n}>", type=_Piece.UNUSED) for n in gap]
            pieces.append(_piece(name))
    return pieces


def _model_file(source: _Model, pieces: list[_Piece], special: Special) -> bytes:
    """Builds a serialized SentencePiece model, in which text never matches a special token.

    Args:
        source: SentencePiece model that supplies the settings of the result.
        pieces: pieces in the order of their ids.
        special: ids of the special tokens.
    """
    model = _Model(pieces=pieces)
    model.trainer_spec.CopyFrom(source.trainer_spec)
    model.normalizer_spec.CopyFrom(source.normalizer_spec)
    control = {*special.ids, *special.sentinels}
    for token_id, piece in enumerate(model.pieces):
        if token_id == special.unk:
            piece.type = _Piece.UNKNOWN
        elif token_id in control or piece.type == _Piece.UNKNOWN:
            piece.type = _Piece.CONTROL
    return model.SerializeToString(deterministic=True)


def _piece(text: str, score: float = 0.0) -> _Piece:
    return _Piece(piece=text, score=score, type=_Piece.NORMAL)
