"""Folders of trained models, for `save_pretrained` and `push_to_hub`."""

import functools
import json
import os
import pathlib
import re
import tempfile
from typing import Any

from etils import epath

from macaron_tf.errors import UserError, check_choice
from macaron_tf.hub.hugging_face import writer
from macaron_tf.io import paths
from macaron_tf.io.code_files import take_code
from macaron_tf.io.hub import HUB, check_login, push
from macaron_tf.models.model_card import model_card, use_of_folder
from macaron_tf.models.model_parts import VOCABULARY, ModelParts
from macaron_tf.tasks.base import TaskKind
from macaron_tf.training import checkpoints
from macaron_tf.training.locations import HUGGING_FACE, RECIPE
from macaron_tf.training.state import require_disk_space, save_weights, weight_table

FORMATS = ("weights.h5", "safetensors", HUGGING_FACE)


def save(
    model: ModelParts, task: TaskKind | None, directory: str | os.PathLike, **options: Any
) -> None:
    """Writes the folder of `Model.save_pretrained`, with its `format` and `license`."""
    path = paths.as_path(directory).expanduser()
    path = path if paths.is_remote(path) else path.absolute()
    checkpoints.refuse_other_files(path, HUGGING_FACE)
    _write(model, task, path, path.name, **options)


def publish(
    model: ModelParts, task: TaskKind | None, repository: str, private: bool | None, **options: Any
) -> str:
    """Uploads a model as `Model.push_to_hub` does, and returns its URL."""
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
        if license and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
            raise UserError(f"license={license!r} is not a license identifier of the hub")
        model = model.with_card(license=license)
    manifest = {
        "step": model.card.results.get("step", 0),
        "metrics": model.card.results.get("metrics", {}),
        "vocabulary": model.vocabulary.hash if model.vocabulary else "",
        "weights": weight_table(model.network),
    }
    if format == HUGGING_FACE:
        write = writer(_with_languages(model), location.removeprefix(f"{HUB}:"))
        manifest["library"] = format
    else:
        write = functools.partial(_write_files, model, task, format, location)
    checkpoints.save_whole(path, write, manifest)


def card(model: ModelParts, task: TaskKind | None, use: str) -> str:
    """Returns the text of a README.md, with the section `use` about the usage of the folder."""
    return model_card(_with_languages(model), task.pipeline if task else "", use)


def _with_languages(model: ModelParts) -> ModelParts:
    """Returns the model with the vocabulary's languages in its card if the card names none."""
    languages = model.vocabulary.languages if model.vocabulary else ()
    return model if model.card.languages else model.with_card(languages=tuple(languages))


def _write_files(
    model: ModelParts, task: TaskKind | None, format: str, location: str, directory: epath.Path
) -> None:
    require_disk_space(directory, model.network.weights)
    save_weights(model.network, directory / f"model.{format}")
    if model.vocabulary:
        model.vocabulary.save(directory / VOCABULARY)
    files = {checkpoints.MODEL: model.record()}
    if model.card.recipe:
        files[RECIPE] = model.card.recipe
    files, code = take_code(directory, files)
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    text = card(model, task, use_of_folder(location, task.examples() if task else (), code))
    (directory / checkpoints.CARD).write_text(text)
