"""Readers for vocabularies in Hugging Face folders and KerasHub presets.

A reader takes the options of a vocabulary from the steps that it knows, and `finish` proves the ids
of the vocabulary by those of `tokenizer.json`: any other step, field or flag makes a difference.
"""

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.tokenizers import parts
from macaron_tf.hub.tokenizers.folder import MEND, SPECIAL, Tokenizer, special_of
from macaron_tf.hub.tokenizers.proof import finish
from macaron_tf.hub.tokenizers.sentencepiece import read_sentencepiece
from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.special import SPECIAL_PIECES
from macaron_tf.text import PieceVocabulary, WordPieceVocabulary
from macaron_tf.text.byte_pairs import (
    WORD_END,
    BytePairVocabulary,
    CharacterPairVocabulary,
    MosesPairVocabulary,
)

_OTHER = "give another tokenizer"
GIVE_CASE = "give lower_case=True or False in Python, or --[no-]lower-case in a command"
_XLM_SPECIAL = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<special1>",
}
# Values of BERT's basic tokenizer that `tokenizer_config.json` may have.
_BASIC = {
    "do_basic_tokenize": True,
    "never_split": [],
    "tokenize_chinese_chars": True,
    **dict(zip(SPECIAL, SPECIAL_PIECES, strict=True)),
}


def refuse_lower_case(lower_case: bool | None, location: str | os.PathLike) -> None:
    """Raises a UserError if `lower_case` is not `None`."""
    if lower_case is not None:
        use = "lower_case (--[no-]lower-case) is for files that do not say whether to lower-case"
        raise UserError(f"{use}, unlike {location}: leave lower_case out")


def read_vocabulary(
    directory: pathlib.Path, lower_case: bool | None = None, role: str = "encoder"
) -> PieceVocabulary:
    """Reads a Hugging Face tokenizer: WordPiece, byte-level or GPT's BPE, or SentencePiece.

    Args:
        lower_case: whether to lower-case text. The argument is required for a WordPiece tokenizer
            whose files lack this setting, and must be `None` otherwise.
        role: what the model does with a text, see `Tokenizer.special_ids`.
    """
    return _read(Tokenizer(directory), lower_case, role)


def _read(tokenizer: Tokenizer, lower_case: bool | None, role: str) -> PieceVocabulary:
    kinds = {"t5": ("Unigram",), "language": ("BPE", "Unigram")}
    if role == "language" and tokenizer.frame:  # which says how texts begin
        kinds = {}
    if tokenizer.kind not in kinds.get(role, ("BPE", "Unigram", "WordPiece")):
        raise tokenizer.refusal(f"a vocabulary of the kind {tokenizer.kind}", "")
    if tokenizer.kind == "Unigram":
        return read_sentencepiece(tokenizer, role)
    if tokenizer.kind == "WordPiece":
        return finish(_read_wordpiece(tokenizer, lower_case), tokenizer, role)
    token_ids, merges = tokenizer.ids_and_merges()
    if any(name.endswith(WORD_END) for name in token_ids):
        unknown = token_ids.get(tokenizer.token("unk_token") or "<unk>")
        ids = [None, unknown, None, None, None]  # GPT has no other special token
        return _pairs(CharacterPairVocabulary, tokenizer, (token_ids, merges), ids, role)
    ids = tokenizer.special_ids(token_ids, role)
    options = _byte_level_options(tokenizer)
    if role != "language":
        names = {token_id: name for name, token_id in (tokenizer.all_added | token_ids).items()}
        # RoBERTa separates two texts by two tokens.
        options["pair_separators"] = tokenizer.separators(2 if names[ids[2]] == "<s>" else 1)
        options["mask_takes_space"] = tokenizer.takes_space(names[ids[4]])
    return _pairs(BytePairVocabulary, tokenizer, (token_ids, merges), ids, role, **options)


def _byte_level_options(tokenizer: Tokenizer) -> dict[str, Any]:
    steps, words = tokenizer.normalizers, tokenizer.pre_tokenizers
    splits = [step.get("pattern") for step in words]
    pattern = next((n for n, split in parts.SPLITS.items() if split in splits), "gpt2")
    if pattern == "llama3" and not tokenizer.model.get("ignore_merges"):
        pattern = "cl100k"
    spaced = [step for step in words if step["type"] == "ByteLevel"] or [tokenizer.options]
    return {
        "lower_case": parts.LOWERCASE in steps,
        "add_prefix_space": bool(spaced[0].get("add_prefix_space")),
        "composed": parts.NFC in steps,
        "pattern": pattern,
    }


def _pairs(
    kind: Any,
    tokenizer: Tokenizer,
    pairs: tuple[Mapping, Sequence],
    ids: Sequence[int | None],
    role: str,
    **options,
) -> Any:
    """Builds a BPE vocabulary of pieces and merges, with special tokens of these `ids`."""
    special = {name: n for name, n in tokenizer.all_added.items() if n in ids}
    units = _in_id_order(pairs[0] | special, tokenizer.directory)
    vocabulary = kind(units, pairs[1], special=special_of(ids, len(units)), **options)
    return finish(vocabulary, tokenizer, role)


