"""A model's folder: one subfolder a version, each of them whole or not there."""

import json
import os
import pathlib
import tempfile

import tensorflow as tf
from etils import epath

from export.server.folders import MODEL_FILE
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.kernels import implementation_scope


def write_version(
    module: tf.Module, vocabulary, record: dict, out: str | os.PathLike, version: int | None = None
) -> epath.Path:
    """Writes a SavedModel as a new version, with its vocabulary and a record beside it.

    Args:
        module: has `signatures()`, the concrete functions by name.
        vocabulary: has `save(folder)` and `hash`.
        record: what is worth knowing about the model, for `assets.extra/export.json`.
        out: the model's folder, `gs://` included; made when absent.
        version: number of the version; by default one more than the greatest there is.

    Returns:
        The version's folder. It appears under its name only when it is whole; in a bucket, where
        no folder can be renamed, its `saved_model.pb` comes last.

    Raises:
        UserError: the version exists, or `out` cannot be written.
    """
    out = storage.as_path(out)
    # TensorFlow reports a full disk as one of its own errors.
    with storage.clear_errors(f"{out} cannot be written", "choose another place"):
        out.mkdir(parents=True, exist_ok=True)
        versions = [int(entry.name) for entry in out.iterdir() if entry.name.isdigit()]
        version = version if version is not None else max(versions, default=0) + 1
        if version < 1:
            raise UserError(f"--version {version}: give a whole number of 1 or more")
        if version in versions:
            raise UserError(f"--version {version} exists in {out}: give another or leave it out")
        remote = storage.is_remote(out)
        # Beside its place where it can be renamed into it.
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=None if remote else out) as folder:
            aside = pathlib.Path(folder) / str(version)
            with implementation_scope("loop"):  # of stock ops: a server has no others
                signatures = module.signatures()
            tf.saved_model.save(module, str(aside), signatures=signatures)
            extra = aside / "assets.extra"
            vocabulary.save(extra)
            record = {**record, "vocabulary": vocabulary.hash}
            (extra / "export.json").write_text(json.dumps(record, indent=2) + "\n")
            if remote:
                storage.upload(aside, out / str(version), last=MODEL_FILE)
            else:
                aside.rename(out / str(version))
    return out / str(version)
