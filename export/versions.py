"""A model's folder: one subfolder a version, each of them whole or not there."""

import json
import os
import pathlib
import shutil

import tensorflow as tf

from macaron_tf.errors import UserError


def write_version(
    module: tf.Module, vocabulary, record: dict, out: pathlib.Path, version: int | None = None
) -> pathlib.Path:
    """Writes a SavedModel as a new version, with its vocabulary and a record beside it.

    Args:
        module: has `signatures()`, the concrete functions by name.
        vocabulary: has `save(folder)` and `hash`.
        record: what is worth knowing about the model, for `assets.extra/export.json`.
        out: the model's folder; made when absent.
        version: number of the version; by default one more than the greatest there is.

    Returns:
        The version's folder. It appears under its name only when it is whole.

    Raises:
        UserError: the version exists, or `out` cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        versions = [int(entry.name) for entry in out.iterdir() if entry.name.isdigit()]
        version = version if version is not None else max(versions, default=0) + 1
        if version < 1:
            raise UserError(f"--version {version}: give a whole number of 1 or more")
        if version in versions:
            raise UserError(f"--version {version} exists in {out}: give another or leave it out")
        aside = out / f".tmp-{version}-{os.getpid()}"
        try:
            tf.saved_model.save(module, str(aside), signatures=module.signatures())
            extra = aside / "assets.extra"
            vocabulary.save(extra)
            record = {**record, "vocabulary": vocabulary.hash}
            (extra / "export.json").write_text(json.dumps(record, indent=2) + "\n")
            aside.rename(out / str(version))
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    # TensorFlow reports a full disk as one of its own errors.
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"{out} cannot be written: {reason}; choose another place") from error
    return out / str(version)
