"""Readers for SentencePiece vocabularies in Hugging Face folders."""

import base64
import itertools
import pathlib
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.hub.tokenizers import parts
from macaron_tf.hub.tokenizers.folder import MEND, SENTINEL, Tokenizer, special_of
from macaron_tf.hub.tokenizers.parts import take
from macaron_tf.hub.tokenizers.proof import finish
from macaron_tf.io.paths import refuse_damage
from macaron_tf.special import Special
from macaron_tf.text import NormalizationConfig, PieceVocabulary
from macaron_tf.text.sentencepiece import WORD_START, SentencePieceVocabulary

_Model: TypeAlias = sentencepiece_model_pb2.ModelProto
_Piece: TypeAlias = sentencepiece_model_pb2.ModelProto.SentencePiece
_SCORE_PENALTY = 100.0  # makes any other segmentation of a word preferable


def _take_metaspace(
    tokenizer: Tokenizer, steps: list[dict[str, Any]], is_split: bool
) -> str | None:
    """Removes the pre-tokenizer Metaspace from `steps`, and returns its `prepend_scheme`.

    Our graphs add a space to each part of a text between added tokens.
    """
    schemes = ("always", "first", "never")
    found = (name for name in schemes if take(steps, parts.metaspace(name, is_split)))
    scheme = next(found, None)
    if tokenizer.added and scheme == "first":
        raise tokenizer.refusal("both added tokens and prepend_scheme=first")
    if tokenizer.added and not scheme and tokenizer.options.get("legacy") is False:
        raise tokenizer.refusal("both added tokens and legacy=False", "tokenizer_config.json")
    return scheme


def _read_steps(
    tokenizer: Tokenizer, spec: Any, fold_accents: bool = False, lower_case: bool = False
) -> dict[str, Any]:
    """Reads the steps around a unigram model as arguments of `SentencePieceVocabulary`.

    The function changes `spec`, the settings of SentencePiece's own normalizer. `fold_accents` and
    `lower_case` apply if the folder has no steps.
    """
    options = tokenizer.options
    for name, value in (("keep_accents", False), ("sp_model_kwargs", {}), ("remove_space", True)):
        if options.get(name) not in (None, value):
            raise tokenizer.refusal(f"{name}={options[name]!r}", "tokenizer_config.json")
    tokenizer.check_model("Unigram", byte_fallback=(None, False, True))
    words = [*(tokenizer.pre_tokenizers or ())]
    by_space = take(words, parts.WHITE_SPACE)
    scheme = _take_metaspace(tokenizer, words, is_split=True)
    if tokenizer.pre_tokenizers is None:
        config = NormalizationConfig(lower_case=lower_case)
        changes = {"normalization": config, "fold_accents": fold_accents}
        spaces = parts.LEFT_SPACES[bool(spec.precompiled_charsmap)]
        return {**changes, "verbatim": True, "spaces": spaces}
    steps = [*(tokenizer.normalizers or ())]
    fold_accents, cleans, nonprinting, lower_case = (take(steps, *group) for group in parts.STEPS)
    lower_case = lower_case or take(steps, parts.LOWERCASE)
    is_stripped = take(steps, parts.STRIP)
    if fold_accents:
        take(steps, parts.NFC)
    table = b""
    if steps and steps[0].get("type") == "Precompiled":
        table = base64.b64decode(steps.pop(0)["precompiled_charsmap"])
    is_stripped |= take(steps, parts.STRIP) or take(steps, {**parts.STRIP, "strip_left": False})
    single = parts.SINGLE_SPACES
    is_single = take(steps, single) or take(steps, {**single, "content": WORD_START})
    tokenizer.refuse_steps("normalizer", steps)
    tokenizer.refuse_steps("pre-tokenizer", words, bool(scheme))
    if not by_space and not (is_stripped and is_single):
        raise tokenizer.refusal("steps that keep repeated spaces")
    spec.add_dummy_prefix, spec.remove_extra_whitespaces = scheme != "never", True
    if not tokenizer.file:
        spec.precompiled_charsmap = table
    config = NormalizationConfig(lower_case=lower_case, remove_nonprinting=nonprinting)
    changes = {"normalization": config, "fold_accents": fold_accents}
    spaces = parts.LEFT_SPACES[bool(table)] if by_space and not cleans else ""
    return {**changes, "verbatim": not cleans, "spaces": spaces}


