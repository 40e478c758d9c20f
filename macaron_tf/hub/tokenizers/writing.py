"""Export of macaron_tf vocabularies as Hugging Face tokenizers (the inverse of `reading`)."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.hub.config import json_bytes
from macaron_tf.hub.tokenizers.folder import BYTE_CLEANING, LOWER, NFC, SPECIAL, replacement, split
from macaron_tf.hub.tokenizers.sentencepiece import (
    CONTROLS,
    FOLDING,
    NONPRINTING,
    PREPEND,
    SINGLE_SPACES,
    SPACES,
    STRIP,
    WHITE_SPACE,
    derived_merges,
    metaspace,
)
from macaron_tf.special import CLS_SEGMENT, SPECIAL_PIECES
from macaron_tf.text import PieceVocabulary, TokenizerJsonVocabulary, WordPieceVocabulary
from macaron_tf.text.byte_pairs import BytePairVocabulary, MosesPairVocabulary
from macaron_tf.text.sentencepiece import CONTROL, WORD_START, SentencePieceVocabulary

ANY_LENGTH = 10**9


def tokenizer_files(
    vocabulary: PieceVocabulary,
    *,
    max_length: int | None = None,
    has_segments: bool = True,
    complete: bool = False,
    pad_last: bool = False,
) -> dict[str, bytes]:
    """Builds the files of a Hugging Face tokenizer that is equivalent to an encoder's vocabulary.

    Args:
        vocabulary: vocabulary of the encoder.
        max_length: maximum number of tokens in a sequence; `None` means no limit.
        has_segments: whether the second text of a pair has segment id 1 instead of 0.
        complete, pad_last: see `token_names`.

    Returns:
        A dict mapping file name to contents.

    Raises:
        UserError: Hugging Face's tokenizers cannot normalize or split text as the vocabulary does.
    """
    if isinstance(vocabulary, TokenizerJsonVocabulary):
        raise UserError(
            "a vocabulary that was loaded with tokenizer='python' is not written for Hugging Face: "
            "save in macaron_tf's own format, or copy tokenizer.json from the original folder"
        )
    for vocabulary_class, write in _WRITERS.items():
        if isinstance(vocabulary, vocabulary_class):
            names, special = token_names(vocabulary, complete, pad_last)
            return write(vocabulary, names, special, max_length, has_segments)
    raise UserError(
        f"a vocabulary of kind {vocabulary.kind!r} has no counterpart among Hugging Face's "
        "tokenizers: export a SavedModel by `macaron export`, which includes the "
        "tokenizer"
    )


# Names of the special tokens in vocabularies that are trained here, as in RoBERTa and XLM-R.
_NAMES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def token_names(
    vocabulary: PieceVocabulary, complete: bool = False, pad_last: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Returns the names of a vocabulary's tokens in Hugging Face's tokenizer.

    A vocabulary from another library keeps its names.

    Args:
        vocabulary: vocabulary to write.
        complete: whether to add the special tokens that the other library lacks.
        pad_last: whether to add a padding token with the last id, as in MarianMT.

    Returns:
        The names in the order of the ids, with "" for an unused id, and a dict mapping a field of
        `tokenizer_config.json`, such as "cls_token", to the name of the special token.
    """
    special, role_names = vocabulary.special, _NAMES
    if isinstance(vocabulary, SentencePieceVocabulary):
        names = [vocabulary.processor.id_to_piece(n) for n in range(vocabulary.pieces)]
        if vocabulary.cls_last:
            role_names = ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>")
        elif vocabulary.fold_accents:
            role_names = ("<pad>", "<unk>", *CONTROL)
    elif isinstance(vocabulary, WordPieceVocabulary):
        names, role_names = [*vocabulary.words], SPECIAL_PIECES
    else:
        names = [*vocabulary.names]
        if isinstance(vocabulary, MosesPairVocabulary):
            role_names = (*_NAMES[:4], "<special1>")
    roles = {f: (n, name) for f, n, name in zip(SPECIAL, special.roles, role_names, strict=True)}
    if complete:
        names += [""] * (max(special.ids) + 1 - len(names))
    for token_id, name in roles.values():
        if token_id is not None and token_id < len(names):
            names[token_id] = name if special.rows is None else names[token_id] or name
    fields = {f: names[n] for f, (n, _) in roles.items() if n is not None and n < len(names)}
    if pad_last:
        names[special.pad] = "<unused>"
        names.append(fields["pad_token"])
    return names, fields


