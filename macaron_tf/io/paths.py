"""Paths on disk or in a bucket (`gs://`), and files that are never half-written."""

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
# Errors of reading a record whose content is not as it was written.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def as_path(path: str | os.PathLike) -> epath.Path:
    """A path with pathlib's methods, on disk or in a bucket (`gs://BUCKET/NAME`)."""
    check_path(os.fspath(path))
    try:
        return epath.Path(path)
    except KeyError as error:  # of `x=gs://bucket`
        raise UserError(f"{path}: give a local path or gs://BUCKET/NAME alone") from error


@contextlib.contextmanager
def clear_errors(
    what: str, mend: str = "check its permissions and the free space"
) -> Iterator[None]:
    """Turns a file error within the `with` into a UserError of one sentence.

    Args:
        mend: of a file on disk; a bucket's refusals have their own.
    """
    try:
        yield
    except FILE_ERRORS as error:
        why, correction = store_problem(error) or (reason(error), mend)
        raise UserError(f"{what}: {why}; {correction}") from error


@contextlib.contextmanager
def refuse_damage(path: str | os.PathLike, mend: str) -> Iterator[None]:
    """Turns an error in a record's content within the `with` into a UserError of one sentence."""
    try:
        yield
    except DAMAGE as error:
        why = f" ({str(error)[:200]})" if isinstance(error, ValueError) else ""
        raise UserError(f"{path} is damaged{why}: {mend}") from error


def read_json(
    path: str | os.PathLike, kind: type = dict, /, mend: str = "restore it", **fields: type
) -> Any:
    """The value in a JSON file, see `parse_json`; a UserError of another file, with the mend."""
    with refuse_damage(path, mend):
        return parse_json(read_bytes(path), kind, **fields)


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path names a place in a bucket, where nothing can be locked or renamed at once."""
    return "://" in os.fspath(path)


def reason(error: Exception) -> str:
    """The last words of one of `FILE_ERRORS`, such as "Permission denied"."""
    if problem := store_problem(error):
        return problem[0]
    # TensorFlow says "PATH; No such file or directory".
    text = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rpartition("; ")[2][:200]


def absolute(path: str | os.PathLike) -> epath.Path:
    """A path for processes of other folders; one in a bucket stays as it is."""
    return as_path(path) if is_remote(path) else as_path(os.path.abspath(path))


def is_file(path: str | os.PathLike) -> bool:
    """Whether a path is a regular file, or a link to one; epath's own takes devices for files."""
    return as_path(path).is_file() and (is_remote(path) or os.path.isfile(path))


def make_folders(path: str | os.PathLike) -> None:
    """Makes a folder and those above it.

    Raises:
        UserError: its bucket does not exist; TensorFlow would look for it for ever.
    """
    path = os.fspath(path)
    if path.startswith("gs://"):
        bucket = "/".join(path.split("/", 3)[:3])
        if not tf.io.gfile.exists(f"{bucket}/"):
            raise UserError(f"there is no bucket {bucket}: make it, or correct its name")
    tf.io.gfile.makedirs(path)


def refuse_device(path: str | os.PathLike) -> None:
    """Refuses a device or a pipe, which could be read for ever."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path} is no regular file: replace it by one")


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a regular file; a UserError where it cannot be read."""
    refuse_device(path)
    clear = clear_errors(f"cannot read {path}", "check the path")
    with clear, tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


@contextlib.contextmanager
def renamed_aside(path: str | os.PathLike, mend: str = "choose another place") -> Iterator[str]:
    """Yields a path beside a file's, to be written within the `with`; it then replaces the file.

    The file's folder is made when absent. A link stays, and the file that it names is replaced. A
    device or a pipe cannot be replaced: its own path is yielded. A file error within the `with` is
    a UserError that calls the place unwritable.
    """
    clear = functools.partial(clear_errors, f"cannot write {path}", mend)
    with _renamed(path, clear) as aside, clear():
        yield aside


class OutputFile:
    """A file that is written aside, whose failures are UserErrors; see `open_aside`."""

    def __init__(self, path: str, clear: Callable[[], contextlib.AbstractContextManager]):
        self._clear = clear
        self._file = tf.io.gfile.GFile(path, "wb")
        self.write(b"")  # a GFile is opened by its first write

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
    """Opens a file that replaces `path` at the end of the `with`; see `renamed_aside`.

    Where the `with` computes what it writes, an error of TensorFlow's, such as memory that ran out,
    stays what it is.
    """
    clear = functools.partial(clear_errors, f"cannot write {path}", "choose another place")
    with _renamed(path, clear) as aside, contextlib.closing(OutputFile(aside, clear)) as file:
        yield file


@contextlib.contextmanager
def _renamed(
    path: str | os.PathLike, clear: Callable[[], contextlib.AbstractContextManager]
) -> Iterator[str]:
    """As `renamed_aside`, but that errors within the `with` stay what they are."""
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
                # A rename may reach the disk before the content does; after a power cut: a hole.
                sync(aside)
            tf.io.gfile.rename(aside, place, overwrite=True)
            if not remote:
                sync(path.parent)
    finally:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(aside)


def write_aside(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file as a whole or not at all, see `renamed_aside`."""
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
    """Raises an OSError where a local disk has no room for `size` bytes.

    For libraries that crash on a full disk.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)


@contextlib.contextmanager
def local_copy(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Yields a file for libraries that open none in a bucket.

    It is the file itself where it is on disk, else a copy that lasts as long as the `with`.
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
    """Copies a local folder's files into a bucket, where no folder can be renamed at once.

    Args:
        last: name of the file that makes the copy valid: it comes after all the others.
    """
    files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (path.name == last, path)):
        target = as_path(destination) / path.relative_to(folder).as_posix()
        make_folders(target.parent)
        tf.io.gfile.copy(os.fspath(path), os.fspath(target), overwrite=True)
