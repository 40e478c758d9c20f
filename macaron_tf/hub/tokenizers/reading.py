"""Readers for vocabularies in Hugging Face folders and KerasHub presets."""

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.tokenizers import parts
from macaron_tf.hub.tokenizers.folder import MEND, SENTINEL, SPECIAL, Tokenizer, special_of
from macaron_tf.hub.tokenizers.proof import finish
from macaron_tf.hub.tokenizers.sentencepiece import read_llama, read_sentencepiece
from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.special import SPECIAL_PIECES
from macaron_tf.text import PieceVocabulary, TokenizerJsonVocabulary, WordPieceVocabulary
from macaron_tf.text.byte_pairs import (
    WORD_END,
    BytePairVocabulary,
    CharacterPairVocabulary,
    MosesPairVocabulary,
)

_OTHER = "give another tokenizer"
GIVE_CASE = "give lower_case=True or False in Python, or --[no-]lower-case in a command"
_XLM_SPECIAL = {
    "pad_token": ("<pad>",),
    "unk_token": ("<unk>",),
    "bos_token": ("<s>",),
    "sep_token": ("</s>",),
    "mask_token": ("<special1>",),
}
# BERT's basic tokenizer: the normalizer, and values that `tokenizer_config.json` may have.
_BERT = {"type": "BertNormalizer", "clean_text": True}
_BASIC = {
    "do_basic_tokenize": True,
    "never_split": [],
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
}
# Dict mapping the name of a vocabulary file to the type of the model in `tokenizer.json`.
_MODEL_TYPES = {
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "vocabulary.json": "BPE",  # in KerasHub presets
    "spiece.model": "Unigram",
    "sentencepiece.bpe.model": "Unigram",
}


def refuse_lower_case(lower_case: bool | None, location: str | os.PathLike) -> None:
    """Raises a UserError if `lower_case` is not `None`."""
    if lower_case is not None:
        use = "lower_case (--[no-]lower-case) is for files that do not say whether to lower-case"
        raise UserError(f"{use}, unlike {location}: leave lower_case out")


def read_vocabulary(
    directory: pathlib.Path, lower_case: bool | None = None, role: str = "encoder"
) -> PieceVocabulary:
    """Reads a Hugging Face tokenizer: WordPiece, byte-level BPE or SentencePiece.

    Args:
        lower_case: whether to lower-case text. The argument is required for a WordPiece tokenizer
            whose files lack this setting, and must be `None` otherwise.
        role: what the model does with a text, see `Tokenizer.check_frame`.
    """
    tokenizer = Tokenizer(directory, _MODEL_TYPES)
    model_type = _MODEL_TYPES[tokenizer.file.name] if tokenizer.file else None
    # Early WordPiece files lack the type. A SentencePiece model may be a BPE.
    if model_type != "Unigram":
        model_type = tokenizer.model.get("type") or model_type
    if model_type == "BPE":
        token_ids, merges, options = tokenizer.byte_pairs()
        names = tokenizer.special_tokens(tokenizer.all_added | token_ids)
        token_ids |= {name: tokenizer.all_added[name] for name in names if name not in token_ids}
        tokenizer.check_frame(role, names[2:])
        # RoBERTa separates two texts by two tokens. Other byte-level BPE models read single texts.
        options["pair_separators"] = tokenizer.separators(2 if "<s>" in names else 1)
        options["mask_takes_space"] = tokenizer.takes_space(names[4])
        ids = [token_ids[name] for name in names]
        return _pairs(BytePairVocabulary, tokenizer, (token_ids, merges), ids, **options)
    if model_type == "Unigram":
        return read_sentencepiece(tokenizer, role)
    tokenizer.check_frame(role, SPECIAL_PIECES[2:])
    return _read_wordpiece(tokenizer, lower_case)


def _pairs(
    kind: Any, tokenizer: Tokenizer, pairs: tuple[Mapping, Sequence], ids: Sequence, **options
) -> Any:
    """Builds a BPE vocabulary of pieces and merges, with special tokens of these `ids`."""
    units = _in_id_order(pairs[0], tokenizer.directory)
    vocabulary = kind(units, pairs[1], special=special_of(ids, len(units)), **options)
    return finish(vocabulary, tokenizer)


