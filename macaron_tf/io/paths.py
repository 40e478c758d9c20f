"""Paths on disk or in a bucket (`gs://`), and atomic writing of files."""

import contextlib
import functools
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from etils import epath

from macaron_tf.errors import UserError, check_path, parse_json, store_problem

# Errors of reading or writing a file: Python's on disk, TensorFlow's in a bucket.
FILE_ERRORS = (OSError, tf.errors.OpError)
# Errors of reading a record whose content is damaged.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def as_path(path: str | os.PathLike) -> epath.Path:
    """Makes a path with pathlib's methods, on disk or in a bucket (`gs://BUCKET/NAME`)."""
    check_path(os.fspath(path))
    try:
        return epath.Path(path)
    except KeyError as error:  # such as x=gs://bucket
        raise UserError(f"{path}: give a local path or gs://BUCKET/NAME alone") from error


@contextlib.contextmanager
def clear_errors(
    what: str, mend: str = "check its permissions and the free space"
) -> Iterator[None]:
    """Turns a file error within the `with` into a UserError of one sentence.

    Args:
        what: beginning of the message, such as "cannot read FILE".
        mend: what to do about a local file; errors of buckets have their own advice.
    """
    try:
        yield
    except FILE_ERRORS as error:
        why, correction = store_problem(error) or (reason(error), mend)
        raise UserError(f"{what}: {why}; {correction}") from error


@contextlib.contextmanager
def refuse_damage(path: str | os.PathLike, mend: str) -> Iterator[None]:
    """Turns errors from a damaged record within the `with` into a UserError of one sentence.

    Args:
        path: the record's file, for the message.
        mend: what to do, for the message.
    """
    try:
        yield
    except DAMAGE as error:
        why = f" ({str(error)[:200]})" if isinstance(error, ValueError) else ""
        raise UserError(f"{path} is damaged{why}: {mend}") from error


def read_json(
    path: str | os.PathLike, kind: type = dict, /, mend: str = "restore it", **fields: type
) -> Any:
    """Reads a JSON file and checks it by `parse_json`.

    Args:
        path: the file.
        kind: type of the whole value.
        mend: what to do about a damaged file, for the message.
        fields: types of fields that must be present.

    Raises:
        UserError: the file cannot be read or is damaged.
    """
    with refuse_damage(path, mend):
        return parse_json(read_bytes(path), kind, **fields)


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path is in a bucket, where there are no locks and no atomic renaming of folders."""
    return "://" in os.fspath(path)


def reason(error: Exception) -> str:
    """The reason in the message of one of `FILE_ERRORS`, such as "Permission denied"."""
    if problem := store_problem(error):
        return problem[0]
    # TensorFlow's message is "PATH; No such file or directory".
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rpartition("; ")[2][:200]


def absolute(path: str | os.PathLike) -> epath.Path:
    """Makes a path absolute, unless it is in a bucket."""
    return as_path(path) if is_remote(path) else as_path(os.path.abspath(path))


def is_file(path: str | os.PathLike) -> bool:
    """Whether a path is a regular file or a link to one. epath's `is_file` also accepts devices."""
    return as_path(path).is_file() and (is_remote(path) or os.path.isfile(path))


def make_folders(path: str | os.PathLike) -> None:
    """Makes a folder and its parents.

    Raises:
        UserError: its bucket does not exist. TensorFlow would repeat the request without end.
    """
    path = os.fspath(path)
    if path.startswith("gs://"):
        bucket = "/".join(path.split("/", 3)[:3])
        if not tf.io.gfile.exists(f"{bucket}/"):
            raise UserError(f"there is no bucket {bucket}: create it, or correct its name")
    tf.io.gfile.makedirs(path)


def refuse_device(path: str | os.PathLike) -> None:
    """Raises a UserError for a device or a pipe, because reading it might never end."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path} is no regular file: give a regular file")


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a regular file; raises a UserError if that fails."""
    refuse_device(path)
    clear = clear_errors(f"cannot read {path}", "check the path")
    with clear, tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


