"""Stores of texts and token rows, which need not fit into memory.

Examples of labelled tasks stay in memory up to 16 MB, and move to temporary files beyond 16 MB.
Only text offsets, row lengths and labels always stay in memory. A tokenized parallel corpus lies in
memory-mapped files of the cache, which a killed process resumes.
"""

import array
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, Self

import numpy as np

from macaron_tf.data.processes import Processes
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import cache_directory, only_writer
from macaron_tf.io.progress import Progress
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows, fingerprint, id_dtype, map_array, offsets_of

FORMAT = 4  # increase this number if the layout or the meaning of the files changes
# Number of pairs per chunk. The number is part of the format, because a resumed run skips chunks.
CHUNK_PAIRS = 1 << 15
_RECORD = "tokens.json"  # rewritten after each chunk
_MEND = "make room or set MACARON_TF_CACHE to another folder, then run the same command again"
_MAX_MEMORY_BYTES = 1 << 24  # beyond this number, the bytes in memory are written to disk

Pairs = Sequence[tuple[str, str]]


class _Pool:
    """A growing sequence of bytes. Whenever 16 MB are in memory, they move to a temporary file.

    The file has no name, so the operating system deletes the file after its last use.
    """

    def __init__(self):
        self.buffer, self.file = bytearray(), None

    def add(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) >= _MAX_MEMORY_BYTES:
            self._flush()

    def finish(self) -> bool:
        """Returns whether all bytes are in `file`. Otherwise, all bytes are in `buffer`."""
        if self.file is not None:
            self._flush()
        return self.file is not None

    def _flush(self) -> None:
        folder = cache_directory()
        mend = "free disk space, or set MACARON_TF_CACHE to another folder"
        with storage.clear_errors(f"cannot write into {folder}", mend):
            if self.file is None:
                folder.mkdir(parents=True, exist_ok=True)
                self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            self.file.write(self.buffer)
            self.file.flush()
        self.buffer = bytearray()


class Texts(Sequence):
    """Texts in a temporary file, which `GrowingTexts.finish` returns."""

    def __init__(self, file: IO[bytes], ends: Sequence[int], rows: np.ndarray | None = None):
        self._file, self._ends, self._rows = file, ends, rows

    def take(self, rows: np.ndarray) -> "Texts":
        """Returns a sequence of the texts at the indices `rows`, without copying the texts."""
        return Texts(self._file, self._ends, rows if self._rows is None else self._rows[rows])

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._rows is None else len(self._rows)

    def __getitem__(self, key):
        if isinstance(key, slice):
            return [self[row] for row in range(*key.indices(len(self)))]
        row = range(len(self))[key] if self._rows is None else self._rows[key]
        start, end = self._ends[row], self._ends[row + 1]
        return _decode(os.pread(self._file.fileno(), end - start, start))

    def tolist(self) -> list[str]:
        return list(self)


class Columns:
    """Base class of a dataclass whose fields are columns, with one entry for each example.

    A field may also be a tuple of columns, or `None`.
    """

    def take(self, rows: np.ndarray) -> Self:
        """Returns the examples with the indices `rows`, in that order."""
        return type(self)(*(_taken(column, rows) for column in vars(self).values()))


def _taken(column: Any, rows: np.ndarray) -> Any:
    if isinstance(column, tuple):
        return tuple(_taken(part, rows) for part in column)
    if column is None or isinstance(column, np.ndarray):
        return column if column is None else column[rows]
    return column.take(rows) if isinstance(column, Texts) else [column[row] for row in rows]


class GrowingTexts:
    """A growing sequence of texts."""

    def __init__(self, texts: Iterable[str] = ()):
        self._pool, self._ends = _Pool(), array.array("q", [0])
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._pool.add(data)
        self._ends.append(self._ends[-1] + len(data))

    def finish(self) -> Texts | list[str]:
        """Returns the texts as a list, or as `Texts` if they take 16 MB or more."""
        if self._pool.finish():
            return Texts(self._pool.file, self._ends)
        return [_decode(self._pool.buffer[a:b]) for a, b in itertools.pairwise(self._ends)]


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


