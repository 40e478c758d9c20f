"""Folders of trained models, for `save_pretrained` and `push_to_hub`."""

import dataclasses
import functools
import json
import os
import pathlib
import tempfile
from typing import Any

from etils import epath

from macaron_tf.errors import check_choice
from macaron_tf.hub.hugging_face import writer
from macaron_tf.io import paths
from macaron_tf.io.code_files import take_code
from macaron_tf.io.hub import HUB, check_login, push
from macaron_tf.models.model_card import CardFacts, model_card, use_of_folder
from macaron_tf.models.model_parts import VOCABULARY, ModelParts
from macaron_tf.tasks.base import TaskKind
from macaron_tf.training import checkpoints
from macaron_tf.training.locations import HUGGING_FACE, RECIPE
from macaron_tf.training.state import require_disk_space, save_weights, weight_table

FORMATS = ("weights.h5", "safetensors", HUGGING_FACE)


def save(
    model: ModelParts, task: TaskKind | None, directory: str | os.PathLike, **options: Any
) -> None:
    """Writes the folder of `Pretrained.save_pretrained`, with its `format` and `license`."""
    path = paths.as_path(directory).expanduser()
    path = path if paths.is_remote(path) else path.absolute()
    checkpoints.refuse_other_files(path, HUGGING_FACE)
    _write(model, task, path, path.name, **options)


def publish(
    model: ModelParts, task: TaskKind | None, repository: str, private: bool | None, **options: Any
) -> str:
    """Uploads a model as `Pretrained.push_to_hub` does, and returns its URL."""
    name = check_login(repository)
    with tempfile.TemporaryDirectory(prefix="macaron_tf-") as folder:
        staging = pathlib.Path(folder, name.rpartition("/")[2])
        _write(model, task, paths.as_path(staging), f"{HUB}:{name}", **options)
        return push(staging, repository, private)


def _write(
    model: ModelParts,
    task: TaskKind | None,
    path: epath.Path,
    location: str,
    format: str,
    license: str | None,
) -> None:
    """Writes a folder; `location` is the argument of `load` in the model card's example."""
    check_choice("format", format, FORMATS)
    if license is not None:
        model = dataclasses.replace(model, license=license)
    manifest = {
        "step": model.results.get("step", 0),
        "metrics": model.results.get("metrics", {}),
        "vocabulary": model.vocabulary.hash if model.vocabulary else "",
        "weights": weight_table(model.network),
    }
    if format == HUGGING_FACE:
        write = writer(model, _facts(model, task), location.removeprefix(f"{HUB}:"))
        manifest["library"] = format
    else:
        write = functools.partial(_write_files, model, task, format, location)
    checkpoints.save_whole(path, write, manifest)


def card(model: ModelParts, task: TaskKind | None, use: str) -> str:
    """Returns the model card, with the section `use` about the usage of the folder."""
    pieces = model.vocabulary.pieces if model.vocabulary else None
    return model_card(_facts(model, task), model.network, pieces, use)


def _facts(model: ModelParts, task: TaskKind | None) -> CardFacts:
    languages = model.languages or (model.vocabulary.languages if model.vocabulary else ())
    facts = model.recipe, model.results, model.license, model.unlisted
    return CardFacts(model.name or "model", languages, *facts, task.pipeline if task else "")


def _write_files(
    model: ModelParts, task: TaskKind | None, format: str, location: str, directory: epath.Path
) -> None:
    layers = {"model": model.network, **model.heads}
    require_disk_space(directory, [w for layer in layers.values() for w in layer.weights])
    for name, layer in layers.items():
        save_weights(layer, directory / f"{name}.{format}")
    if model.vocabulary:
        model.vocabulary.save(directory / VOCABULARY)
    files = {checkpoints.MODEL: model.record(), **({RECIPE: model.recipe} if model.recipe else {})}
    files, code = take_code(directory, files)
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    text = card(model, task, use_of_folder(location, task.examples() if task else (), code))
    (directory / checkpoints.CARD).write_text(text)
