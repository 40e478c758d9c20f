"""File helpers: the cache folder, stamps that detect changes, folder locks, and text readers."""

import bz2
import concurrent.futures
import contextlib
import csv
import gzip
import hashlib
import lzma
import os
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence

import filelock
import tensorflow as tf
from etils import epath

from macaron_tf.errors import UserError, check_path
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress

_END = 1 << 20  # number of bytes that a stamp reads at each end of a file
_COMPRESSION_MODULES = {".gz": gzip, ".bz2": bz2, ".xz": lzma}
# How a file in UTF-16 begins: with a byte order mark, or with a zero byte beside a letter.
_WIDE = re.compile(rb"\xff\xfe|\xfe\xff|\0[^\0]|[^\0]\0")
_THREADS = 16  # requests to a bucket have a high latency but can run in parallel


def cache_directory() -> pathlib.Path:
    """Returns the local folder for files that can be downloaded or computed again.

    It is `$MACARON_TF_CACHE` or `~/.cache/macaron_tf`, local because its files are memory-mapped.
    """
    folder = os.environ.get("MACARON_TF_CACHE")
    if not folder:
        return pathlib.Path.home() / ".cache" / "macaron_tf"
    return pathlib.Path(check_path(folder, local=True, name="MACARON_TF_CACHE"))


def state_stamp(path: str | os.PathLike) -> tuple[str, int, int]:
    """Returns path, bytes and nanoseconds, which change whenever a file is written or moved."""
    with storage.clear_errors(f"cannot read {path}", "check the path"):
        if storage.is_remote(path):
            state = tf.io.gfile.stat(os.fspath(path))
            return os.fspath(path), state.length, state.mtime_nsec
        state = os.stat(path)
        return os.path.realpath(path), state.st_size, state.st_mtime_ns


def content_stamps(paths: Sequence[str | os.PathLike]) -> list[tuple[str, int, str]]:
    """Returns stamps that stay the same when files are copied or mounted elsewhere.

    A stamp has the name of the file or link target, its size in bytes, and the SHA-256 digest of
    its first and last mebibyte, because datasets may have hundreds of gigabytes.
    """
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(_content_stamp, paths))


def same_contents(stamps: Sequence, other_stamps: Sequence) -> bool:
    """Returns whether two lists of content stamps are equal except for the file names."""
    return [list(stamp[1:]) for stamp in stamps] == [list(stamp[1:]) for stamp in other_stamps]


def _content_stamp(path: str | os.PathLike) -> tuple[str, int, str]:
    storage.refuse_device(path)
    with storage.clear_errors(f"cannot read {path}", "check the path"):
        real_path = os.fspath(path) if storage.is_remote(path) else os.path.realpath(path)
        with tf.io.gfile.GFile(real_path, "rb") as file:
            size = file.size()
            digest = hashlib.sha256(file.read(_END))
            file.seek(max(size - _END, min(size, _END)))
            digest.update(file.read(_END))
        return os.path.basename(real_path), size, digest.hexdigest()


@contextlib.contextmanager
def only_writer(folder: str | os.PathLike, activity: str, wait: bool = False) -> Iterator[None]:
    """Locks a folder for the `with` block, so that no second process writes into it.

    The lock ends with the process. An empty file `.lock` remains. A folder in a bucket is not
    locked. `activity`, such as "training", is for messages. `wait` waits for another process.
    """
    if storage.is_remote(folder):
        yield
        return
    folder = pathlib.Path(folder)
    lock = filelock.FileLock(folder / ".lock", blocking=wait)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Progress(f"waiting for another process that is {activity}"):
            acquired = lock.acquire()
    except filelock.Timeout as error:
        raise UserError(f"another process is {activity} in {folder}: wait until it ends") from error
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror}): choose another path") from error
    with acquired:
        yield


def lines_of(path: epath.Path) -> Iterator[str]:
    """Yields the lines of a plain text file, or of a .gz, .bz2 or .xz file, without line ends.

    Only a line feed ends a line, not U+2028, NEL or a form feed.
    """
    storage.refuse_device(path)
    number = 0
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(path.open("rb"))
            if module := _COMPRESSION_MODULES.get(path.suffix.lower()):
                file = stack.enter_context(module.open(file))
            for number, line in enumerate(file, start=1):
                if number == 1 and _WIDE.match(line):
                    mend = f"convert it, as by `iconv -f UTF-16 -t UTF-8 {path} > NEW`"
                    raise UserError(f"{path} is UTF-16, not UTF-8: {mend}")
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield text.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{path}, line {number} is not UTF-8 (byte 0x{byte:02x})") from error
    except (EOFError, zlib.error, lzma.LZMAError, *storage.FILE_ERRORS) as error:
        why = storage.reason(error)
        raise UserError(f"cannot read {path} ({why}): check or restore the file") from error


def is_csv(path: epath.Path) -> bool:
    """Returns whether `table_rows` reads a file as CSV, such as `table.csv` or `table.csv.gz`."""
    return ".csv" in map(str.lower, path.suffixes)


def table_rows(path: epath.Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the cells of each row of a table, without blank rows at its end.

    Line numbers are counted from 1. A CSV row of several lines has the number of its last line.

    A `.csv` file is read as CSV. The separator is the comma, semicolon or tab, whichever is most
    frequent in the first line. In any other file, tabs separate columns, and quotation marks are
    ordinary characters, because GLUE's files have unpaired quotation marks. There is one exception.
    A quoted cell with doubled quotation marks, such as `"He said ""go\"""`, is unquoted, because
    pandas and Excel write such cells.
    """
    if not is_csv(path):
        for number, line in enumerate(_without_blank_end(path), start=1):
            cells = line.split("\t")
            yield number, list(map(_unquoted, cells)) if '""' in line else cells
        return
    separator = max(",\t;", key=next(lines_of(path), "").count)
    lines = (f"{line}\n" for line in _without_blank_end(path))
    rows = csv.reader(lines, delimiter=separator, strict=True)
    try:
        yield from ((rows.line_num, cells) for cells in rows)
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num} is not valid CSV ({error})") from error


def _without_blank_end(path: epath.Path) -> Iterator[str]:
    pending = []
    for line in lines_of(path):
        pending.append(line)
        if line.strip().strip(",;"):  # spreadsheets write the separators of empty rows
            yield from pending
            pending.clear()


def _unquoted(cell: str) -> str:
    quoted = re.fullmatch(r'"((?:[^"]|"")*)"', cell)
    return quoted[1].replace('""', '"') if quoted and '""' in quoted[1] else cell
