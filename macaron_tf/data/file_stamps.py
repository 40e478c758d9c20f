"""What tells one state of a file from another, without reading all of it."""

import concurrent.futures
import hashlib
import os
from collections.abc import Sequence

import tensorflow as tf

from macaron_tf.data import storage

_END = 1 << 20  # bytes at either end of a file that are read
_THREADS = 16  # a bucket answers each question late, and many at once


def state_stamp(path: str | os.PathLike) -> tuple[str, int, int]:
    """Of a file that stays in its place: any writing changes it.

    Args:
        path: the file.

    Returns:
        Absolute path, size in bytes, time of change in nanoseconds.

    Raises:
        UserError: there is no such file.
    """
    with storage.clear_errors(f"cannot read {path}", "check the path"):
        if storage.is_remote(path):
            state = tf.io.gfile.stat(os.fspath(path))
            return os.fspath(path), state.length, state.mtime_nsec
        state = os.stat(path)
        return os.path.realpath(path), state.st_size, state.st_mtime_ns


def content_stamps(paths: Sequence[str | os.PathLike]) -> list[tuple[str, int, str]]:
    """Of files that may be copied or mounted elsewhere: their bytes alone change it.

    Bytes between the first and the last mebibyte count by their number only: sets of hundreds of
    gigabytes are not read for it.

    Args:
        paths: the files.

    Returns:
        Name, size in bytes, and SHA-256 (hex) of the first and the last mebibyte of each.

    Raises:
        UserError: a file cannot be read.
    """
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(_content_stamp, paths))


def same_contents(known: Sequence, found: Sequence) -> bool:
    """Whether stamps may be of the same bytes in the same order; names do not count.

    Args:
        known: stamps that were kept; earlier versions kept those of `state_stamp`, of which name
            and size can be compared, or one text over them all, which says nothing of a copy.
        found: those of now.
    """
    if len(known) == 1 and isinstance(known[0], str):
        return True
    pairs = zip(known, found, strict=False)
    return len(known) == len(found) and all(_same(*pair) for pair in pairs)


def _same(known: Sequence, found: Sequence) -> bool:
    if isinstance(known[2], int) and isinstance(found[2], str):
        return [os.path.basename(known[0]), known[1]] == [found[0], found[1]]
    return [known[1], known[2]] == [found[1], found[2]]


def _content_stamp(path: str | os.PathLike) -> tuple[str, int, str]:
    with storage.clear_errors(f"cannot read {path}", "check the path"):
        place = os.fspath(path) if storage.is_remote(path) else os.path.realpath(path)
        with tf.io.gfile.GFile(place, "rb") as file:
            size = file.size()
            digest = hashlib.sha256(file.read(_END))
            file.seek(max(size - _END, min(size, _END)))
            digest.update(file.read(_END))
        return os.path.basename(place), size, digest.hexdigest()
