"""The cache folder, stamps that tell whether a file has changed, and the lock of a folder."""

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

_END = 1 << 20  # bytes at either end of a file that are read
_BLOCK = 1 << 22  # bytes
_PACKERS = {".gz": gzip, ".bz2": bz2, ".xz": lzma}
# First bytes of zip (workbooks too), Zstandard, gzip, bzip2 and xz.
_BINARY = (b"PK\3\4", b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"BZh91AY", b"\xfd7zXZ")
_THREADS = 16  # a bucket answers each request late, and many at once


def cache_directory() -> pathlib.Path:
    """The folder of everything that can be fetched or computed again; it is mapped into memory.

    It is `$MACARON_TF_CACHE` where that is set, otherwise `~/.cache/macaron_tf`.
    """
    named = os.environ.get("MACARON_TF_CACHE")
    if named:
        return pathlib.Path(check_path(named, local=True, name="MACARON_TF_CACHE"))
    return pathlib.Path.home() / ".cache" / "macaron_tf"


def state_stamp(path: str | os.PathLike) -> tuple[str, int, int]:
    """A stamp of a file that stays in its place: any writing changes it.

    It is the absolute path, size in bytes, time of change in nanoseconds.
    """
    with storage.clear_errors(f"cannot read {path}", "check the path"):
        if storage.is_remote(path):
            state = tf.io.gfile.stat(os.fspath(path))
            return os.fspath(path), state.length, state.mtime_nsec
        state = os.stat(path)
        return os.path.realpath(path), state.st_size, state.st_mtime_ns


def content_stamps(paths: Sequence[str | os.PathLike]) -> list[tuple[str, int, str]]:
    """Stamps of files that may be copied or mounted elsewhere: only their bytes change them.

    Each is name, size in bytes, and SHA-256 (hex) of the first and the last mebibyte: bytes between
    count by their number only, so that sets of hundreds of gigabytes are not read.
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


def is_compressed(path: epath.Path) -> bool:
    """Whether `lines_of` unpacks a file, by its name: `.gz`, `.bz2` or `.xz`."""
    return path.suffix.lower() in _PACKERS


def lines_of(path: epath.Path) -> Iterator[str]:
    """Lines of a plain or compressed file without their ends.

    Only line feeds end a line: U+2028, NEL and form feeds stay inside it.

    Raises:
        UserError: the file cannot be read, is not UTF-8, has a first line full of zero bytes, as
            UTF-16 without a byte order mark has, is an archive, or is not whole.
    """
    number = 0
    try:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(path.open("rb"))
            if is_compressed(path):
                file = opened.enter_context(_PACKERS[path.suffix.lower()].open(file))
            for number, line in enumerate(file, start=1):
                if number == 1 and line.startswith(_BINARY):
                    raise UserError(
                        f"{path} is an archive, a workbook or compressed: save its text alone, as "
                        "it is or in a file named .gz, .bz2 or .xz"
                    )
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
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        name = _PACKERS[path.suffix.lower()].__name__
        raise UserError(f"{path} is not a whole {name} file: {error}; compress it again") from error
    except storage.FILE_ERRORS as error:
        raise UserError(f"cannot read {path}: {storage.reason(error)}; check the path") from error


def is_csv(path: epath.Path) -> bool:
    """Whether `table_rows` reads a file by CSV's rules, by its name."""
    return ".csv" in map(str.lower, path.suffixes)


def table_rows(path: epath.Path) -> Iterator[tuple[int, list[str]]]:
    """The line and the cells of each row of a table; blank lines at its end are no rows.

    A `.csv` file follows CSV's rules, with the separator of its first line: comma, semicolon or
    tab. Elsewhere tabs separate columns and quotes are letters, since GLUE's files have stray ones.
    Only a cell such as `"He said ""go\"""`, as pandas and Excel write it, is unquoted there.
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
        raise UserError(
            f"{path}, line {rows.line_num}: {error}; quote cells as CSV does, or name the file .tsv"
        ) from error


def _without_blank_end(path: epath.Path) -> Iterator[str]:
    held = []
    for line in lines_of(path):
        held.append(line)
        if line.strip().strip(",;"):  # spreadsheets write the separators of empty rows
            yield from held
            held.clear()


def _unquoted(cell: str) -> str:
    whole = re.fullmatch(r'"((?:[^"]|"")*)"', cell)
    return whole[1].replace('""', '"') if whole and '""' in whole[1] else cell


def count_lines(path: epath.Path) -> int:
    """The number of `lines_of` a plain file, without decoding them."""
    count, last = 0, b"\n"
    with storage.clear_errors(f"cannot read {path}", "check the path"), path.open("rb") as file:
        while block := file.read(_BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")