class GrowingRows:
    """A growing sequence of rows of token ids. Ids of 16 MB or more are stored on disk."""

    def __init__(self, vocabulary: PieceVocabulary):
        self._pad, self._dtype = vocabulary.special.pad, id_dtype(vocabulary.size)
        self._pool, self._lengths = _Pool(), []

    def add(self, ids: np.ndarray) -> None:
        """Appends the M rows of `ids` `(M, L)`, without padding."""
        is_real = ids != self._pad
        self._pool.add(ids[is_real].astype(self._dtype).tobytes())
        self._lengths.append(is_real.sum(axis=1))

    def finish(self) -> TokenRows:
        """Returns all rows that were added. Ids on disk are memory-mapped."""
        if self._pool.finish():
            ids = map_array(self._pool.file.fileno(), self._dtype)
        else:
            ids = np.frombuffer(self._pool.buffer, self._dtype)
        return TokenRows(ids, offsets_of(np.concatenate(self._lengths)))


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """A tokenized parallel corpus. Each row has the token ids of one side of a pair, then EOS.

    Attributes:
        fingerprint: SHA-256 (hex) of the rows. The string is empty if no hash was computed.
    """

    source: TokenRows
    target: TokenRows
    indices: np.ndarray
    removed: dict[str, int]
    fingerprint: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns a dict mapping file name to content."""
        sides = {"source": self.source, "target": self.target}
        arrays = {f"{side}_offsets": rows.offsets for side, rows in sides.items()}
        arrays |= {f"{side}_ids": rows.ids for side, rows in sides.items()}
        return {**arrays, "indices": self.indices}


class Chunk(NamedTuple):
    """Consecutive pairs before they are tokenized.

    Attributes:
        repeated: `(N,)` bool, True for each pair that equals an earlier pair and is therefore
            removed. `None` means that repeated pairs are kept.
    """

    index: int
    first: int
    pairs: Pairs
    repeated: np.ndarray | None = None


def prepare(
    folder: pathlib.Path,
    chunks: Callable[[], Iterator[Chunk]],
    tokenize: Callable[[Chunk], TokenizedPairs],
    count: Callable[[], int | None],
    processes: int | None = None,
) -> TokenizedPairs:
    """Opens a tokenized corpus after tokenizing all chunks that are missing.

    The files do not depend on the number of processes. If the process is killed, the next call
    continues after the last chunk that was written. Damaged files are written again from the
    beginning. If another process is preparing the same corpus, this call waits for that process.

    Args:
        folder: folder of the files. Each combination of source, vocabulary and settings needs a
            folder of its own, because this function does not check how the files were made.
        tokenize: function that tokenizes a chunk. The function must be picklable if several
            processes tokenize several chunks.
        count: function that returns the number of pairs in the source, or `None` if the number is
            unknown. The number is used only to display progress and to limit `processes`.
    """
    if tokens := open_tokens(folder):
        return tokens
    with only_writer(folder, "tokenizing", wait=True):
        tokens = open_tokens(folder)  # another process may have written the files in the meantime
        if not tokens:
            _write(folder, chunks, tokenize, count(), processes or os.cpu_count() or 1)
            tokens = open_tokens(folder)
    if not tokens:
        raise UserError(f"files in {folder} are damaged: set MACARON_TF_CACHE to another disk")
    return tokens


def _write(folder, chunks, tokenize, total: int | None, processes: int) -> None:
    """Appends the missing chunks to the files, and records the state after each chunk."""
    for leftover in folder.glob(".tmp-*"):  # of a killed process
        leftover.unlink(missing_ok=True)
    record = _read_record(folder) or {}
    for name, (dtype, count, _) in record.get("arrays", {}).items():
        with contextlib.suppress(OSError):  # cut off what a killed process wrote after its record
            os.truncate(folder / name, count * np.dtype(dtype).itemsize)
    digests = _digests(folder, record)
    if not digests:
        for path in folder.glob("[!.]*"):
            path.unlink()
        record = {"chunks": 0, "arrays": {}, "removed": {}, "fingerprint": ""}
        digests = collections.defaultdict(hashlib.sha256)
    done = record["chunks"]
    with Progress("tokenizing", "pairs", total) as progress:

        def missing_chunks() -> Iterator[Chunk]:
            for chunk in chunks():
                if chunk.index >= done:
                    yield chunk
                else:
                    progress.advance(len(chunk.pairs))

        missing = missing_chunks()
        first_two = list(itertools.islice(missing, 2))
        if not (first_two or done):
            first_two = [Chunk(0, 0, [])]  # the source has no pairs
        max_processes = -(-total // CHUNK_PAIRS) if total else processes
        processes = min(processes, max_processes) if len(first_two) > 1 else 1
        with Processes(processes, tokenize) as pool:
            for size, tokens in pool.map(_tokenize, itertools.chain(first_two, missing)):
                _append(folder, tokens, record, digests)
                progress.advance(size)
    tokens = _map(folder, record)
    digest = fingerprint([*tokens.source.arrays(), *tokens.target.arrays()])
    _save_record(folder, {**record, "fingerprint": digest})


def _tokenize(tokenize: Callable, chunk: Chunk) -> tuple[int, TokenizedPairs]:
    return len(chunk.pairs), tokenize(chunk)


def _append(folder: pathlib.Path, tokens: TokenizedPairs, record: dict, digests: dict) -> None:
    """Appends a chunk to the files, and updates `record` and `digests`."""
    arrays, before = tokens.arrays(), record["arrays"]
    for side in ("source", "target") if before else ():
        arrays[f"{side}_offsets"] = arrays[f"{side}_offsets"][1:] + before[f"{side}_ids"][1]
    with storage.clear_errors(f"cannot write into {folder}", _MEND):
        for name, array in arrays.items():
            with open(folder / name, "ab") as file:
                file.write(array.data)
            digests[name].update(array.data)
            count = before.get(name, (0, 0))[1] + len(array)
            before[name] = [array.dtype.str, count, digests[name].hexdigest()]
    for reason, count in tokens.removed.items():
        record["removed"][reason] = record["removed"].get(reason, 0) + count
    record["chunks"] += 1
    _save_record(folder, record)


def _save_record(folder: pathlib.Path, record: dict) -> None:
    with storage.atomic_output_path(folder / _RECORD, _MEND) as temporary_path:
        pathlib.Path(temporary_path).write_text(json.dumps(record, indent=2), encoding="utf-8")


def _read_record(folder: pathlib.Path) -> dict[str, Any] | None:
    """Reads the record, or returns `None` if it is missing or damaged."""
    path, fields = folder / _RECORD, {"chunks": int, "arrays": dict, "removed": dict}
    with contextlib.suppress(UserError), storage.refuse_damage(path, "remove it"):
        record = storage.read_json(path, **fields, fingerprint=str)
        for name, (dtype, count, digest) in record["arrays"].items():
            record["arrays"][name] = [np.dtype(dtype).str, int(count), str(digest)]
        return record
    return None


def _digests(folder: pathlib.Path, record: dict) -> dict | None:
    """Hashes the files of a record, or returns `None` if a file is missing or damaged."""
    names = record.get("arrays", {})
    try:
        with concurrent.futures.ThreadPoolExecutor() as threads:
            digests = dict(
                zip(names, threads.map(_digest, map(folder.joinpath, names)), strict=True)
            )
    except OSError:
        return None
    is_intact = all(digests[name].hexdigest() == names[name][2] for name in names)
    return digests if names and is_intact else None


def _digest(path: pathlib.Path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256")


def _map(folder: pathlib.Path, record: dict) -> TokenizedPairs:
    arrays = {
        name: map_array(folder / name, np.dtype(dtype))
        for name, (dtype, *_) in record["arrays"].items()
    }
    source = TokenRows(arrays["source_ids"], arrays["source_offsets"])
    target = TokenRows(arrays["target_ids"], arrays["target_offsets"])
    return TokenizedPairs(
        source, target, arrays["indices"], record["removed"], record["fingerprint"]
    )


def open_tokens(folder: pathlib.Path) -> TokenizedPairs | None:
    """Opens a finished corpus, or returns `None` if it is missing, unfinished or damaged."""
    record = _read_record(folder)
    if record and record["fingerprint"] and _digests(folder, record):
        return _map(folder, record)
    return None