def _read_gpt2(tokenizer: Tokenizer) -> BytePairVocabulary:
    """Reads the tokenizer of a GPT-2 or Llama 3 model.

    GPT-2 uses one special token for both the beginning and the end of a text, so [CLS] and [SEP]
    have the same id. Llama 3 has a separate token for each. If padding and [MASK] are missing, they
    have ids after all tokens.
    """
    token_ids, merges, options = tokenizer.byte_pairs()
    added, names = tokenizer.all_added, {"eos_token": ("<|endoftext|>",)}
    [end] = tokenizer.special_tokens(added | token_ids, names)
    start, padding = tokenizer.token("bos_token"), tokenizer.token("pad_token")
    token_ids |= {name: added[name] for name in (start, end, padding) if name in added}
    ends = token_ids[start if start in token_ids else end], token_ids[end]
    pad = token_ids.get(padding)
    ids = [None if pad in ends else pad, None, *ends, None]
    return _pairs(BytePairVocabulary, tokenizer, (token_ids, merges), ids, **options)


def _read_gpt(tokenizer: Tokenizer) -> CharacterPairVocabulary:
    """Reads the tokenizer of a GPT, which is a character-level BPE.

    Text is lower-cased and split into words as in BERT. PAD, [CLS], [SEP] and [MASK], which the
    tokenizer lacks, have ids after all tokens.
    """
    allowed = [parts.bert_normalizer(True, strip_accents) for strip_accents in (True, None)]
    tokenizer.require_steps("normalizer", tokenizer.normalizers, *allowed)
    tokenizer.require_steps("pre-tokenizer", tokenizer.pre_tokenizers, parts.BERT_WORDS)
    tokenizer.check_model("GPT", fuse_unk=(None, False), end_of_word_suffix=(WORD_END,))
    token_ids, merges = tokenizer.ids_and_merges()
    [unknown] = tokenizer.special_tokens(token_ids, {"unk_token": ("<unk>",)})
    ids = [None, token_ids[unknown], None, None, None]
    return _pairs(CharacterPairVocabulary, tokenizer, (token_ids, merges), ids)


def read_language_vocabulary(directory: pathlib.Path) -> tuple[PieceVocabulary, bool]:
    """Reads a language model's tokenizer. Also returns whether texts begin with [CLS].

    A folder with the file `tokenizer.model` is read as a Llama 2 tokenizer. A tokenizer with a
    `cls_token` comes from a model that macaron_tf exported, and may have any type of vocabulary.
    """
    tokenizer = Tokenizer(directory, ["tokenizer.model", "vocab.json", "vocabulary.json"])
    frame, cls = tokenizer.frame, tokenizer.token("cls_token")
    if cls:
        return read_vocabulary(directory, role="language"), not frame or bool(frame[0])
    has_file = (directory / "tokenizer.model").is_file()
    vocabulary: PieceVocabulary
    bos = tokenizer.token("bos_token")
    if has_file or tokenizer.model.get("byte_fallback"):
        tokenizer.file = tokenizer.file if has_file else None  # vocab.json lacks scores
        vocabulary = read_llama(tokenizer)
        starts = tokenizer.options.get("add_bos_token") is not False
    else:
        is_gpt = any(name.endswith(WORD_END) for name in tokenizer.ids_and_merges()[0])
        vocabulary = _read_gpt(tokenizer) if is_gpt else _read_gpt2(tokenizer)
        starts = bool(tokenizer.options.get("add_bos_token"))
        if isinstance(vocabulary, BytePairVocabulary) and vocabulary.pattern != "gpt2":
            starts = bos not in (None, tokenizer.token("eos_token"))
    tokenizer.check_frame("language", (bos, None, None))
    return vocabulary, bool(frame[0]) if frame else starts


