"""Export of Hugging Face tokenizers for language models and encoder-decoders.

These tokenizers add other special tokens around a text than the tokenizer of an encoder.
"""

import json
from collections.abc import Sequence
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.hub.config import json_bytes
from macaron_tf.hub.tokenizers.writing import (
    ANY_LENGTH,
    added_token,
    ids_of,
    special_token,
    template,
    text,
    token_names,
    tokenizer_files,
)
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.byte_pairs import WORD_END, CharacterPairVocabulary, MosesPairVocabulary


def language_tokenizer(
    vocabulary: PieceVocabulary, max_length: int | None, starts: bool, is_framed: bool = False
) -> dict[str, bytes]:
    """Builds the files of a language model's tokenizer.

    Args:
        vocabulary: vocabulary of the model.
        max_length: maximum number of tokens in a sequence; `None` means no limit.
        starts: whether a text begins with [CLS].
        is_framed: whether a text begins with [CLS] and ends with [MASK], as in a classifier of
            macaron_tf.

    Returns:
        A dict mapping file name to contents.

    Raises:
        UserError: `is_framed` is True for the vocabulary of a GPT, which lacks [CLS] and [MASK], or
            the vocabulary is XLM's or cannot be converted (see `tokenizer_files`).
    """
    refuse_moses(vocabulary)
    if isinstance(vocabulary, CharacterPairVocabulary) and is_framed:
        raise UserError(
            "the classifier reads [CLS] before a text and [MASK] after the text, but GPT's "
            "tokenizer has no such tokens: save the model in macaron_tf's own format, or export a "
            "SavedModel"
        )
    if isinstance(vocabulary, CharacterPairVocabulary):
        return _gpt(vocabulary, max_length)
    before = ["cls_token"] if starts or is_framed else []
    files = tokenizer_files(
        vocabulary, max_length=max_length, has_segments=False, complete=is_framed
    )
    if is_framed:
        return _set_special_tokens(files, before, after=["mask_token"], between=["sep_token"])
    files, special = _set_special_tokens(files, before, after=[]), vocabulary.special
    if special.mask is None or special.mask < vocabulary.pieces:
        return files
    # The special tokens of a GPT-2 or Llama begin and end a text.
    changes = {"cls_token": None, "sep_token": None}
    if "spiece.model" in files:
        files["tokenizer.model"] = files.pop("spiece.model")
    if special.begin != special.end:
        return replace_fields(files, {}, changes)
    changes["unk_token"] = json.loads(files["tokenizer_config.json"])["eos_token"]
    # This post-processor adds no special tokens.
    processor = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return replace_fields(files, {"post_processor": processor}, changes)


def sequence_tokenizer(
    vocabulary: PieceVocabulary,
    max_length: int | None,
    starts: bool,
    sentinels: Sequence[int] = (),
    pad_last: bool = False,
) -> dict[str, bytes]:
    """Builds the files of an encoder-decoder's tokenizer, which adds [SEP] after a source text.

    Args:
        vocabulary, max_length: see `language_tokenizer`.
        starts: whether a source text begins with [CLS].
        sentinels: ids of T5's sentinels.
        pad_last: see `token_names`.

    Returns:
        A dict mapping file name to contents.

    Raises:
        UserError: the vocabulary is XLM's or cannot be converted (see `tokenizer_files`).
    """
    refuse_moses(vocabulary)
    files = tokenizer_files(
        vocabulary, max_length=max_length, has_segments=False, pad_last=pad_last
    )
    files = _set_special_tokens(files, before=["cls_token"] if starts else [], after=["sep_token"])
    if not len(sentinels):
        return files
    names = {f"<extra_id_{index}>": int(token_id) for index, token_id in enumerate(sentinels)}
    added = json.loads(files["tokenizer.json"])["added_tokens"]
    added += [added_token(token_id, name, special=True) for name, token_id in names.items()]
    added.sort(key=lambda token: token["id"])
    return replace_fields(files, {"added_tokens": added}, {"additional_special_tokens": [*names]})


