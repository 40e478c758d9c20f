"""Whole files on disk or in a bucket (`gs://`), never half-written."""

import contextlib
import fnmatch
import os
from collections.abc import Iterator

import tensorflow as tf

from macaron_tf.errors import UserError


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path names a place in a bucket.

    Args:
        path: a path.
    """
    return "://" in os.fspath(path)


def join(folder: str | os.PathLike, name: str) -> str:
    """A file of a folder; pathlib would make `gs:/` of `gs://`.

    Args:
        folder: the folder.
        name: the file's name.
    """
    return f"{os.fspath(folder).rstrip('/')}/{name}"


def exists(path: str) -> bool:
    """Whether there is such a file.

    Args:
        path: the file.
    """
    return tf.io.gfile.exists(path)


def read_bytes(path: str) -> bytes:
    """Reads a file.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except tf.errors.OpError as error:
        raise UserError(f"cannot read {path}: {_reason(error)}; check the path") from error


@contextlib.contextmanager
def renamed_aside(path: str) -> Iterator[str]:
    """A place beside a file's, to be written within the `with`; then it takes the file's place.

    Args:
        path: the file; its folder is made when absent.

    Yields:
        Where to write.

    Raises:
        UserError: the place cannot be written.
    """
    folder, _, name = path.rpartition("/")
    aside = join(folder, f".tmp-{name}-{os.getpid()}") if folder else f".tmp-{name}-{os.getpid()}"
    try:
        if folder:
            tf.io.gfile.makedirs(folder)
        yield aside
        if not is_remote(path):
            _to_disk(aside)
        tf.io.gfile.rename(aside, path, overwrite=True)
    except tf.errors.OpError as error:
        raise UserError(f"cannot write {path}: {_reason(error)}; choose another place") from error
    finally:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(aside)


def write_aside(path: str, content: bytes) -> None:
    """`files.write_aside` for any file system of TensorFlow's.

    Args:
        path: the file; its folder is made when absent.
        content: what it will hold.

    Raises:
        UserError: the place cannot be written.
    """
    with renamed_aside(path) as aside, tf.io.gfile.GFile(aside, "wb") as file:
        file.write(content)


def matching(folder: str, pattern: str) -> list[str]:
    """The files of a folder whose names match a pattern.

    Args:
        folder: the folder.
        pattern: with `*` and `?`.
    """
    return sorted(
        join(folder, name) for name in tf.io.gfile.listdir(folder) if fnmatch.fnmatch(name, pattern)
    )


def remove(path: str) -> None:
    """Removes a file, or does nothing where there is none.

    Args:
        path: the file.
    """
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(path)


def _to_disk(path: str) -> None:
    """A rename may reach the disk before the content does; after a power cut that is a hole."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _reason(error: tf.errors.OpError) -> str:
    """The last part of TensorFlow's "PATH; No such file or directory"."""
    return error.message.splitlines()[0].rpartition("; ")[2][:200]