@contextlib.contextmanager
def renamed_aside(path: str | os.PathLike, mend: str = "choose another place") -> Iterator[str]:
    """Writes a file atomically: yields a temporary path, which replaces the file after the `with`.

    The temporary path is in the file's folder, which is made when absent. If the file is a link,
    the file that it points to is replaced. A device or a pipe cannot be replaced, so its own path
    is yielded.

    Args:
        path: the file.
        mend: what to do if writing fails, for the message.

    Raises:
        UserError: a file error occurs within the `with` or in replacing the file.
    """
    clear = functools.partial(clear_errors, f"cannot write {path}", mend)
    with _renamed(path, clear) as aside, clear():
        yield aside


class OutputFile:
    """A file for writing that raises UserErrors; see `open_aside`."""

    def __init__(self, path: str, clear: Callable[[], contextlib.AbstractContextManager]):
        self._clear = clear
        self._file = tf.io.gfile.GFile(path, "wb")
        self.write(b"")  # the first write opens a GFile

    def write(self, data: bytes) -> None:
        with self._clear():
            self._file.write(data)

    def flush(self) -> None:
        with self._clear():
            self._file.flush()

    def close(self) -> None:
        with self._clear():
            self._file.close()


@contextlib.contextmanager
def open_aside(path: str | os.PathLike) -> Iterator[OutputFile]:
    """Opens a temporary file that replaces `path` after the `with`; see `renamed_aside`.

    Only errors of writing become a UserError. Other errors of TensorFlow within the `with`, such as
    running out of memory, are not changed.
    """
    clear = functools.partial(clear_errors, f"cannot write {path}", "choose another place")
    with _renamed(path, clear) as aside, contextlib.closing(OutputFile(aside, clear)) as file:
        yield file


@contextlib.contextmanager
def _renamed(
    path: str | os.PathLike, clear: Callable[[], contextlib.AbstractContextManager]
) -> Iterator[str]:
    """Does the work of `renamed_aside`, without changing errors within the `with`."""
    remote, place = is_remote(path), os.fspath(path)
    if not remote:
        place = os.path.realpath(path)
        if os.path.exists(place) and not (os.path.isfile(place) or os.path.isdir(place)):
            yield place
            return
    path = as_path(place)
    aside = os.fspath(path.with_name(f".tmp-{path.name}-{os.getpid()}"))
    try:
        with clear():
            make_folders(path.parent)
        yield aside
        with clear():
            if not remote:
                # A rename may reach the disk before the content. Then a power failure between the
                # two would leave an empty file.
                sync(aside)
            tf.io.gfile.rename(aside, place, overwrite=True)
            if not remote:
                sync(path.parent)
    finally:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(aside)


def write_aside(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file atomically; see `renamed_aside`."""
    with renamed_aside(path) as aside, tf.io.gfile.GFile(aside, "wb") as file:
        file.write(content)


def sync(path: str | os.PathLike) -> None:
    """Waits until a local file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size(path: str | os.PathLike) -> int:
    return tf.io.gfile.stat(os.fspath(path)).length


def file_digest(path: str | os.PathLike) -> str:
    """SHA-256 (hex) of a file's bytes."""
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(os.fspath(path), "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def require_room(folder: str | os.PathLike, size: int) -> None:
    """Raises an OSError if a local disk has no room for `size` bytes.

    Call it before libraries that crash on a full disk.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)


@contextlib.contextmanager
def local_copy(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a local path of a file, for libraries that cannot read from a bucket.

    A file in a bucket is copied to a temporary folder, which is removed after the `with`.
    """
    if not is_remote(path):
        refuse_device(path)
        yield pathlib.Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="macaron_tf-") as folder:
        copy = pathlib.Path(folder) / as_path(path).name
        tf.io.gfile.copy(os.fspath(path), os.fspath(copy), overwrite=True)
        yield copy


def upload(folder: str | os.PathLike, destination: str | os.PathLike, last: str) -> None:
    """Copies a local folder's files into a bucket.

    Args:
        folder: the local folder.
        destination: the folder in the bucket.
        last: name of the file to copy last, whose presence shows that the copy is complete.
    """
    files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (path.name == last, path)):
        target = as_path(destination) / path.relative_to(folder).as_posix()
        make_folders(target.parent)
        tf.io.gfile.copy(os.fspath(path), os.fspath(target), overwrite=True)
