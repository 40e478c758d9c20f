"""Readers for SentencePiece vocabularies in Hugging Face folders."""

import base64
import itertools
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.hub.tokenizers import parts
from macaron_tf.hub.tokenizers.folder import (
    MEND,
    SENTINEL,
    Tokenizer,
    sentinels_of,
    special_of,
)
from macaron_tf.hub.tokenizers.proof import finish
from macaron_tf.io.paths import refuse_damage
from macaron_tf.text import NormalizationConfig, PieceVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary

_Model: TypeAlias = sentencepiece_model_pb2.ModelProto
_Piece: TypeAlias = sentencepiece_model_pb2.ModelProto.SentencePiece
_SCORE_PENALTY = 100.0  # makes any other segmentation of a word preferable


def read_sentencepiece(tokenizer: Tokenizer, role: str) -> PieceVocabulary:
    """Reads a tokenizer of SentencePiece, such as XLM-R's, ALBERT's, XLNet's, T5's or Llama's.

    T5's tokenizer also has sentinels, the tokens `<extra_id_0>`, `<extra_id_1>` and so on, which T5
    puts in place of corrupted spans. Text never matches a special token of the vocabulary.
    """
    source, pieces = _sentencepiece_model(tokenizer)
    names = [piece.piece for piece in pieces]
    if role == "t5" and not any(map(SENTINEL.fullmatch, names)):
        # The model's file lacks sentinels, which follow its pieces in reverse order.
        count = tokenizer.options.get("extra_ids", 100)
        names += [f"<extra_id_{number}>" for number in reversed(range(count))]
        pieces += map(_piece, names[-count:])
    token_ids = {name: token_id for token_id, name in enumerate(names)}
    sentinels = sentinels_of(token_ids) if role == "t5" else {}
    ids = tokenizer.special_ids(token_ids, role)
    special = special_of(ids, len(pieces), sentinels)
    special_names = {names[token_id] for token_id in ids if token_id is not None}
    is_xlnet, spec = "<cls>" in special_names, source.normalizer_spec
    if is_xlnet and tokenizer.file:
        # XLNet's tokenizer splits pieces that end in a digit and a comma again. A score penalty has
        # the same effect. The scores in `tokenizer.json` include the penalty.
        for piece in pieces:
            if re.search(r"\d,$", piece.piece) and piece.type == _Piece.NORMAL:
                piece.score -= _SCORE_PENALTY
    # XLM-R's SentencePiece model normalizes text. XLNet and ALBERT strip accents before
    # SentencePiece.
    is_framed = role in ("encoder", "sequence")
    fold_accents = is_framed and "<s>" not in special_names
    if tokenizer.package:
        options = _read_steps(tokenizer, spec)
    elif role == "language":
        options = {"verbatim": True}
    else:
        _check_options(tokenizer)
        # By default ALBERT lower-cases and XLNet does not.
        lower_case = tokenizer.options.get("do_lower_case", fold_accents and not is_xlnet)
        config = NormalizationConfig(lower_case=bool(lower_case))
        options = {"normalization": config, "fold_accents": fold_accents, "verbatim": True}
        options["spaces"] = parts.LEFT_SPACES[bool(spec.precompiled_charsmap)]
    if is_framed:
        separators = tokenizer.separators(1 if fold_accents else 2)
        options |= {"pair_separators": separators, "cls_last": is_xlnet}
    model = _Model(pieces=pieces)
    model.trainer_spec.CopyFrom(source.trainer_spec)
    model.normalizer_spec.CopyFrom(spec)
    control = {*special.ids, *special.sentinels}
    for token_id, piece in enumerate(model.pieces):
        if token_id == special.unk:
            piece.type = _Piece.UNKNOWN
        elif token_id in control or piece.type == _Piece.UNKNOWN:
            piece.type = _Piece.CONTROL
    proto = model.SerializeToString(deterministic=True)
    return finish(SentencePieceVocabulary(proto, special=special, **options), tokenizer, role)


def _check_options(tokenizer: Tokenizer) -> None:
    """Refuses options of a folder without `tokenizer.json` that change ids."""
    options = tokenizer.options
    for name, value in (("keep_accents", False), ("sp_model_kwargs", {}), ("remove_space", True)):
        if options.get(name) not in (None, value):
            raise tokenizer.refusal(f"{name}={options[name]!r}", "tokenizer_config.json")
    if tokenizer.added and options.get("legacy") is False:
        raise tokenizer.refusal("both added tokens and legacy=False", "tokenizer_config.json")


def _read_steps(tokenizer: Tokenizer, spec: Any) -> dict[str, Any]:
    """Reads the steps around a SentencePiece model as arguments, and changes `spec`."""
    steps, words = tokenizer.normalizers, tokenizer.pre_tokenizers
    prepends, by_space = parts.PREPEND in steps, parts.WHITE_SPACE in words
    scheme = "never"
    for step in (step for step in words if step["type"] == "Metaspace"):
        is_first = step.get("add_prefix_space", True)  # in early files
        scheme = step.get("prepend_scheme", "always" if is_first else "never")
    patterns = [step.get("pattern") for step in steps]
    spec.add_dummy_prefix = prepends or scheme != "never"
    spec.remove_extra_whitespaces = by_space or parts.SINGLE_SPACES["pattern"] in patterns
    if not spec.remove_extra_whitespaces:  # as in Llama
        return {"verbatim": True, "shares_space": scheme != "never" and not prepends}
    fold_accents, cleans, nonprinting, lower_case = (group[0] in steps for group in parts.STEPS)
    tables = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    if not tokenizer.file:
        spec.precompiled_charsmap = base64.b64decode("".join(tables))
    config = NormalizationConfig(
        lower_case=lower_case or parts.LOWERCASE in steps, remove_nonprinting=nonprinting
    )
    spaces = parts.LEFT_SPACES[bool("".join(tables))] if by_space and not cleans else ""
    return {
        "normalization": config,
        "fold_accents": fold_accents,
        "verbatim": not cleans,
        "spaces": spaces,
    }


