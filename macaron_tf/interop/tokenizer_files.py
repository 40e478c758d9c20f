"""Our vocabularies as the files of Hugging Face's tokenizers: the way of `vocabularies` back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import json_bytes
from macaron_tf.special_ids import SPECIAL_PIECES
from macaron_tf.text import PieceVocabulary, WordPieceVocabulary

FIELDS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def tokenizer_files(
    vocabulary: PieceVocabulary,
    ids: np.ndarray | None = None,
    *,
    max_length: int | None = None,
    segments: bool = True,
) -> dict[str, bytes]:
    """The files of an encoder's tokenizer, by name: the same ids for the same text.

    Args:
        ids: `(V',)` int, their id for each of ours, -1 for none; None = the same.
        max_length: greatest length of a row.
        segments: whether a second text has the segment 1.

    Raises:
        UserError: the vocabulary does something to text that theirs cannot.
    """
    for kind, write in _WRITERS.items():
        if isinstance(vocabulary, kind):
            own = np.arange(vocabulary.pieces) if ids is None else ids
            return write(vocabulary, own, max_length, segments)
    raise UserError(
        f"a vocabulary of kind {vocabulary.kind!r} has no counterpart among Hugging Face's "
        "tokenizers: export a SavedModel, which tokenizes itself"
    )


def _wordpiece(
    vocabulary: WordPieceVocabulary, ids: np.ndarray, max_length: int | None, segments: bool
) -> dict[str, bytes]:
    words = vocabulary.words
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
            "vocab": {word: int(n) for word, n in zip(words, ids, strict=True) if word},
        },
    }
    special = dict(zip(FIELDS, SPECIAL_PIECES, strict=True))
    options = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": vocabulary.lower_case,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
    }
    numbers = {name: int(ids[words.index(name)]) for name in special.values()}
    files = assembled(vocabulary, ids, parts, options, special, numbers, max_length, segments)
    return {"vocab.txt": vocabulary.contents(), **files}


def assembled(
    vocabulary: PieceVocabulary,
    ids: np.ndarray,
    parts: Mapping[str, Any],
    options: Mapping[str, Any],
    special: Mapping[str, str],
    numbers: Mapping[str, int],
    max_length: int | None,
    segments: bool = True,
) -> dict[str, bytes]:
    """`tokenizer.json` and `tokenizer_config.json`.

    Args:
        parts: normalizer, pre-tokenizer, decoder and model as `tokenizer.json` has them, and
            perhaps a post-processor in place of `template`'s.
        options: the configuration's further fields.
        special: names of special pieces by field; numbers: their ids by name.
    """
    added = [_added(number, name, special=True) for name, number in numbers.items()]
    own = {name: int(ids[number]) for name, number in vocabulary.added.items()}
    added += [_added(number, name, special=False) for name, number in own.items()]
    inputs = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "post_processor": template(vocabulary, special, numbers, segments),
        **parts,
    }
    config = {
        **options,
        **special,
        "model_max_length": max_length or 10**9,
        "model_input_names": inputs,
    }
    return {"tokenizer.json": json_bytes(whole), "tokenizer_config.json": json_bytes(config)}


def _added(number: int, name: str, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special}
    return {"id": number, "content": name, **flags, "special": special}


def template(
    vocabulary: PieceVocabulary,
    special: Mapping[str, str],
    numbers: Mapping[str, int],
    segments: bool,
) -> dict[str, Any]:
    """The post-processor that makes the rows of one text and of two."""
    start, end = special["cls_token"], special["sep_token"]
    second = 1 if segments else 0

    def piece(name: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [piece(start, 0), text("A", 0), piece(end, 0)]
    between = [piece(end, 0)] * (vocabulary.pair_separators - 1)
    pair = [*single, *between, text("B", second), piece(end, second)]
    named = {name: {"id": name, "ids": [numbers[name]], "tokens": [name]} for name in (start, end)}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": named}


_WRITERS = {WordPieceVocabulary: _wordpiece}