def read_language_vocabulary(directory: pathlib.Path) -> tuple[PieceVocabulary, bool]:
    """Reads a language model's tokenizer. Also returns whether texts begin with [CLS].

    A tokenizer with a `cls_token` comes from a model that macaron_tf exported.
    """
    tokenizer = Tokenizer(directory)
    vocabulary = _read(tokenizer, None, "language")
    adds_begin = tokenizer.options.get("add_bos_token")
    if tokenizer.frame:
        return vocabulary, bool(tokenizer.frame[0])
    if tokenizer.token("cls_token"):
        return vocabulary, True
    if tokenizer.kind == "Unigram":
        return vocabulary, adds_begin is not False
    if isinstance(vocabulary, BytePairVocabulary) and vocabulary.pattern != "gpt2":
        return vocabulary, vocabulary.special.begin != vocabulary.special.end
    return vocabulary, bool(adds_begin)


def read_xlm_vocabulary(
    directory: pathlib.Path, languages: Sequence[str] = ()
) -> MosesPairVocabulary:
    """Reads an XLM's tokenizer; `languages` are in the order of the language embeddings."""
    tokenizer = Tokenizer(directory)
    token_ids, merges = tokenizer.ids_and_merges()
    with refuse_damage(directory, MEND):
        ids = [token_ids[tokenizer.token(field) or n] for field, n in _XLM_SPECIAL.items()]
    # In some files, fastBPE's count follows each merge.
    merges = [" ".join(merge.split()[:2]) for merge in merges]
    lower_case = bool(tokenizer.options.get("do_lowercase_and_remove_accent", True))
    options = {"languages": languages, "lower_case": lower_case}
    return _pairs(MosesPairVocabulary, tokenizer, (token_ids, merges), ids, "encoder", **options)


def _read_wordpiece(tokenizer: Tokenizer, lower_case: bool | None) -> WordPieceVocabulary:
    """Reads a WordPiece tokenizer, with `lower_case` if and only if no file sets it."""
    directory, options = tokenizer.directory, tokenizer.options
    stated = [step["lowercase"] for step in tokenizer.normalizers if "lowercase" in step]
    stated = stated or [*filter(lambda v: v is not None, [options.get("do_lower_case")])]
    if stated:
        refuse_lower_case(lower_case, directory)
        lower_case = bool(stated[0])
    if lower_case is None:
        raise UserError(f"no file in {directory} says whether text is lower-cased: {GIVE_CASE}")
    # BERT strips accents if and only if it lower-cases.
    for field, value in {**_BASIC, "strip_accents": lower_case}.items():
        actual = tokenizer.token(field) if field in SPECIAL else options.get(field)
        if actual not in (None, value):
            found = f"the tokenizer of {directory} has {field}={actual!r}"
            raise UserError(f"{found}, but only {value!r} can be read: {_OTHER}")
    piece_ids = tokenizer.model.get("vocab")
    if tokenizer.file:
        words = WordPieceVocabulary.from_file(tokenizer.file, lower_case).words
        piece_ids = {word: word_id for word_id, word in enumerate(words)}
    pieces = _in_id_order(piece_ids | tokenizer.all_added, directory)
    # The file of a WordPiece vocabulary has one piece per line, and so no piece with a line end.
    pieces = ["" if re.search(r"[\r\n]", piece) else piece for piece in pieces]
    return WordPieceVocabulary(pieces, lower_case)


def _in_id_order(piece_ids: Mapping[str, int], path: pathlib.Path) -> tuple[str, ...]:
    """Returns the subword tokens in the order of their ids, "" at an unused id."""
    pieces = {piece_id: piece for piece, piece_id in piece_ids.items()}
    with refuse_damage(path, MEND):
        size = min(1 + max(pieces), 2 * len(piece_ids))
    for piece, piece_id in piece_ids.items():
        if not 0 <= piece_id < size or pieces[piece_id] != piece:
            owner = f"which is beyond {size - 1} or belongs to {pieces[piece_id]!r}"
            raise UserError(f"{path} gives the token {piece!r} the id {piece_id}, {owner}: {MEND}")
    return tuple(pieces.get(piece_id, "") for piece_id in range(size))


def read_keras_hub_vocabulary(directory: pathlib.Path) -> PieceVocabulary:
    """Reads the tokenizer of a KerasHub preset, WordPiece or byte-level BPE."""
    record, assets = directory / "tokenizer.json", directory / "assets/tokenizer"
    fields = read_json(record, mend="download or copy the preset again", config=dict)
    config = ForeignConfig(fields["config"], str(record))
    if (assets / "vocabulary.json").is_file():
        config.require({"add_prefix_space": False})
        is_gpt2 = fields.get("class_name") == "GPT2Tokenizer"
        return read_vocabulary(assets, role="language" if is_gpt2 else "encoder")
    config.require({"split": True, "suffix_indicator": "##", "oov_token": "[UNK]"})
    lower_case = bool(config.get("lowercase", False))
    if not lower_case:  # `WordPieceVocabulary` strips accents only if it lower-cases
        config.require({"strip_accents": False})
    return WordPieceVocabulary.from_file(assets / "vocabulary.txt", lower_case=lower_case)