def _wordpiece(
    vocabulary: WordPieceVocabulary,
    names: Sequence[str],
    special: Mapping[str, str],
    max_length: int | None,
    has_segments: bool,
) -> dict[str, bytes]:
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
            "vocab": ids_of(names),
        },
    }
    options = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": vocabulary.lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
    }
    files = assemble(vocabulary, names, parts, options, special, max_length, has_segments)
    return {"vocab.txt": vocabulary.contents(), **files}


def ids_of(names: Sequence[str]) -> dict[str, int]:
    """Returns the id of each token by its name."""
    return {name: token_id for token_id, name in enumerate(names) if name}


def _byte_pairs(
    vocabulary: BytePairVocabulary,
    names: Sequence[str],
    special: Mapping[str, str],
    max_length: int | None,
    has_segments: bool,
) -> dict[str, bytes]:
    token_ids = ids_of(names)
    # The steps of `BytePairVocabulary.normalized`.
    steps = [*BYTE_CLEANING]
    steps += [NFC] if vocabulary.composed else []
    steps += LOWER if vocabulary.lower_case else []
    prefix, has_split = vocabulary.add_prefix_space, vocabulary.pattern != "gpt2"
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True}
    pre_tokenizer = {**byte_level, "use_regex": not has_split}
    if has_split:
        pre_tokenizer = {
            "type": "Sequence",
            "pretokenizers": [split(vocabulary.pattern), pre_tokenizer],
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
            "ignore_merges": vocabulary.pattern == "llama3",
            "vocab": token_ids,
            "merges": [merge.split(" ") for merge in vocabulary.merges],
        },
    }
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": prefix}
    merges = "".join(f"{merge}\n" for merge in vocabulary.merges)
    return {
        "vocab.json": json_bytes(token_ids),
        "merges.txt": f"#version: 0.2\n{merges}".encode(),
        **assemble(vocabulary, names, parts, options, special, max_length, has_segments),
    }


