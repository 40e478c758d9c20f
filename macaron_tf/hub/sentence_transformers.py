"""Folders of sentence-transformers: an encoder, a pooling and an optional normalization.

References: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
"""

import dataclasses
import pathlib

from macaron_tf.errors import UserError
from macaron_tf.hub.config import ForeignConfig, check_files, json_bytes
from macaron_tf.io.paths import read_json
from macaron_tf.tasks.model_parts import ModelParts

# Dict mapping a flag in early versions of sentence-transformers' `Pooling` to the name of the
# pooling in later versions and in macaron_tf.
_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
_FLAG = "pooling_mode_"
# Early versions named the file with the maximum length after the kind of the encoder.
_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "albert", "xlm-roberta", "xlnet", "camembert")
)


def read_modules(directory: pathlib.Path) -> list[dict]:
    """Reads `modules.json`, which describes each module by a dict with the key `path`.

    The first module is the encoder, and the second is the pooling.
    """
    file = directory / "modules.json"
    modules = read_json(file, list)
    paths = [module.get("path") if isinstance(module, dict) else None for module in modules]
    if not paths or not all(isinstance(path, str) for path in paths):
        raise UserError(f"{file} must list modules, each with a path: download or copy it again")
    return modules


def check_modules(directory: pathlib.Path, modules: list[dict]) -> None:
    """Raises a UserError if a folder contains other modules than an encoder and its pooling."""
    module_types = [_type(module) for module in modules]
    if module_types not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        found = f"{directory}/modules.json lists {', '.join(module_types)}"
        raise UserError(f"{found}, but only Transformer, Pooling and Normalize can be read")


def with_pooling(encoder: ModelParts, directory: pathlib.Path, modules: list[dict]) -> ModelParts:
    """Returns an encoder with the pooling, the normalization and the maximum length of a folder."""
    transformer_folder, pooling_folder = (directory / module["path"] for module in modules[:2])
    config = _optional(transformer_folder, *_CONFIGS)
    if config.get("do_lower_case"):
        config.require({"do_lower_case": False})  # only the tokenizer may lower-case text
    # Without a length of its own, the model takes the tokenizer's.
    tokenizer = _optional(transformer_folder, "tokenizer_config.json")
    limits = [config.get("max_seq_length"), tokenizer.get("model_max_length")]
    limit = next((int(n) for n in limits if n is not None), encoder.config.max_length)
    prompts = _optional(directory, "config_sentence_transformers.json")
    if (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")):
        prompts.require({"default_prompt_name": None})  # texts would get a prefix
    return dataclasses.replace(
        encoder,
        pooling=_pooling(pooling_folder / "config.json"),
        normalize="Normalize" in map(_type, modules),
        max_length=min(encoder.config.max_length, limit),
    )


def _optional(directory: pathlib.Path, *names: str) -> ForeignConfig:
    """Reads the first file of these names; without such a file, the result has no fields."""
    file = next((directory / n for n in names if (directory / n).is_file()), None)
    return ForeignConfig(read_json(file) if file else {}, str(file or directory / names[0]))


def _type(module: dict) -> str:
    return str(module.get("type", "")).rpartition(".")[2]


def _pooling(file: pathlib.Path) -> str:
    check_files(file.parent, "sentence-transformers pooling", file.name)
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
