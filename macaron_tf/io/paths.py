"""Paths on disk or in a Google Cloud Storage bucket (`gs://`), and atomic file writing."""

import contextlib
import errno
import functools
import hashlib
import os
import pathlib
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import tensorflow as tf
from etils import epath

from macaron_tf.errors import UserError, check_path, first_line, parse_json

# Errors of file access: Python raises an OSError, and TensorFlow raises an OpError.
FILE_ERRORS = (OSError, tf.errors.OpError)
# Errors that reading a record with damaged content may raise.
# zipfile raises a RuntimeError for an encrypted file.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError)
DAMAGE += (zlib.error, zipfile.BadZipFile)


def as_path(path: str | os.PathLike) -> epath.Path:
    """Returns a path with pathlib's methods, on disk or in a bucket (`gs://BUCKET/NAME`)."""
    check_path(os.fspath(path))
    try:
        return epath.Path(path)
    except KeyError as error:  # such as x=gs://bucket
        raise UserError(f"{path} is not a path: give a local path or gs://BUCKET/NAME") from error


@contextlib.contextmanager
def clear_errors(
    failure: str,
    mend: str = "check its permissions and the free space",
    errors: tuple[type[Exception], ...] = FILE_ERRORS,
) -> Iterator[None]:
    """Turns a file error in the `with` block into a UserError of one sentence.

    `failure` begins the message, such as "cannot read FILE", and `mend` ends it.
    """
    try:
        yield
    except errors as error:
        raise UserError(f"{failure} ({reason(error)}): {mend}") from error


@contextlib.contextmanager
def refuse_damage(path: str | os.PathLike, mend: str) -> Iterator[None]:
    """Turns an error in `DAMAGE` that the `with` block raises into a UserError of one sentence."""
    try:
        yield
    except DAMAGE as error:
        why = f" ({first_line(error):.200})" if isinstance(error, ValueError) else ""
        raise UserError(f"{path} is damaged{why}: {mend}") from error


def read_json(
    path: str | os.PathLike,
    value_type: type = dict,
    /,
    mend: str = "restore it from a copy",
    **fields: type,
) -> Any:
    """Reads a JSON file, and checks its value by `parse_json`; `mend` is for damaged files."""
    with refuse_damage(path, mend):
        return parse_json(read_bytes(path), value_type, **fields)


