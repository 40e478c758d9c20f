"""Folders of sentence-transformers: an encoder, a pooling and an optional normalization.

References: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
"""

import dataclasses
import pathlib
from collections.abc import Mapping

from macaron_tf.errors import UserError
from macaron_tf.hub.config import ForeignConfig, json_bytes
from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.tasks.embedding import SentenceSettings

# Dict mapping a flag in early versions of sentence-transformers' `Pooling` to the name of the
# pooling in later versions and in macaron_tf.
_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
_FLAG = "pooling_mode_"


def read_modules(directory: pathlib.Path) -> dict[str, str]:
    """Reads `modules.json` as a dict from the type of each module to its folder.

    The first module is the encoder. The others may only be its pooling and a normalization.
    """
    file = directory / "modules.json"
    with refuse_damage(file, "it must list modules, each with a path: download or copy it again"):
        modules = read_json(file, list)
        folders = {m.get("type", "").rpartition(".")[2]: str(m["path"]) for m in modules}
    kinds, known = (*folders,), ("Transformer", "Pooling", "Normalize")
    if kinds not in (known[:2], known):
        found = f"{directory}/modules.json lists {', '.join(kinds)}"
        raise UserError(f"{found}, but only Transformer, Pooling and Normalize can be read")
    return folders


def with_pooling(
    encoder: ModelParts, directory: pathlib.Path, folders: Mapping[str, str]
) -> ModelParts:
    """Returns an encoder with the pooling, the normalization and the maximum length of a folder."""
    # Early versions named this file after the kind of the encoder, such as "roberta".
    config = _optional(directory / folders["Transformer"], "sentence_*_config.json")
    if config.get("do_lower_case"):
        config.require({"do_lower_case": False})  # only the tokenizer may lower-case text
    # Without a length of its own, the model takes the tokenizer's.
    tokenizer = _optional(directory / folders["Transformer"], "tokenizer_config.json")
    limits = [config.get("max_seq_length"), tokenizer.get("model_max_length")]
    limit = next((int(n) for n in limits if n is not None), encoder.config.max_length)
    prompts = _optional(directory, "config_sentence_transformers.json")
    if (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")):
        prompts.require({"default_prompt_name": None})  # texts would get a prefix
    pooling = _pooling(directory / folders["Pooling"] / "config.json")
    length = min(encoder.config.max_length, limit)
    settings = SentenceSettings(pooling, "Normalize" in folders, length)
    return dataclasses.replace(encoder, settings=settings)


def _optional(directory: pathlib.Path, pattern: str) -> ForeignConfig:
    """Reads the first file whose name matches; without such a file, the result has no fields."""
    file = next(iter(sorted(directory.glob(pattern))), None)
    return ForeignConfig(read_json(file) if file else {}, str(file or directory / pattern))


def _pooling(file: pathlib.Path) -> str:
    config = read_json(file)
    flags = [name.removeprefix(_FLAG) for name in config if name.startswith(_FLAG) and config[name]]
    # If there are several poolings, the model concatenates their vectors.
    poolings = config.get("pooling_mode") or flags
    poolings = [*map(str, poolings if isinstance(poolings, list) else [poolings])]
    names = {**_POOLINGS, **{name: name for name in _POOLINGS.values()}}
    if len(poolings) != 1 or poolings[0] not in names:
        found = f"{file} sets the pooling to {' and '.join(poolings) or 'nothing'}"
        raise UserError(f"{found}, but only one of {', '.join(_POOLINGS)} can be read")
    return names[poolings[0]]


def sentence_files(
    pooling: str, normalize: bool, hidden_dim: int, max_length: int | None
) -> dict[str, bytes]:
    """Builds the files that sentence-transformers needs beside those of an encoder."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(paths.items())
    ][: 3 if normalize else 2]
    flags = {f"{_FLAG}{flag}": name == pooling for flag, name in _POOLINGS.items()}
    pooling_config = {"word_embedding_dimension": hidden_dim, **flags}
    encoder_config = {"max_seq_length": max_length, "do_lower_case": False}
    return {
        "modules.json": json_bytes(modules),
        "1_Pooling/config.json": json_bytes(pooling_config),
        "sentence_bert_config.json": json_bytes(encoder_config),
    }
