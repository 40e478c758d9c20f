"""The WordPiece vocabularies that Hugging Face and KerasHub keep beside a BERT."""

import pathlib
from collections.abc import Mapping
from typing import Any

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import read_json
from macaron_tf.text.wordpiece import WordPieceVocabulary

# BERT's own; ours has no others.
_SPECIAL = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def read_hugging_face_vocabulary(
    directory: pathlib.Path, lower_case: bool | None = None
) -> WordPieceVocabulary:
    """Reads `vocab.txt`, or `tokenizer.json` where there is none.

    Args:
        directory: holds it; `tokenizer_config.json` goes before `tokenizer.json`, as there, in
            saying whether text is lower-cased.
        lower_case: where no file says so.

    Raises:
        UserError: there is no vocabulary, it is no WordPiece, it cuts text otherwise than BERT
            does, or nothing says whether text is lower-cased.
    """
    whole, options = directory / "tokenizer.json", directory / "tokenizer_config.json"
    tokenizer = read_json(whole) if whole.is_file() else {}
    settings = _settings(tokenizer, read_json(options) if options.is_file() else {})
    said = settings.get("do_lower_case", lower_case)
    if said is None:
        raise UserError(
            f"no file in {directory} says whether its text is lower-cased: give "
            "lower_case=True or False."
        )
    _check_settings(directory, {**settings, "do_lower_case": said})
    if (directory / "vocab.txt").is_file():
        vocabulary = WordPieceVocabulary.from_file(directory / "vocab.txt", lower_case=said)
    elif tokenizer:
        vocabulary = WordPieceVocabulary(_words(whole, tokenizer), lower_case=said)
    else:
        raise UserError(f"{directory} has no vocabulary: neither vocab.txt nor tokenizer.json.")
    for token in tokenizer.get("added_tokens") or ():
        if token["id"] >= vocabulary.pieces or vocabulary.words[token["id"]] != token["content"]:
            raise UserError(
                f"{whole} adds the token {token['content']!r} to the vocabulary: only WordPiece's "
                "own can be read."
            )
    return vocabulary


def read_keras_hub_vocabulary(directory: pathlib.Path) -> WordPieceVocabulary:
    """Reads the tokenizer of a preset's folder.

    Args:
        directory: holds `tokenizer.json` and `assets/tokenizer/vocabulary.txt`.

    Raises:
        UserError: a file is missing, or the tokenizer is not BERT's.
    """
    record, words = directory / "tokenizer.json", directory / "assets/tokenizer/vocabulary.txt"
    for file in (record, words):
        if not file.is_file():
            raise UserError(
                f"{directory} has no {file.relative_to(directory)}: save the preset's tokenizer "
                "with it."
            )
    config = read_json(record).get("config", {})
    for field, needed in (("split", True), ("suffix_indicator", "##"), ("oov_token", "[UNK]")):
        if config.get(field, needed) != needed:
            raise UserError(f"{record} has {field}={config[field]!r}: only {needed!r} can be read.")
    return WordPieceVocabulary.from_file(words, lower_case=bool(config.get("lowercase", False)))


def _settings(tokenizer: Mapping[str, Any], options: Mapping[str, Any]) -> dict:
    """Both files' settings under the second's names; None, the default of some, is left out."""
    normalizer = tokenizer.get("normalizer") or {}
    names = {
        "lowercase": "do_lower_case",
        "strip_accents": "strip_accents",
        "handle_chinese_chars": "tokenize_chinese_chars",
    }
    settings = {theirs: normalizer.get(name) for name, theirs in names.items()}
    settings.update((name, value) for name, value in options.items() if value is not None)
    return {name: value for name, value in settings.items() if value is not None}


def _check_settings(directory: pathlib.Path, settings: Mapping[str, Any]) -> None:
    lower_case = settings["do_lower_case"]
    # BERT takes accents off exactly where it lower-cases.
    needed = {"strip_accents": lower_case, "tokenize_chinese_chars": True}
    for field, value in needed.items():
        if settings.get(field, value) != value:
            raise UserError(
                f"the tokenizer of {directory} has {field}={settings[field]!r}: only {value!r} can "
                f"be read with do_lower_case={lower_case!r}."
            )
    for field, piece in _SPECIAL.items():
        token = settings.get(field, piece)
        # Early files keep a token as an object with its `content`.
        token = token.get("content") if isinstance(token, dict) else token
        if token != piece:
            raise UserError(
                f"the tokenizer of {directory} has {field}={token!r}: only {piece!r} can be read."
            )


def _words(file: pathlib.Path, tokenizer: Mapping[str, Any]) -> list[str]:
    model = tokenizer.get("model") or {}
    # Early files do not name the type.
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise UserError(f"{file} holds no WordPiece vocabulary: only BERT's can be read.")
    if model.get("continuing_subword_prefix", "##") != "##":
        raise UserError(
            f"{file} has continuing_subword_prefix={model['continuing_subword_prefix']!r}: only "
            "'##' can be read."
        )
    numbers = model["vocab"]
    words = sorted(numbers, key=numbers.get)
    if [numbers[word] for word in words] != list(range(len(words))):
        raise UserError(f"{file} leaves out ids between 0 and {max(numbers.values())}.")
    return words