def read_llama(tokenizer: Tokenizer) -> SentencePieceVocabulary:
    """Reads the tokenizer of a Llama 2 model, which is a SentencePiece BPE tokenizer.

    Without the file `tokenizer.model`, the model is that of `tokenizer.json`. If padding and [MASK]
    are missing, they have ids after all tokens.
    """
    model, pieces, names = _sentencepiece_model(tokenizer)
    defaults = {"unk_token": ("<unk>",), "bos_token": ("<s>",), "eos_token": ("</s>",)}
    ids = [names.index(name) for name in tokenizer.special_tokens(names, defaults)]
    pad = tokenizer.token("pad_token")
    pad_id = names.index(pad) if pad in names else None
    ids = [None if pad_id in ids else pad_id, *ids, None]
    steps, spec = [*(tokenizer.normalizers or ())], model.normalizer_spec
    prepends, by_space = take(steps, parts.PREPEND), take(steps, parts.SPACES)
    tokenizer.refuse_steps("normalizer", steps)
    steps = [*(tokenizer.pre_tokenizers or ())]
    scheme = _take_metaspace(tokenizer, steps, is_split=False)
    if by_space:  # without effect, because the text has no spaces any more
        take(steps, parts.SPLIT_SPACES)
    is_known = tokenizer.pre_tokenizers is not None
    tokenizer.refuse_steps("pre-tokenizer", steps, bool(scheme) or by_space or not is_known)
    if is_known:
        spec.add_dummy_prefix = prepends or scheme in ("always", "first")
        spec.remove_extra_whitespaces = False
    tokenizer.check_model("Unigram", byte_fallback=(True,))
    shares_space = scheme in ("always", "first") and not prepends
    options = {"verbatim": True, "shares_space": shares_space}
    return _vocabulary(tokenizer, model, pieces, special_of(ids, len(pieces)), **options)


def _vocabulary(
    tokenizer: Tokenizer, source: _Model, pieces: list[_Piece], special: Special, **options
) -> SentencePieceVocabulary:
    """Builds a vocabulary equal to `tokenizer`, in which text never matches a special token.

    `source` supplies the settings. `pieces` are in the order of their ids.
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
    proto = model.SerializeToString(deterministic=True)
    return finish(SentencePieceVocabulary(proto, special=special, **options), tokenizer)


def read_t5_vocabulary(directory: pathlib.Path) -> PieceVocabulary:
    """Reads the tokenizer of a T5 model, which is a SentencePiece unigram tokenizer.

    The tokenizer also has sentinels, the tokens `<extra_id_0>`, `<extra_id_1>` and so on, which T5
    puts in place of corrupted spans. If macaron_tf did not export the model, T5's decoder starts
    with the padding token, and [MASK] has an id after all tokens.
    """
    tokenizer = Tokenizer(directory, ["spiece.model"])
    model, pieces, names = _sentencepiece_model(tokenizer)
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
    special = special_of(ids, len(pieces), sentinels)
    tokenizer.check_frame("sequence", (None, names[end], None))
    options = _read_steps(tokenizer, model.normalizer_spec)
    return _vocabulary(tokenizer, model, pieces, special, **options)


def read_sentencepiece(tokenizer: Tokenizer, role: str = "encoder") -> PieceVocabulary:
    """Reads the tokenizer of an XLM-R, ALBERT or XLNet model (see `read_vocabulary`)."""
    model, pieces, names = _sentencepiece_model(tokenizer)
    special_names = tokenizer.special_tokens(set(names))
    # XLM-R's SentencePiece model normalizes text. XLNet and ALBERT strip accents before
    # SentencePiece.
    is_xlnet, fold_accents = "<cls>" in special_names, "<s>" not in special_names
    tokenizer.check_frame(role, special_names[2:], is_xlnet)
    if is_xlnet and tokenizer.file:
        # XLNet's tokenizer splits pieces that end in a digit and a comma again. A score penalty has
        # the same effect. The scores in `tokenizer.json` include the penalty.
        for piece in pieces:
            if re.search(r"\d,$", piece.piece) and piece.type == _Piece.NORMAL:
                piece.score -= _SCORE_PENALTY
    separators = tokenizer.separators(1 if fold_accents else 2)
    # By default ALBERT lower-cases and XLNet does not.
    lower_case = tokenizer.options.get("do_lower_case", fold_accents and not is_xlnet)
    options = _read_steps(tokenizer, model.normalizer_spec, fold_accents, bool(lower_case))
    options |= {"pair_separators": separators, "cls_last": is_xlnet}
    special = special_of([names.index(name) for name in special_names], len(pieces))
    return _vocabulary(tokenizer, model, pieces, special, **options)


def _sentencepiece_model(tokenizer: Tokenizer) -> tuple[_Model, list[_Piece], list[str]]:
    """Reads a SentencePiece model file, or builds a model without pieces from `tokenizer.json`.

    Also returns all pieces and added tokens in the order of the Hugging Face ids, and their names.
    The caller must use this list instead of `model.pieces`, which may be empty or in another order.
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
        return model, *_with_added_pieces(tokenizer, pieces)
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
            for name in (f"<0x{byte:02X}>" for byte in range(256)):
                if name not in by_name:
                    raise ValueError(f"byte_fallback=true without the token {name}")
                by_name[name].type = _Piece.BYTE
        for token in tokenizer.tokenizer_json.get("added_tokens") or ():
            if token["id"] < len(pieces):
                special = token.get("special")
                pieces[token["id"]].type = _Piece.CONTROL if special else _Piece.USER_DEFINED
    return model, *_with_added_pieces(tokenizer, pieces)


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


def _with_added_pieces(
    tokenizer: Tokenizer, pieces: list[_Piece]
) -> tuple[list[_Piece], list[str]]:
    """Appends added tokens to the pieces of a SentencePiece model, and returns them with the names.

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
    return pieces, [piece.piece for piece in pieces]


def _piece(text: str, score: float = 0.0) -> _Piece:
    return _Piece(piece=text, score=score, type=_Piece.NORMAL)