def _sentencepiece(
    vocabulary: SentencePieceVocabulary,
    names: Sequence[str],
    special: Mapping[str, str],
    max_length: int | None,
    has_segments: bool,
) -> dict[str, bytes]:
    """Builds the files of a SentencePiece tokenizer, unigram or BPE.

    Raises:
        UserError: the vocabulary normalizes punctuation.
    """
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.proto)
    scores = [piece.score for piece in model.pieces] + [0.0] * (len(names) - len(model.pieces))
    pieces, token_ids = list(zip(names, scores, strict=True)), ids_of(names)
    model_file, unknown = _model_file(vocabulary, model, names), special["unk_token"]
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
            "merges": derived_merges(pieces, {*special.values()}),
        }
    prefix = model.normalizer_spec.add_dummy_prefix
    words = metaspace("always" if prefix else "never")
    steps = [WHITE_SPACE, words] if vocabulary.spaces else [words]
    parts = {
        "normalizer": {"type": "Sequence", "normalizers": _steps(vocabulary, model)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": words,
        "model": model_field,
    }
    if not model.normalizer_spec.remove_extra_whitespaces:  # a word may begin with several spaces
        steps = [PREPEND, SPACES] if prefix else [SPACES]
        decoders = [replacement(WORD_START, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
        decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        normalizer, words = {"type": "Sequence", "normalizers": steps}, None
        if vocabulary.shares_space:
            normalizer, words = None, metaspace("first", is_split=False)
        parts |= {
            "normalizer": normalizer,
            "pre_tokenizer": words,
            "decoder": {"type": "Sequence", "decoders": decoders},
        }
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": vocabulary.normalization.lower_case,
    }
    return {
        "spiece.model": model_file,
        **assemble(vocabulary, names, parts, options, special, max_length, has_segments),
    }


def _model_file(vocabulary: SentencePieceVocabulary, model: Any, names: Sequence[str]) -> bytes:
    """Returns the SentencePiece model file, in which the pieces have the given names.

    Names beyond the pieces of `model`, which stays unchanged, become control pieces.
    """
    result = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.proto)
    control = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
    for piece, name in zip(result.pieces, names, strict=False):
        piece.piece = name
    for name in names[len(model.pieces) :]:
        result.pieces.add(piece=name, type=control)
    spec, special = result.trainer_spec, vocabulary.special
    spec.bos_id = spec.eos_id = -1
    for role, token_id in (("pad", special.pad), ("unk", special.unk)):
        if token_id < len(names):
            setattr(spec, f"{role}_piece", names[token_id])
            setattr(spec, f"{role}_id", token_id)
    del spec.control_symbols[:]
    return result.SerializeToString(deterministic=True)


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
        steps = [*FOLDING]
    steps += [] if vocabulary.verbatim else [CONTROLS]
    if config.remove_nonprinting:
        steps.append(NONPRINTING)
    steps += LOWER if config.lower_case else []
    steps += [] if vocabulary.verbatim else [STRIP]
    if spec.precompiled_charsmap:
        if vocabulary.fold_accents:  # NFKD decomposes Hangul, which `Precompiled` does not compose
            steps.append(NFC)
        table = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if spec.remove_extra_whitespaces:
        steps += [STRIP, SINGLE_SPACES]
    return steps


def _moses(
    vocabulary: MosesPairVocabulary,
    names: Sequence[str],
    special: Mapping[str, str],
    max_length: int | None,
    has_segments: bool,
) -> dict[str, bytes]:
    """Builds the files of an XLM tokenizer.

    The files do not include `tokenizer.json`, because transformers' XLMTokenizer splits words by
    Moses' rules in Python.
    """
    token_ids = ids_of(names)
    languages = {name: language_id for language_id, name in enumerate(vocabulary.languages)}
    config = {
        "tokenizer_class": "XLMTokenizer",
        "do_lowercase_and_remove_accent": vocabulary.lower_case,
        **special,
        "bos_token": special["cls_token"],
        "cls_token": special["sep_token"],
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
    names: Sequence[str],
    parts: Mapping[str, Any],
    options: Mapping[str, Any],
    special: Mapping[str, str],
    max_length: int | None,
    has_segments: bool = True,
) -> dict[str, bytes]:
    """Builds `tokenizer.json` and `tokenizer_config.json`.

    Args:
        vocabulary, max_length, has_segments: see `tokenizer_files`.
        names: see `token_names`.
        parts: fields of `tokenizer.json`: normalizer, pre-tokenizer, decoder and model.
        options: further fields of `tokenizer_config.json`.
        special: dict mapping a field of `tokenizer_config.json`, such as "cls_token", to the name
            of the special token.
    """
    token_ids = ids_of(names)
    special_ids = {name: token_ids[name] for name in special.values()}
    added = [added_token(token_id, name, special=True) for name, token_id in special_ids.items()]
    for token in added:
        token["lstrip"] = vocabulary.mask_takes_space and token["content"] == special.get(
            "mask_token"
        )
    for name, token_id in vocabulary.added.items():
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
    single = [special_token(start), text("A"), special_token(end)]
    between = [special_token(end)] * (vocabulary.pair_separators - 1)
    pair = [*single, *between, text("B", second), special_token(end, second)]
    if vocabulary.cls_last:
        last = special_token(start, CLS_SEGMENT)
        single, pair = [*single[1:], last], [*pair[1:], last]
    return template(single, pair, {name: special_ids[name] for name in (start, end)})


def special_token(name: str, segment: int = 0) -> dict[str, Any]:
    """Builds the part of a template for a special token."""
    return {"SpecialToken": {"id": name, "type_id": segment}}


def text(name: str, segment: int = 0) -> dict[str, Any]:
    """Builds the part of a template for a text, which is called "A" or "B"."""
    return {"Sequence": {"id": name, "type_id": segment}}


def template(
    single: Sequence[dict[str, Any]], pair: Sequence[dict[str, Any]], special_ids: Mapping[str, int]
) -> dict[str, Any]:
    """Builds a post-processor from the parts of a row with one text and of a row with two texts.

    `special_ids` maps the name of each special token in the parts to its id.
    """
    tokens = {name: {"id": name, "ids": [n], "tokens": [name]} for name, n in special_ids.items()}
    return {
        "type": "TemplateProcessing",
        "single": [*single],
        "pair": [*pair],
        "special_tokens": tokens,
    }


_WRITERS = {
    WordPieceVocabulary: _wordpiece,
    BytePairVocabulary: _byte_pairs,
    SentencePieceVocabulary: _sentencepiece,
    MosesPairVocabulary: _moses,
}
