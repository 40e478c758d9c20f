"""The cache folder, stamps that tell whether a file has changed, and the lock of a folder."""

import concurrent.futures
import contextlib
import gzip
import hashlib
import os
import pathlib
import zlib
from collections.abc import Iterator, Sequence

import filelock
import tensorflow as tf
from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress

_END = 1 << 20  # bytes at either end of a file that are read
_BLOCK = 1 << 22  # bytes
_THREADS = 16  # a bucket answers each request late, and many at once


def cache_directory() -> pathlib.Path:
    """The folder of everything that can be fetched or computed again; it is mapped into memory.

    Returns:
        `$MACARON_TF_CACHE` where that is set, otherwise `~/.cache/macaron_tf`.
    """
    named = os.environ.get("MACARON_TF_CACHE")
    if named and storage.is_remote(named):
        raise UserError(f"MACARON_TF_CACHE is {named}: the cache must be a folder on a local disk")
    return pathlib.Path(named) if named else pathlib.Path.home() / ".cache" / "macaron_tf"


def state_stamp(path: str | os.PathLike) -> tuple[str, int, int]:
    """A stamp of a file that stays in its place: any writing changes it.

    Returns:
        Absolute path, size in bytes, time of change in nanoseconds.
    """
    with storage.clear_errors(f"cannot read {path}", "check the path"):
        if storage.is_remote(path):
            state = tf.io.gfile.stat(os.fspath(path))
            return os.fspath(path), state.length, state.mtime_nsec
        state = os.stat(path)
        return os.path.realpath(path), state.st_size, state.st_mtime_ns


def content_stamps(paths: Sequence[str | os.PathLike]) -> list[tuple[str, int, str]]:
    """Stamps of files that may be copied or mounted elsewhere: only their bytes change them.

    Bytes between the first and the last mebibyte count by their number only, so that sets of
    hundreds of gigabytes are not read.

    Returns:
        Name, size in bytes, and SHA-256 (hex) of the first and the last mebibyte of each file.
    """
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(_content_stamp, paths))


def same_contents(known: Sequence, found: Sequence) -> bool:
    """Whether two lists of content stamps are of the same bytes in the same order."""
    return [list(stamp[1:]) for stamp in known] == [list(stamp[1:]) for stamp in found]


def _content_stamp(path: str | os.PathLike) -> tuple[str, int, str]:
    with storage.clear_errors(f"cannot read {path}", "check the path"):
        place = os.fspath(path) if storage.is_remote(path) else os.path.realpath(path)
        with tf.io.gfile.GFile(place, "rb") as file:
            size = file.size()
            digest = hashlib.sha256(file.read(_END))
            file.seek(max(size - _END, min(size, _END)))
            digest.update(file.read(_END))
        return os.path.basename(place), size, digest.hexdigest()


@contextlib.contextmanager
def only_writer(folder: str | os.PathLike, activity: str, wait: bool = False) -> Iterator[None]:
    """Keeps a second process from writing into a folder; a killed process frees it.

    Args:
        folder: made when absent; an empty `.lock` stays in it. A bucket has no locks: nothing is
            done there.
        wait: for another process that holds the folder, instead of refusing.

    Raises:
        UserError: another process holds the folder, or it cannot be written.
    """
    if storage.is_remote(folder):
        yield
        return
    folder = pathlib.Path(folder)
    lock = filelock.FileLock(folder / ".lock", blocking=wait)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Progress(f"waiting for another process that is {activity}"):
            held = lock.acquire()
    except filelock.Timeout as error:
        raise UserError(
            f"another process is {activity} in {folder}: wait for it or choose another folder"
        ) from error
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another place") from error
    with held:
        yield


def lines_of(path: epath.Path) -> Iterator[str]:
    """Lines of a plain or `.gz` file without their ends.

    Only line feeds end a line: U+2028, NEL and form feeds stay inside it.

    Raises:
        UserError: the file cannot be read, is not UTF-8, has a first line full of zero bytes, as
            UTF-16 without a byte order mark has, or is no whole gzip file.
    """
    number = 0
    try:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(path.open("rb"))
            if path.suffix == ".gz":
                file = opened.enter_context(gzip.open(file))
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if number == 1 and 3 * line.count(0) >= len(line):  # half of English in UTF-16
                    raise UserError(
                        f"{path}, line 1 is full of zero bytes, as UTF-16 is: convert the file to "
                        "UTF-8"
                    )
                yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x}); "
            "convert the file to UTF-8"
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file: {error}; compress it again") from error
    except storage.FILE_ERRORS as error:
        raise UserError(f"cannot read {path}: {storage.reason(error)}; check the path") from error


def count_lines(path: epath.Path) -> int:
    """The number of `lines_of` a plain file, without decoding them."""
    count, last = 0, b"\n"
    with storage.clear_errors(f"cannot read {path}", "check the path"), path.open("rb") as file:
        while block := file.read(_BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
