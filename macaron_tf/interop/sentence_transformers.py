"""Sentence encoders as the sentence-transformers library saves them."""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from macaron_tf.errors import UserError
from macaron_tf.interop.encoder_import import EncoderImport
from macaron_tf.interop.hugging_face import read_json, read_number
from macaron_tf.interop.hugging_face_encoders import read_hugging_face

# Ours, by the flags of their `Pooling` and by the one name of its later versions.
_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
_FLAG = "pooling_mode_"


class SentenceTransformerImport(NamedTuple):
    """A sentence encoder: text to one vector.

    Attributes:
        encoder: the network under it, and its vocabulary.
        pooling: `"mean"` or `"max"` over the real positions, [CLS] and [SEP] among them, or
            `"cls"`.
        normalize: whether the vector is brought to length 1.
        max_length: longest row, [CLS] and [SEP] included; what is beyond is cut off.
    """

    encoder: EncoderImport
    pooling: str
    normalize: bool
    max_length: int


def read_sentence_transformer(
    directory: str | pathlib.Path, lower_case: bool | None = None
) -> SentenceTransformerImport:
    """Reads a sentence-transformers directory.

    Args:
        directory: holds `modules.json`, which names the folders of an encoder, of its pooling and,
            where there is one, of a normalization.
        lower_case: as for `read_hugging_face`.

    Raises:
        UserError: a file is missing or damaged, or a module has no place in ours.

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
    """
    directory = pathlib.Path(directory)
    file = directory / "modules.json"
    if not file.is_file():
        raise UserError(
            f"{directory} is no sentence-transformers directory: it has no {file.name}."
        )
    modules = read_json(file, list)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"{file} has the modules {', '.join(kinds)}: only Transformer, Pooling and then "
            "perhaps Normalize can be read."
        )
    encoder = read_hugging_face(directory, lower_case)
    transformer, pooling = (directory / module.get("path", "") for module in modules[:2])
    positions = encoder.model.config.max_length
    return SentenceTransformerImport(
        encoder,
        _pooling(pooling / "config.json"),
        "Normalize" in kinds,
        min(positions, _max_length(transformer / "sentence_bert_config.json", positions)),
    )


def _pooling(file: pathlib.Path) -> str:
    if not file.is_file():
        raise UserError(f"the pooling's {file} is missing.")
    config = read_json(file)
    found = _pooling_names(config)
    names = {**_POOLINGS, **{name: name for name in _POOLINGS.values()}}
    if len(found) != 1 or found[0] not in names:
        raise UserError(
            f"{file} pools by {' and '.join(found) or 'nothing'}: only one of "
            f"{', '.join(_POOLINGS)} can be read."
        )
    return names[found[0]]


def _pooling_names(config: Mapping[str, Any]) -> list[str]:
    """The poolings whose vectors are put side by side."""
    one = config.get("pooling_mode")
    if one is not None:
        return [one] if isinstance(one, str) else list(one)
    return [
        field.removeprefix(_FLAG)
        for field, value in config.items()
        if field.startswith(_FLAG) and value
    ]


def _max_length(file: pathlib.Path, positions: int) -> int:
    config = read_json(file) if file.is_file() else {}
    if config.get("do_lower_case"):
        raise UserError(
            f"{file} has do_lower_case=True: only models whose tokenizer says so can be read."
        )
    if config.get("max_seq_length") is None:
        return positions
    return read_number(config, "max_seq_length", int, str(file))