def _sentencepiece_model(tokenizer: Tokenizer) -> tuple[_Model, list[_Piece]]:
    """Reads a SentencePiece model file, or builds a model without pieces from `tokenizer.json`.

    Also returns all pieces and added tokens in the order of the Hugging Face ids. The caller must
    use this list instead of `model.pieces`, which may be empty or in another order.
    """
    model = _Model()
    if tokenizer.file:
        try:
            model.ParseFromString(tokenizer.file.read_bytes())
        except Exception:  # protobuf's DecodeError differs between its versions
            raise UserError(f"{tokenizer.file} is not a SentencePiece model: {MEND}") from None
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
        if tokenizer.model.get("type") == "BPE":
            model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
            pieces = _merged_pieces(tokenizer)
        else:
            pieces = [_piece(text, score) for text, score in tokenizer.model["vocab"]]
        if tokenizer.model.get("byte_fallback"):
            model.trainer_spec.byte_fallback = True
            by_name = {piece.piece: piece for piece in pieces}
            for byte in range(256):
                by_name[f"<0x{byte:02X}>"].type = _Piece.BYTE
        for token in tokenizer.tokenizer_json.get("added_tokens") or ():
            if token["id"] < len(pieces):
                special = token.get("special")
                pieces[token["id"]].type = _Piece.CONTROL if special else _Piece.USER_DEFINED
    return model, _with_added_pieces(tokenizer, pieces)


def _merged_pieces(tokenizer: Tokenizer) -> list[_Piece]:
    """Returns the pieces of a BPE model, whose scores give its merges in SentencePiece.

    SentencePiece merges two pieces whenever the result is a piece. The best score goes first.
    """
    _, merges = tokenizer.ids_and_merges()
    results = [merge.replace(" ", "") for merge in merges]
    ranks = {result: -float(rank) for rank, result in enumerate(dict.fromkeys(results))}
    token_ids = tokenizer.model["vocab"]
    scores = [(name, ranks.get(name, 0.0)) for name in sorted(token_ids, key=token_ids.get)]
    derived = {" ".join(merge) for merge in derived_merges(scores, {*tokenizer.all_added})}
    is_grouped = [*ranks] == [result for result, _ in itertools.groupby(results)]
    if not is_grouped or derived != {*merges} or {*token_ids.values()} != {*range(len(scores))}:
        raise tokenizer.refusal("merges that are not those of a SentencePiece model")
    return [_piece(name, score) for name, score in scores]


def derived_merges(pieces: Sequence[tuple[str, float]], special: set[str]) -> list[list[str]]:
    """Derives the merges of a SentencePiece BPE model from the scores of its pieces.

    `pieces` has the text and score of each piece, in the order of the ids. No merge produces a text
    in `special`. The merges are in the order in which BPE applies them.
    """
    piece_ids = {name: piece_id for piece_id, (name, _) in enumerate(pieces) if name not in special}
    scores, merges = dict(pieces), []
    for name in piece_ids:
        splits = ((name[:i], name[i:]) for i in range(1, len(name)))
        pairs = [pair for pair in splits if pair[0] in piece_ids and pair[1] in piece_ids]
        merges += sorted(pairs, key=lambda pair: (piece_ids[pair[0]], piece_ids[pair[1]]))
    return [[*pair] for pair in sorted(merges, key=lambda pair: -scores["".join(pair)])]


def _with_added_pieces(tokenizer: Tokenizer, pieces: list[_Piece]) -> list[_Piece]:
    """Appends added tokens to the pieces of a SentencePiece model, and returns the pieces.

    The function appends the tokens in `tokenizer.all_added` whose ids follow the ids of the pieces,
    and unused pieces for ids between them. The function also removes tokens that were already in
    `pieces` from `tokenizer.added`, because SentencePiece itself finds these tokens in text, unless
    the files list them as added tokens that are not special.
    """
    listed = {name for name, token in tokenizer.entries.items() if not token.get("special")}
    added, count = tokenizer.added.items(), len(pieces)
    tokenizer.added = {name: n for name, n in added if n >= count or name in listed}
    for name, token_id in sorted(tokenizer.all_added.items(), key=lambda item: item[1]):
        given = f"{tokenizer.directory} gives the added token {name!r} the id {token_id}"
        if token_id >= 2 * len(pieces):
            raise UserError(f"{given}, far from its {len(pieces)} pieces: {MEND}")
        if token_id < len(pieces) and pieces[token_id].piece != name:
            raise UserError(f"{given} of the piece {pieces[token_id].piece!r}: {MEND}")
        if token_id >= len(pieces):
            gap = range(len(pieces), token_id)
            pieces += [_Piece(piece=f"<unused {n}>", type=_Piece.UNUSED) for n in gap]
            pieces.append(_piece(name))
    return pieces


def _piece(text: str, score: float = 0.0) -> _Piece:
    return _Piece(piece=text, score=score, type=_Piece.NORMAL)
