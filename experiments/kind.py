"""What kind of run a folder holds, before anything of that kind is imported."""

import json
import os

from macaron_tf.data import storage
from macaron_tf.errors import UserError


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
