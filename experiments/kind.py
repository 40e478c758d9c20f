"""What a folder holds that a command line names, before anything of that kind is imported."""

import json
import os

from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage


def read_kind(path: str | os.PathLike) -> str:
    """The kind of a run's recipe: "translation", "pretraining", "finetuning" or "embedding".

    Args:
        path: the run's folder, `gs://` included.

    Raises:
        UserError: the folder is no run, or its recipe is damaged.
    """
    file = storage.as_path(path) / "recipe.json"
    try:
        values = json.loads(file.read_bytes())
    except (*storage.FILE_ERRORS, ValueError) as error:
        raise UserError(
            f"{path} is not a run: cannot read {file}; give the folder that a `train` command wrote"
        ) from error
    # The first recipes said no kind: there was one.
    kind = values.get("kind", "translation") if isinstance(values, dict) else None
    if not isinstance(kind, str):
        raise UserError(f"{file} is not a recipe that this version wrote: it names no kind of run")
    return kind


def run_place(given: str) -> tuple[epath.Path, str | None]:
    """A run's folder, and the checkpoint that is named behind an @."""
    path = storage.as_path(given)
    if not path.exists() and "@" in given:
        folder, _, checkpoint = given.rpartition("@")
        return storage.as_path(folder), checkpoint
    return path, None