def read_optional(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the object in a JSON file, or an empty dict if the file cannot be read."""
    try:
        return read_json(path) if as_path(path).exists() else {}
    except UserError:
        return {}


def is_remote(path: str | os.PathLike) -> bool:
    """Returns whether a path is in a bucket.

    Unlike a disk, a bucket has no locks and no atomic renaming of folders.
    """
    return "://" in os.fspath(path)


def reason(error: Exception) -> str:
    """Returns the reason of a file error (see `FILE_ERRORS`), such as "Permission denied"."""
    # A message of TensorFlow has the form "PATH; No such file or directory".
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return first_line(error, text).rpartition("; ")[2][:200]


def absolute(path: str | os.PathLike) -> epath.Path:
    """Returns the absolute form of a path. A path in a bucket is absolute already."""
    return as_path(path) if is_remote(path) else as_path(os.path.abspath(path))


def is_file(path: str | os.PathLike) -> bool:
    """Returns whether a path is a regular file or a link to one. epath also accepts devices."""
    return as_path(path).is_file() and (is_remote(path) or os.path.isfile(path))


def make_folders(path: str | os.PathLike) -> None:
    """Creates a folder and its parents.

    A missing bucket raises a UserError, because TensorFlow would try again forever.
    """
    path = os.fspath(path)
    if path.startswith("gs://"):
        bucket = "/".join(path.split("/", 3)[:3])
        if not tf.io.gfile.exists(f"{bucket}/"):
            raise UserError(f"there is no bucket {bucket}: create it, or correct its name")
    tf.io.gfile.makedirs(path)


def refuse_device(path: str | os.PathLike) -> None:
    """Raises a UserError for a device or a pipe, because reading from a pipe might never end."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path} is a device or a pipe: give a regular file")


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a regular file, or raises a UserError if reading fails."""
    refuse_device(path)
    clear = clear_errors(f"cannot read {path}", "check the path")
    with clear, tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


@contextlib.contextmanager
def atomic_output_path(
    path: str | os.PathLike,
    errors: tuple[type[Exception], ...] = FILE_ERRORS,
    mend: str = "choose another path",
) -> Iterator[str]:
    """Yields a temporary path, whose file replaces the file at `path` after the `with` block.

    If the block raises an exception, the file at `path` stays unchanged. The folder is created if
    needed. If `path` is a link, its target is replaced. If `path` is a device or a pipe, which
    cannot be replaced, `path` itself is yielded. `errors` of the block become a UserError.
    """
    clear = functools.partial(clear_errors, f"cannot write {path}", mend)
    remote, target = is_remote(path), os.fspath(path)
    if not remote:
        target = os.path.realpath(path)
        if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
            with clear(errors=errors):
                yield target
            return
    folder, name = as_path(target).parent, as_path(target).name
    temporary_path = os.fspath(folder / f".tmp-{name}-{os.getpid()}")
    try:
        with clear():
            make_folders(folder)
        with clear(errors=errors):
            yield temporary_path
        with clear():
            if not remote:
                # Without this call, the rename may reach the disk before the content. A power
                # failure in between would leave an empty file.
                sync(temporary_path)
            tf.io.gfile.rename(temporary_path, target, overwrite=True)
            if not remote:
                sync(folder)
    finally:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(temporary_path)


@contextlib.contextmanager
def open_atomic(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a temporary file, which replaces `path` after the block; see `atomic_output_path`.

    Errors of TensorFlow in the block, such as running out of memory, stay unchanged.
    """
    with (
        atomic_output_path(path, errors=(OSError,)) as temporary_path,
        as_path(temporary_path).open("wb") as file,
    ):
        yield file


def write_atomic(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file atomically; see `atomic_output_path`."""
    with atomic_output_path(path) as temporary_path:
        as_path(temporary_path).write_bytes(content)


def sync(path: str | os.PathLike) -> None:
    """Waits until a local file or folder is written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size(path: str | os.PathLike) -> int:
    return tf.io.gfile.stat(os.fspath(path)).length


def file_digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 digest (hexadecimal) of a regular file's content."""
    refuse_device(path)
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(os.fspath(path), "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def require_disk_space(folder: str | os.PathLike, size: int) -> None:
    """Raises an OSError if a local disk lacks `size` bytes, at which a library may crash."""
    with tempfile.TemporaryFile(dir=folder) as file:
        if sys.platform == "linux":  # it also minds quotas
            os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(folder).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(folder))


@contextlib.contextmanager
def local_copy(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a local path of a file in a bucket, copied for the block, or of a local file."""
    if not is_remote(path):
        refuse_device(path)
        yield pathlib.Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="macaron_tf-") as folder:
        copy = pathlib.Path(folder) / as_path(path).name
        tf.io.gfile.copy(os.fspath(path), os.fspath(copy), overwrite=True)
        yield copy


def files_in(folder: str | os.PathLike) -> set[str]:
    """Returns the paths of all files in a folder and its subfolders, relative to the folder."""
    return {
        (as_path(parent) / name).relative_to(folder).as_posix()
        for parent, _, names in tf.io.gfile.walk(os.fspath(folder))
        for name in names
    }


def upload(folder: str | os.PathLike, destination: str | os.PathLike, last: str) -> None:
    """Copies a local folder's files, including subfolders, into a bucket.

    The files of another folder in the bucket are renamed instead. The file `last`, copied last,
    shows that the copy is complete.
    """
    transfer = tf.io.gfile.rename if is_remote(folder) else tf.io.gfile.copy
    for name in sorted(files_in(folder), key=lambda name: (name == last, name)):
        target = as_path(destination) / name
        make_folders(target.parent)
        transfer(os.fspath(as_path(folder) / name), os.fspath(target), overwrite=True)