def refuse_moses(vocabulary: PieceVocabulary) -> None:
    """Raises a UserError for XLM's vocabulary, whose tokenizer has no `tokenizer.json`.

    The special tokens that transformers' XLMTokenizer adds to a text are fixed.
    """
    if isinstance(vocabulary, MosesPairVocabulary):
        raise UserError(
            f"a vocabulary of kind {vocabulary.kind!r} (XLM) has a counterpart only among the "
            "tokenizers of Hugging Face's encoders: save the model in macaron_tf's own format"
        )


def pad_with_start(files: dict[str, bytes]) -> dict[str, bytes]:
    """Returns a copy of tokenizer files in which the decoder's start token is the padding token.

    `files` maps file name to contents.
    """
    start = json.loads(files["tokenizer_config.json"])["bos_token"]
    return replace_fields(files, {}, {"pad_token": start})


def _set_special_tokens(
    files: dict[str, bytes],
    before: Sequence[str],
    after: Sequence[str],
    between: Sequence[str] | None = None,
) -> dict[str, bytes]:
    """Changes the special tokens that a tokenizer adds to a text or a pair of texts.

    Args:
        files: dict mapping file name to contents, for the tokenizer of an encoder.
        before, after: fields, such as "cls_token", of the special tokens before and after a text.
        between: fields of the special tokens between two texts; `None` means `after` followed by
            `before`.

    Returns:
        A changed copy of `files`.
    """
    between = (*after, *before) if between is None else between
    config, tokenizer_json = (
        json.loads(files[name]) for name in ("tokenizer_config.json", "tokenizer.json")
    )
    token_ids = {token["content"]: token["id"] for token in tokenizer_json["added_tokens"]}
    ends = {"bos_token": config["cls_token"], "eos_token": config["sep_token"]}

    def tokens(fields: Sequence[str]) -> list[dict[str, Any]]:
        return [special_token(config[field]) for field in fields]

    single = [*tokens(before), text("A"), *tokens(after)]
    pair = [*tokens(before), text("A"), *tokens(between), text("B"), *tokens(after)]
    names = dict.fromkeys(config[field] for field in (*before, *between, *after))
    processor = template(single, pair, {name: token_ids[name] for name in names})
    return replace_fields(files, {"post_processor": processor}, ends)


def replace_fields(
    files: dict[str, bytes], tokenizer_fields: dict[str, Any], config_fields: dict[str, Any]
) -> dict[str, bytes]:
    """Returns a copy of tokenizer files with changed fields. The value `None` removes a field.

    Args:
        files: dict mapping file name to contents.
        tokenizer_fields: dict mapping a field of `tokenizer.json` to its new value.
        config_fields: dict mapping a field of `tokenizer_config.json` to its new value.
    """
    files = dict(files)
    all_changes = {"tokenizer.json": tokenizer_fields, "tokenizer_config.json": config_fields}
    for name, changes in all_changes.items():
        fields = {**json.loads(files[name]), **changes}
        fields = {k: v for k, v in fields.items() if k not in changes or v is not None}
        files[name] = json_bytes(fields)
    return files


def _gpt(vocabulary: CharacterPairVocabulary, max_length: int | None) -> dict[str, bytes]:
    """Builds the files of GPT's tokenizer, which is a character-level BPE.

    Text is lower-cased and split into words as in BERT. A token that ends a word has the suffix
    `</w>`.
    """
    names, special = token_names(vocabulary)
    token_ids = ids_of(names)
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": special["unk_token"],
        "continuing_subword_prefix": "",
        "end_of_word_suffix": WORD_END,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": token_ids,
        "merges": [merge.split(" ") for merge in vocabulary.merges],
    }
    unknown = added_token(vocabulary.special.unk, special["unk_token"], special=True)
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": True,
        "lowercase": True,
    }
    tokenizer_json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [unknown],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "BPEDecoder", "suffix": WORD_END},
        "model": model,
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": special["unk_token"],
        "model_max_length": max_length or ANY_LENGTH,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    merges = "".join(f"{merge}\n" for merge in vocabulary.merges)
    return {
        "vocab.json": json_bytes(token_ids),
        "merges.txt": f"#version: 0.2\n{merges}".encode(),
        "tokenizer.json": json_bytes(tokenizer_json),
        "tokenizer_config.json": json_bytes(config),
    }
