"""Export of macaron_tf vocabularies as Hugging Face tokenizers (the inverse of `vocabularies`)."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.interop.foreign_config import json_bytes
from macaron_tf.interop.tokenizer_folder import LLAMA_PRE_TOKENIZER
from macaron_tf.special_ids import BOS, CLS_SEGMENT, PAD, SPECIAL_PIECES
from macaron_tf.text import PieceVocabulary, WordPieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary, MosesPairVocabulary
from macaron_tf.text.sentencepiece import WORD_START, SentencePieceVocabulary

ANY_LENGTH = 10**9
FIELDS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def tokenizer_files(
    vocabulary: PieceVocabulary,
    ids: np.ndarray | None = None,
    *,
    max_length: int | None = None,
    has_segments: bool = True,
) -> dict[str, bytes]:
    """Builds the files of a Hugging Face tokenizer that is equivalent to an encoder's vocabulary.

    Args:
        vocabulary: vocabulary of the encoder.
        ids: int array with the Hugging Face id for each id of the vocabulary, or -1 for a token
            without a Hugging Face id. `None` means that both tokenizers use the same ids.
        max_length: maximum number of tokens in a sequence; `None` means no limit.
        has_segments: whether the second text of a pair has segment id 1 instead of 0.

    Returns:
        A dict mapping file name to contents.

    Raises:
        UserError: Hugging Face's tokenizers cannot normalize or split text as the vocabulary does,
            or `ids` has a gap that a SentencePiece file cannot express.
    """
    for vocabulary_class, write in _WRITERS.items():
        if isinstance(vocabulary, vocabulary_class):
            hugging_face_ids = np.arange(vocabulary.pieces) if ids is None else ids
            return write(vocabulary, hugging_face_ids, max_length, has_segments)
    raise UserError(
        f"a vocabulary of kind {vocabulary.kind!r} has no counterpart among Hugging Face's "
        "tokenizers: export a SavedModel by `macaron export`, which includes the "
        "tokenizer"
    )


def _wordpiece(
    vocabulary: WordPieceVocabulary, ids: np.ndarray, max_length: int | None, has_segments: bool
) -> dict[str, bytes]:
    pieces = vocabulary.words
    parts = {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": vocabulary.lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: int(n) for piece, n in zip(pieces, ids, strict=True) if piece},
        },
    }
    special = dict(zip(FIELDS, SPECIAL_PIECES, strict=True))
    options = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": vocabulary.lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
    }
    special_ids = {name: int(ids[pieces.index(name)]) for name in special.values()}
    files = assemble(
        vocabulary, ids, parts, options, special, special_ids, max_length, has_segments
    )
    return {"vocab.txt": vocabulary.contents(), **files}


def replacement(pattern: str, content: str, pattern_type: str = "String") -> dict[str, Any]:
    """Builds a normalizer for `tokenizer.json` that replaces each match of `pattern` by `content`.

    `pattern_type` is "String" for a literal pattern or "Regex" for a regular expression.
    """
    return {"type": "Replace", "pattern": {pattern_type: pattern}, "content": content}


# Lower-casing. `Lowercase` does not produce the final form of sigma, so a replacement precedes it.
_LOWER = [
    replacement(r"(?<=[\p{L}\p{M}])Σ(?![\p{M}]*\p{L})", "ς", "Regex"),
    {"type": "Lowercase"},
]
# Names of the special tokens in RoBERTa and XLM-R.
_ROBERTA = dict(zip(FIELDS, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))


def _byte_pairs(
    vocabulary: BytePairVocabulary, ids: np.ndarray, max_length: int | None, has_segments: bool
) -> dict[str, bytes]:
    special = dict(_ROBERTA)
    if ids[BOS] == ids[PAD]:  # MarianMT's decoder starts with padding
        special["cls_token"] = special["pad_token"]
    names = [*special.values(), *vocabulary.units]
    return byte_pair_files(vocabulary, names, special, ids, max_length, has_segments)


def byte_pair_files(
    vocabulary: BytePairVocabulary,
    names: Sequence[str],
    special: Mapping[str, str],
    ids: np.ndarray,
    max_length: int | None,
    has_segments: bool = False,
) -> dict[str, bytes]:
    """Builds the files of a byte-level BPE tokenizer, including `vocab.json` and `merges.txt`.

    Args:
        vocabulary, ids, max_length, has_segments: see `tokenizer_files`.
        names: Hugging Face names of all tokens, in the order of the vocabulary's ids. The name of a
            token without a Hugging Face id is not used, and may be `None`.
        special: dict mapping a field of `tokenizer_config.json`, such as "cls_token", to the name
            of the special token.
    """
    token_ids = {name: int(n) for name, n in zip(names, ids, strict=True) if n >= 0}
    # The steps of `BytePairVocabulary.normalized`.
    steps = [replacement("\U0010ffff", ""), replacement("\x00", "\ufffd")]
    steps += [{"type": "NFC"}] if vocabulary.composed else []
    steps += _LOWER if vocabulary.lower_case else []
    prefix, is_llama = vocabulary.add_prefix_space, vocabulary.pattern == "llama3"
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True}
    pre_tokenizer = {**byte_level, "use_regex": not is_llama}
    if is_llama:
        pre_tokenizer = {
            "type": "Sequence",
            "pretokenizers": [LLAMA_PRE_TOKENIZER, pre_tokenizer],
        }
    parts = {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": pre_tokenizer,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": is_llama,
            "vocab": token_ids,
            "merges": [merge.split(" ") for merge in vocabulary.merges],
        },
    }
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": prefix}
    special_ids = {name: token_ids[name] for name in special.values()}
    merges = "".join(f"{merge}\n" for merge in vocabulary.merges)
    return {
        "vocab.json": json_bytes(token_ids),
        "merges.txt": f"#version: 0.2\n{merges}".encode(),
        **assemble(vocabulary, ids, parts, options, special, special_ids, max_length, has_segments),
    }


def _sentencepiece(
    vocabulary: SentencePieceVocabulary, ids: np.ndarray, max_length: int | None, has_segments: bool
) -> dict[str, bytes]:
    names = [vocabulary.processor.id_to_piece(token_id) for token_id in range(vocabulary.pieces)]
    special = dict(zip(FIELDS, names, strict=False))
    if vocabulary.cls_last:
        special |= {"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
    elif not vocabulary.fold_accents:
        special = dict(_ROBERTA)
    return unigram_files(vocabulary, special, ids, max_length, has_segments)


def unigram_files(
    vocabulary: SentencePieceVocabulary,
    special: Mapping[str, str],
    ids: np.ndarray,
    max_length: int | None,
    has_segments: bool = False,
) -> dict[str, bytes]:
    """Builds the files of a SentencePiece tokenizer, unigram or BPE.

    Args:
        vocabulary, ids, max_length, has_segments: see `tokenizer_files`.
        special: dict mapping a field of `tokenizer_config.json`, such as "cls_token", to the name
            of the special token. The dict is in the order of the vocabulary's ids.

    Raises:
        UserError: the vocabulary normalizes punctuation, or the Hugging Face ids have a gap.
    """
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.proto)
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    pieces[: len(special)] = [(name, 0.0) for name in special.values()]
    order = np.full(ids.max() + 1, -1)
    valid = np.flatnonzero(ids >= 0)
    order[ids[valid]] = valid  # the last id, if several macaron_tf ids share a Hugging Face id
    if (order < 0).any():
        raise UserError(
            f"the vocabulary has no token for the Hugging Face id {np.flatnonzero(order < 0)[0]}, "
            "but a SentencePiece file cannot skip ids: export a SavedModel by `macaron "
            "export`, which includes the tokenizer"
        )
    pieces = [pieces[token_id] for token_id in order]
    token_ids = {name: token_id for token_id, (name, _) in enumerate(pieces)}
    model_file = _renumber(model, special, order)
    special = {field: name for field, name in special.items() if name in token_ids}
    unknown = special["unk_token"]
    byte_fallback = vocabulary.byte_fallback
    if vocabulary.model_type == "unigram":
        model_field = {
            "type": "Unigram",
            "unk_id": token_ids[unknown],
            "vocab": [[*p] for p in pieces],
        }
        model_field["byte_fallback"] = byte_fallback
    else:
        model_field = {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": byte_fallback,
            "vocab": token_ids,
            "merges": _merges(pieces, {*special.values()}),
        }
    prefix = model.normalizer_spec.add_dummy_prefix
    scheme = "always" if prefix else "never"
    metaspace = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": scheme}
    parts = {
        "normalizer": {"type": "Sequence", "normalizers": _steps(vocabulary, model)},
        "pre_tokenizer": {**metaspace, "split": True},
        "decoder": {**metaspace, "split": True},
        "model": model_field,
    }
    if vocabulary.verbatim:  # a word may begin with several spaces
        steps = [{"type": "Prepend", "prepend": WORD_START}] if prefix else []
        steps.append(replacement(" ", WORD_START))
        decoders = [replacement(WORD_START, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
        decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        parts |= {
            "normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
        }
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": vocabulary.normalization.lower_case,
    }
    special_ids = {name: token_ids[name] for name in special.values()}
    return {
        "spiece.model": model_file,
        **assemble(vocabulary, ids, parts, options, special, special_ids, max_length, has_segments),
    }


def _renumber(model: Any, special: Mapping[str, str], order: np.ndarray) -> bytes:
    """Renames special pieces, reorders all pieces, and serializes the SentencePiece model.

    Args:
        model: SentencePiece model, which stays unchanged.
        special: dict mapping a field, such as "cls_token", to the new name of the special piece.
            The dict is in the order of the ids in `model`.
        order: id in `model` for each Hugging Face id.
    """
    result = sentencepiece_model_pb2.ModelProto()
    result.CopyFrom(model)
    for piece, name in zip(result.pieces, special.values(), strict=False):
        piece.piece = name
    pieces = [result.pieces[old_id] for old_id in order]
    result = sentencepiece_model_pb2.ModelProto(pieces=pieces)
    result.trainer_spec.CopyFrom(model.trainer_spec)
    result.normalizer_spec.CopyFrom(model.normalizer_spec)
    spec, piece_ids = (
        result.trainer_spec,
        {piece.piece: piece_id for piece_id, piece in enumerate(pieces)},
    )
    spec.bos_id = spec.eos_id = -1
    for role in ("pad", "unk"):
        name = special[f"{role}_token"]
        setattr(spec, f"{role}_piece", name)
        setattr(spec, f"{role}_id", piece_ids.get(name, -1))
    del spec.control_symbols[:]
    return result.SerializeToString(deterministic=True)


def _merges(pieces: Sequence[tuple[str, float]], special: set[str]) -> list[list[str]]:
    """Derives the merges of a SentencePiece BPE model from the scores of its pieces.

    Args:
        pieces: text and score of each piece, in the order of the ids.
        special: texts of the special pieces, which no merge produces.

    Returns:
        The merges as `[left, right]`, in the order in which BPE applies them.
    """
    piece_ids = {name: piece_id for piece_id, (name, _) in enumerate(pieces) if name not in special}
    scores, merges = dict(pieces), []
    for name in piece_ids:
        splits = ((name[:i], name[i:]) for i in range(1, len(name)))
        pairs = [
            (left, right) for left, right in splits if left in piece_ids and right in piece_ids
        ]
        merges += sorted(pairs, key=lambda pair: (piece_ids[pair[0]], piece_ids[pair[1]]))
    return [[*pair] for pair in sorted(merges, key=lambda pair: -scores["".join(pair)])]


def _steps(vocabulary: SentencePieceVocabulary, model: Any) -> list[dict[str, Any]]:
    """Builds normalizers for `tokenizer.json` that normalize text as the vocabulary does."""
    config, spec = vocabulary.normalization, model.normalizer_spec
    if config.punctuation:
        raise UserError(
            "the vocabulary normalizes punctuation by Moses' rules, which Hugging Face's "
            "tokenizers do not support: train a translator with --set "
            "data.normalization.punctuation=False, or export a SavedModel by `macaron "
            "export`, which includes the tokenizer"
        )
    steps = []
    if vocabulary.fold_accents:
        steps = [replacement("``", '"'), replacement("''", '"'), {"type": "NFKD"}]
        steps.append({"type": "StripAccents"})
    steps.append(replacement(r"[\p{Cc}\x{2028}\x{2029}]", " ", "Regex"))
    if config.remove_nonprinting:
        steps.append(replacement(r"\p{C}", "", "Regex"))
    steps += _LOWER if config.lower_case else []
    steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    if spec.precompiled_charsmap:
        if vocabulary.fold_accents:  # NFKD decomposes Hangul, which `Precompiled` does not compose
            steps.append({"type": "NFC"})
        table = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if spec.remove_extra_whitespaces:
        steps += [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            replacement(" {2,}", " ", "Regex"),
        ]
    return steps


def _moses(
    vocabulary: MosesPairVocabulary, ids: np.ndarray, max_length: int | None, has_segments: bool
) -> dict[str, bytes]:
    """Builds the files of an XLM tokenizer.

    The files do not include `tokenizer.json`, because transformers' XLMTokenizer splits words by
    Moses' rules in Python.
    """
    special = ("<pad>", "<unk>", "<s>", "</s>", "<special1>")
    names = [*special, *vocabulary.units]
    token_ids = {name: int(n) for name, n in zip(names, ids, strict=True) if n >= 0}
    languages = {name: language_id for language_id, name in enumerate(vocabulary.languages)}
    config = {
        "tokenizer_class": "XLMTokenizer",
        "do_lowercase_and_remove_accent": vocabulary.lower_case,
        **dict(zip(("pad_token", "unk_token", "bos_token"), special, strict=False)),
        "sep_token": "</s>",
        "cls_token": "</s>",
        "mask_token": "<special1>",
        "additional_special_tokens": [n for n in token_ids if re.fullmatch(r"<special\d+>", n)],
        "lang2id": languages,
        "id2lang": {language_id: name for name, language_id in languages.items()},
        "model_max_length": max_length or ANY_LENGTH,
    }
    return {
        "vocab.json": json_bytes(token_ids),
        "merges.txt": "".join(f"{merge}\n" for merge in vocabulary.merges).encode(),
        "tokenizer_config.json": json_bytes(config),
    }


def assemble(
    vocabulary: PieceVocabulary,
    ids: np.ndarray,
    parts: Mapping[str, Any],
    options: Mapping[str, Any],
    special: Mapping[str, str],
    special_ids: Mapping[str, int],
    max_length: int | None,
    has_segments: bool = True,
) -> dict[str, bytes]:
    """Builds `tokenizer.json` and `tokenizer_config.json`.

    Args:
        vocabulary, ids, max_length, has_segments: see `tokenizer_files`.
        parts: fields of `tokenizer.json`: normalizer, pre-tokenizer, decoder and model.
        options: further fields of `tokenizer_config.json`.
        special: dict mapping a field of `tokenizer_config.json`, such as "cls_token", to the name
            of the special token.
        special_ids: dict mapping the name of a special token to its Hugging Face id.
    """
    added = [added_token(token_id, name, special=True) for name, token_id in special_ids.items()]
    for token in added:
        token["lstrip"] = vocabulary.mask_takes_space and token["content"] == special.get(
            "mask_token"
        )
    added_ids = {name: int(ids[token_id]) for name, token_id in vocabulary.added.items()}
    for name, token_id in added_ids.items():
        token = added_token(token_id, name, special=False)
        added.append({**token, "normalized": name not in vocabulary.unnormalized})
    inputs = ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"]
    tokenizer_json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "post_processor": post_processor(vocabulary, special, special_ids, has_segments),
        **parts,
    }
    config = {
        **options,
        **special,
        "model_max_length": max_length or ANY_LENGTH,
        "model_input_names": inputs,
    }
    return {
        "tokenizer.json": json_bytes(tokenizer_json),
        "tokenizer_config.json": json_bytes(config),
    }


def added_token(token_id: int, name: str, special: bool) -> dict[str, Any]:
    """Builds the entry for the token `name` with the id `token_id` in the field `added_tokens`.

    The field belongs to `tokenizer.json`. `special` is whether the token is a special token.
    """
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special}
    return {"id": token_id, "content": name, **flags, "special": special}


def post_processor(
    vocabulary: PieceVocabulary,
    special: Mapping[str, str],
    special_ids: Mapping[str, int],
    has_segments: bool,
) -> dict[str, Any]:
    """Builds the field `post_processor` of `tokenizer.json`.

    The post-processor adds special tokens to a text or a pair of texts, as the vocabulary's model
    expects them. `assemble` documents the arguments.
    """
    start, end = special["cls_token"], special["sep_token"]
    second = 1 if has_segments else 0

    def special_token(name: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def text(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special_token(start, 0), text("A", 0), special_token(end, 0)]
    between = [special_token(end, 0)] * (vocabulary.pair_separators - 1)
    pair = [*single, *between, text("B", second), special_token(end, second)]
    if vocabulary.cls_last:
        last = special_token(start, CLS_SEGMENT)
        single, pair = [*single[1:], last], [*pair[1:], last]
    special_tokens = {
        name: {"id": name, "ids": [special_ids[name]], "tokens": [name]} for name in (start, end)
    }
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": special_tokens,
    }


_WRITERS = {
    WordPieceVocabulary: _wordpiece,
    BytePairVocabulary: _byte_pairs,
    SentencePieceVocabulary: _sentencepiece,
    MosesPairVocabulary: _moses,
}
