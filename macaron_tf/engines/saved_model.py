"""A task as a SavedModel: the versions of a served model, written whole or not at all."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from etils import epath

from macaron_tf.engines.graph import TaskGraph
from macaron_tf.engines.warm_up import write_warm_up
from macaron_tf.errors import UserError
from macaron_tf.io import paths
from macaron_tf.io.progress import Progress
from macaron_tf.io.serving import MAX_VERSION, MODEL_FILE, version_of


@contextlib.contextmanager
def _aside(out: os.PathLike) -> Iterator[str]:
    """A folder within `out` to write a version in, removed at the end, or by a later export.

    A lock, which ends with its process, tells a folder in use from one that a killed export left.
    """
    with contextlib.ExitStack() as stack:
        with _lock(out):  # nobody sees the new folder before it has its lock
            for entry in pathlib.Path(out).iterdir():
                if _left_over(entry):
                    shutil.rmtree(entry, ignore_errors=True)
            made = tempfile.TemporaryDirectory(prefix=".tmp-", dir=out)
            stack.enter_context(_lock(made.name))
        yield stack.enter_context(made)


@contextlib.contextmanager
def _lock(folder: str | os.PathLike, wait: bool = True) -> Iterator[None]:
    """Locks a folder; a BlockingIOError where another process holds it, unless it is waited for."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _left_over(entry: pathlib.Path) -> bool:
    """Whether an entry is a folder of `_aside` that no process holds; no user's copy."""
    if not re.fullmatch(r"\.tmp-[a-z0-9_]{8}", entry.name) or not entry.is_dir():
        return False
    try:
        with _lock(entry, wait=False):
            return all(version_of(inner.name) is not None for inner in entry.iterdir())
    except OSError:
        return False


def write_version(
    graph: TaskGraph,
    record: dict[str, Any],
    out: str | os.PathLike,
    version: int | None = None,
) -> epath.Path:
    """Writes a SavedModel as a new version, beside it its vocabulary, a record, warm-up requests.

    Args:
        record: facts about the model, for `assets.extra/export.json`.
        out: the model's folder, `gs://` included; made when absent.
        version: by default one more than the greatest there is.

    Returns:
        The version's folder. It appears under its name only when it is whole; in a bucket, where
        no folder can be renamed, its `saved_model.pb` comes last.

    Raises:
        UserError: the version exists, `out` cannot be written, or no graph cuts the texts.
    """
    out, task, restored = paths.as_path(out), graph.task, graph.restored()
    # TensorFlow reports a full disk as one of its own errors.
    with paths.clear_errors(f"{out} cannot be written", "choose another place"):
        paths.make_folders(out)
        given, version = version, _free(out, version)
        remote = paths.is_remote(out)
        # Written beside its place where it can be renamed into it.
        place = tempfile.TemporaryDirectory() if remote else _aside(out)
        with Progress("exporting"), place as folder:
            aside = pathlib.Path(folder) / str(version)
            tf.saved_model.save(restored, str(aside), signatures=graph.signatures)
            extra = aside / "assets.extra"
            task.vocabulary.save(extra)
            computed = {"compute_dtype": task.network.compute_dtype}
            record = {**record, **computed, "vocabulary": task.vocabulary.hash}
            (extra / "export.json").write_text(json.dumps(record, indent=2) + "\n")
            write_warm_up(aside, graph.signatures, task.typical_texts())
            if remote:
                paths.upload(aside, out / str(version), last=MODEL_FILE)
            else:
                with _lock(out):  # meanwhile another export may have taken the number
                    version = _free(out, given)
                    aside.rename(out / str(version))
    return out / str(version)


def _free(out: epath.Path, given: int | None) -> int:
    """The number of a new version: the given one, or one more than the greatest there is."""
    found = [version_of(entry.name) for entry in out.iterdir()]
    versions = {number for number in found if number is not None}
    version = given if given is not None else max(versions, default=0) + 1
    if not 1 <= version <= MAX_VERSION:
        raise UserError(f"--version {version}: give a free number of 1 to {MAX_VERSION}")
    if version in versions:
        raise UserError(f"--version {version} exists in {out}: give another or leave it out")
    return version