def read_python_vocabulary(directory: pathlib.Path) -> TokenizerJsonVocabulary:
    """Reads any `tokenizer.json` as a vocabulary that encodes in Python.

    [CLS] and [SEP] are the first of the tokens `cls_token` and `bos_token`, and of `sep_token` and
    `eos_token`. If there is no [CLS], it is the padding in T5, and else [SEP].
    """
    tokenizer = Tokenizer(directory)
    if not tokenizer.model:
        raise UserError(f"{directory} has no tokenizer.json, which tokenizer='python' needs")
    with refuse_damage(directory / "tokenizer.json", MEND):
        vocab = tokenizer.model["vocab"]
        names = vocab if isinstance(vocab, dict) else {p: n for n, (p, _) in enumerate(vocab)}
    token_ids = {**names, **tokenizer.all_added}

    def find(*fields: str) -> int | None:
        named = [tokenizer.token(field) for field in fields]
        candidates = [name for field in fields for name in SPECIAL.get(field, ())]
        return next((token_ids[name] for name in [*named, *candidates] if name in token_ids), None)

    end = find("sep_token", "eos_token")
    if end is None:
        raise UserError(f"the tokenizer of {directory} has neither sep_token nor eos_token: {MEND}")
    sentinels = {int(m[1]): token_ids[m[0]] for m in map(SENTINEL.fullmatch, token_ids) if m}
    pad, begin = find("pad_token"), find("cls_token", "bos_token")
    if begin is None:
        begin = pad if sentinels else end
    pad = None if pad in (begin, end) and not sentinels else pad
    ids = [pad, find("unk_token"), begin, end, find("mask_token")]
    special = special_of(ids, 1 + max(token_ids.values()), sentinels)
    before, _, after = tokenizer.frame or ([], [], [])
    first, last = ([token_ids.get(name) for name in part] for part in (before, after))
    if first not in ([], [begin]) or last not in ([], [end], [end, begin]):
        added = " ".join([*before, *after])
        raise UserError(f"{directory}/tokenizer.json has a template that adds {added}: {_OTHER}")
    mask = tokenizer.token("mask_token")
    return TokenizerJsonVocabulary(
        json.dumps(tokenizer.tokenizer_json).encode(),
        special,
        pair_separators=tokenizer.separators(1),
        cls_last=len(after) > 1,
        mask_takes_space=mask is not None and tokenizer.takes_space(mask),
    )


def read_xlm_vocabulary(
    directory: pathlib.Path, languages: Sequence[str] = ()
) -> MosesPairVocabulary:
    """Reads an XLM's tokenizer, a character-level BPE on words that Moses' rules split.

    `languages` contains the language codes in the order of the language embeddings.
    """
    tokenizer = Tokenizer(directory, ["vocab.json"])
    token_ids, merges = tokenizer.ids_and_merges()
    ids = [token_ids[name] for name in tokenizer.special_tokens(token_ids, _XLM_SPECIAL)]
    # In some files, fastBPE's count follows each merge.
    merges = [" ".join(merge.split()[:2]) for merge in merges]
    lower_case = bool(tokenizer.options.get("do_lowercase_and_remove_accent", True))
    options = {"languages": languages, "lower_case": lower_case}
    return _pairs(MosesPairVocabulary, tokenizer, (token_ids, merges), ids, **options)


