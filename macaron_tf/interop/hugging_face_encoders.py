"""Encoders of Hugging Face, and those that sentence-transformers keeps in its directories."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.encoder_import import EncoderImport, import_encoder
from macaron_tf.interop.encoder_weights import (
    EncoderWeights,
    MaskedLanguageWeights,
    read_weights,
)
from macaron_tf.interop.hugging_face import (
    TorchArrays,
    read_config,
    read_json,
    read_number,
    read_state,
)
from macaron_tf.interop.hugging_face_families import FAMILIES, Family
from macaron_tf.interop.hugging_face_vocabularies import read_vocabulary

# Kept beside the weights by some versions: the positions 0, 1, 2, ... and a row of zeros.
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids", "position_ids")


def read_hugging_face(
    directory: str | pathlib.Path, lower_case: bool | None = None
) -> EncoderImport:
    """Reads an encoder as `save_pretrained` writes it, heads included where there are any.

    BERT, RoBERTa, XLM-R, ALBERT, ELECTRA (a generator or a discriminator) and XLM, whose
    vocabulary has no counterpart of ours: of it the import has `ids` only.

    Args:
        directory: holds `config.json`, `model.safetensors` or `pytorch_model.bin` (read with the
            safetensors package, or PyTorch, which must be installed), and the tokenizer's files;
            or a sentence-transformers directory around such a one.
        lower_case: whether text is lower-cased, for a WordPiece directory that does not say so.

    Raises:
        UserError: a file is missing or damaged, or the model has what ours has no place for.
    """
    directory = _transformer_directory(pathlib.Path(directory))
    config, where = read_config(directory, FAMILIES), str(directory / "config.json")
    family = FAMILIES[config["model_type"]]
    settings = _our_settings(config, family, where)
    padding = read_number(config, "pad_token_id", int, where, family.padding)
    vocabulary = ids = None
    if family.tokenizer:
        vocabulary, ids = read_vocabulary(directory, lower_case)
        found = 0 if ids is None else ids[0]
        if found != padding:
            raise UserError(
                f"{where} has pad_token_id={padding} and its vocabulary pads with {found}: it is "
                "another model's vocabulary."
            )
    if family.positions_from_padding:
        settings["max_length"] -= padding + 1
    weights, unread = _read(read_state(directory), family, settings)
    if family.positions_from_padding:
        weights = dataclasses.replace(weights, positions=weights.positions[padding + 1 :])
    if settings["num_segments"] == 1:
        # The same vector everywhere is part of every position's.
        settings["num_segments"] = 0
        positions = weights.positions + weights.segments
        weights = dataclasses.replace(weights, positions=positions, segments=None)
    if not family.tokenizer and padding:
        others = np.delete(np.arange(len(weights.tokens)), padding)
        ids = np.concatenate([[padding], others])
    return import_encoder(settings, weights, vocabulary, unread, ids)


def _transformer_directory(directory: pathlib.Path) -> pathlib.Path:
    """The model's own one: early sentence-transformers kept it in `0_Transformer`."""
    if (directory / "modules.json").is_file():
        modules = read_json(directory / "modules.json", list)
        if not modules or not isinstance(modules[0], dict) or "path" not in modules[0]:
            raise UserError(f"{directory / 'modules.json'} names no module's path first.")
        return directory / modules[0]["path"]
    return directory


def _our_settings(config: Mapping[str, Any], family: Family, where: str) -> dict:
    for field, needed in family.required.items():
        if config.get(field, needed) != needed:
            raise UserError(f"{where} has {field}={config[field]!r}: only {needed!r} can be read.")
    settings = {
        ours: read_number(config, theirs, type(default), where, default)
        for ours, (theirs, default) in family.settings.items()
    }
    return {**settings, **family.derived(config, where)}


def _read(
    state: Mapping[str, np.ndarray], family: Family, settings: Mapping[str, Any]
) -> tuple[EncoderWeights, tuple[str, ...]]:
    arrays = TorchArrays({name.removeprefix(family.prefix): array for name, array in state.items()})
    paths = family.paths
    if settings.get("embedding_dim", settings["hidden_dim"]) == settings["hidden_dim"]:
        paths = dataclasses.replace(paths, projection=None)
    if not settings.get("num_languages"):
        paths = dataclasses.replace(paths, languages=None)
    weights = read_weights(arrays, paths, settings["num_layers"], **_read_heads(arrays, family))
    output = family.masked_language.output
    if arrays.has(output) and not np.array_equal(arrays.array(output), weights.tokens):
        raise UserError(
            f"the {family.name} model's {output.replace('/', '.')} is not its token embeddings: "
            "ours has one table for both."
        )
    repeated = {path.replace("/", ".") for path in family.masked_language.bias}
    unread = sorted(set(arrays.state) - arrays.read - repeated - set(_BUFFERS))
    inner = [name for name in unread if name.startswith(family.body)]
    if inner:
        raise UserError(f"the {family.name} model has {inner[0]}, for which ours has no place.")
    return weights, tuple(unread)


def _read_heads(arrays: TorchArrays, family: Family) -> dict[str, Any]:
    heads, masked = {}, family.masked_language
    for name in ("pooler", "sentence_pair"):
        path = getattr(family, name)
        if path and arrays.has(f"{path}/weight"):
            heads[name] = arrays.dense(path)
    if any(map(arrays.has, masked.bias)):
        heads["masked_language"] = MaskedLanguageWeights(
            dense=arrays.dense(masked.dense) if masked.dense else None,
            norm=arrays.norm(masked.norm) if masked.norm else None,
            bias=arrays.array(*masked.bias),
            options=masked.options,
        )
    if family.replaced_token and arrays.has(f"{family.replaced_token[0]}/weight"):
        heads["replaced_token"] = tuple(map(arrays.dense, family.replaced_token))
    return heads