def _read_wordpiece(tokenizer: Tokenizer, lower_case: bool | None) -> WordPieceVocabulary:
    """Reads a WordPiece tokenizer.

    As in transformers, settings in `tokenizer_config.json` override settings in `tokenizer.json`.
    `lower_case` is required if neither file sets it, and refused otherwise.
    """
    directory, steps, settings = tokenizer.directory, tokenizer.normalizers, {**tokenizer.options}
    if steps and steps[0].get("type", _BERT["type"]) == _BERT["type"]:
        step = {**_BERT, **steps[0]}
        names = parts.OVERRIDES["BertNormalizer"].items()
        settings |= {name: step.pop(field, None) for name, field in names}
        steps = [step, *steps[1:]]
    tokenizer.require_steps("normalizer", steps, _BERT)
    tokenizer.require_steps("pre-tokenizer", tokenizer.pre_tokenizers, parts.BERT_WORDS)
    tokenizer.check_model(
        "WordPiece",
        unk_token=(None, "[UNK]"),
        continuing_subword_prefix=(None, "##"),
        max_input_chars_per_word=(None, 100),
    )
    if settings.get("do_lower_case") is not None:
        refuse_lower_case(lower_case, directory)
        lower_case = settings["do_lower_case"]
    if lower_case is None:
        raise UserError(f"no file in {directory} says whether text is lower-cased: {GIVE_CASE}")
    # BERT strips accents if and only if it lower-cases.
    expected = {**_BASIC, "strip_accents": lower_case, "tokenize_chinese_chars": True}
    expected |= {field: piece for field, (_, *_, piece) in SPECIAL.items()}
    for field, value in expected.items():
        actual = tokenizer.token(field) if field in SPECIAL else settings.get(field)
        if actual not in (None, value):
            found = f"the tokenizer of {directory} has {field}={actual!r}"
            raise UserError(f"{found}, but only {value!r} can be read: {_OTHER}")
    piece_ids = tokenizer.model.get("vocab")
    if tokenizer.file and not tokenizer.model:
        words = WordPieceVocabulary.from_file(tokenizer.file, lower_case).words
        piece_ids = {word: word_id for word_id, word in enumerate(words)}
    # Early files lack the type.
    elif tokenizer.model.get("type", "WordPiece") != "WordPiece" or not isinstance(piece_ids, dict):
        raise UserError(f"{directory} has no WordPiece vocabulary: give a BERT's tokenizer")
    pieces = _in_id_order(piece_ids | tokenizer.all_added, directory)
    # The file of a WordPiece vocabulary has one piece per line, and so no piece with a line end.
    pieces = ["" if re.search(r"[\r\n]", piece) else piece for piece in pieces]
    return finish(WordPieceVocabulary(pieces, lower_case), tokenizer)


def _in_id_order(piece_ids: Mapping[str, int], path: pathlib.Path) -> tuple[str, ...]:
    """Returns a tuple in which each subword token is at the index of its id.

    An unused id gets an empty string. Ids are unused, for example, if a vocabulary file repeats a
    token.
    """
    pieces = {piece_id: piece for piece, piece_id in piece_ids.items()}
    with refuse_damage(path, MEND):
        size = min(1 + max(pieces), 2 * len(piece_ids))
    for piece, piece_id in piece_ids.items():
        if not 0 <= piece_id < size:
            ids = f"the id {piece_id}, but ids must be from 0 to {size - 1}"
            raise UserError(f"{path} gives the token {piece!r} {ids}: {MEND}")
        if pieces[piece_id] != piece:
            both = f"both {piece!r} and {pieces[piece_id]!r}"
            raise UserError(f"{path} gives the id {piece_id} to {both}: {MEND}")
    return tuple(pieces.get(piece_id, "") for piece_id in range(size))


def read_keras_hub_vocabulary(directory: pathlib.Path) -> PieceVocabulary:
    """Reads the tokenizer of a KerasHub preset, WordPiece or byte-level BPE."""
    record, assets = directory / "tokenizer.json", directory / "assets/tokenizer"
    fields = read_json(record, mend="download or copy the preset again", config=dict)
    config = ForeignConfig(fields["config"], str(record))
    if (assets / "vocabulary.json").is_file():
        config.require({"add_prefix_space": False})
        if fields.get("class_name") == "GPT2Tokenizer":
            return read_language_vocabulary(assets)[0]
        return read_vocabulary(assets)
    config.require({"split": True, "suffix_indicator": "##", "oov_token": "[UNK]"})
    lower_case = bool(config.get("lowercase", False))
    if not lower_case:  # `WordPieceVocabulary` strips accents only if it lower-cases
        config.require({"strip_accents": False})
    return WordPieceVocabulary.from_file(assets / "vocabulary.txt", lower_case=lower_case)
