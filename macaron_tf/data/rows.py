"""Stores of texts and token rows, which need not fit into memory.

Examples of labelled tasks stay in memory up to 16 MB, and move to temporary files beyond 16 MB.
Only text offsets, row lengths and labels always stay in memory. A tokenized parallel corpus lies in
memory-mapped files of the cache, which a killed process resumes.
"""

import array
import collections
import contextlib
import dataclasses
import itertools
import json
import operator
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
from macaron_tf.text.token_rows import TokenRows, fingerprint, map_array, offsets_of

FORMAT = 6  # increase this number if the layout or the meaning of the files changes
# Number of pairs per chunk. The number is part of the format, because a resumed run skips chunks.
CHUNK_PAIRS = 1 << 15
_RECORD = "tokens.json"  # written after each chunk; that of a finished corpus has a fingerprint
_ARRAYS = ("source_offsets", "source_ids", "target_offsets", "target_ids")
_MEND = "make room or set MACARON_TF_CACHE to another folder, then run the same command again"
_MAX_MEMORY_BYTES = 1 << 24  # beyond this number, the bytes in memory are written to disk

Pairs = Sequence[tuple[str, str]]


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


class Columns:
    """Base class of a dataclass whose fields are columns, with one entry for each example.

    A field may also be a tuple of columns, or `None`. The first field is not `None`.

    Attributes:
        labels: labels of the examples, or `None` if they are unknown.
    """

    labels: Any

    def __len__(self) -> int:
        first = next(iter(vars(self).values()))
        return len(first[0] if isinstance(first, tuple) else first)

    def take(self, rows: np.ndarray) -> Self:
        """Returns the examples with the indices `rows`, in that order."""
        return type(self)(*(_taken(column, rows) for column in vars(self).values()))


def _taken(column: Any, rows: np.ndarray) -> Any:
    if isinstance(column, tuple):
        return tuple(_taken(part, rows) for part in column)
    if column is None or isinstance(column, np.ndarray):
        return column if column is None else column[rows]
    return column.take(rows) if isinstance(column, Texts) else [column[row] for row in rows]


class GrowingRows:
    """A growing sequence of rows of integers. Whenever 16 MB are in memory, they move to a file."""

    def __init__(self, dtype: np.dtype | type = np.uint8):
        self.dtype, self._lengths = np.dtype(dtype), array.array("q")
        self._buffer, self._file = bytearray(), None

    def add(self, data: bytes, lengths: Iterable[int]) -> None:
        """Appends rows with the given lengths. `data` are the bytes of their integers."""
        self._buffer += data
        self._lengths.extend(lengths)
        if len(self._buffer) >= _MAX_MEMORY_BYTES:
            self._flush()

    def _flush(self) -> None:
        folder = cache_directory()
        mend = "free disk space, or set MACARON_TF_CACHE to another folder"
        with storage.clear_errors(f"cannot write into {folder}", mend):
            if self._file is None:
                folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            self._file.write(self._buffer)
            self._file.flush()
        self._buffer = bytearray()

    def finish(self) -> TokenRows:
        """Returns all rows that were added. Integers on disk are memory-mapped."""
        offsets = offsets_of(np.array(self._lengths, np.int64))
        if self._file is None:
            return TokenRows(np.frombuffer(self._buffer, self.dtype), offsets)
        self._flush()
        return TokenRows(map_array(self._file.fileno(), self.dtype, int(offsets[-1])), offsets)


class GrowingTexts(GrowingRows):
    """A growing sequence of texts, which are rows of bytes."""

    def append(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self.add(data, [len(data)])

    def finish(self) -> Texts | list[str]:
        """Returns the texts as a list, or as `Texts` if they take 16 MB or more."""
        ends = super().finish().offsets
        if self._file is not None:
            return Texts(self._file, ends)
        return [_decode(self._buffer[a:b]) for a, b in itertools.pairwise(ends.tolist())]


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """A tokenized parallel corpus. Each row has the token ids of one side of a pair, then EOS.

    Attributes:
        indices: `(N,)` int64, index of each pair before cleaning; `None` for a corpus in the cache.
        fingerprint: SHA-256 (hex) of the rows. The string is empty if no hash was computed.
    """

    source: TokenRows
    target: TokenRows
    indices: np.ndarray | None
    removed: dict[str, int]
    fingerprint: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns a dict mapping file name to content."""
        return dict(zip(_ARRAYS, [*self.source.arrays(), *self.target.arrays()], strict=True))


class Chunk(NamedTuple):
    """`CHUNK_PAIRS` consecutive pairs, or fewer at the end, before they are tokenized.

    Attributes:
        repeated: `(N,)` bool, True for each pair that equals an earlier pair and is therefore
            removed. `None` means that repeated pairs are kept.
    """

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

    The rows of each of the one or more chunks are appended to the files of the corpus. The result
    does not depend on the number of processes. If the process is killed, the next call tokenizes
    only the chunks that are missing. Damaged files are written again from the beginning. If another
    process is preparing the same corpus, this call waits for that process.

    Args:
        folder: folder of the files. Each combination of source, vocabulary and settings needs a
            folder of its own, because this function does not check how the files were made.
        tokenize: function that tokenizes a chunk. The function must be picklable if several
            processes tokenize several chunks.
        count: function that returns the number of pairs in the source, or `None` if the number is
            unknown, to display progress.
    """
    with only_writer(folder, "tokenizing", wait=True):
        record = _read_record(folder)
        if record["fingerprint"]:
            return _map(folder, record)
        with (
            Progress("tokenizing", "pairs", count()) as progress,
            Processes(processes or os.cpu_count() or 1, tokenize) as pool,
        ):
            missing = chunks()
            for chunk in itertools.islice(missing, record["chunks"]):
                progress.advance(len(chunk.pairs))
            for tokens in pool.map(operator.call, missing):
                _append(folder, record, tokens)
                progress.advance(len(tokens.source) + sum(tokens.removed.values()))
        tokens = _map(folder, record)
        record["fingerprint"] = fingerprint(tokens.arrays().values())
        _write_record(folder, record)
        return _map(folder, record)


def _append(folder: pathlib.Path, record: dict, tokens: TokenizedPairs) -> None:
    """Appends the rows of a chunk to the files, and records the new lengths of the files."""
    for name, values in tokens.arrays().items():
        _, count = record["arrays"].get(name, ("", 0))
        if count and name.endswith("_offsets"):  # those of each chunk begin at 0
            values = values[1:] + record["arrays"][name.replace("offsets", "ids")][1]
        path = folder / name
        with storage.clear_errors(f"cannot write {path}", _MEND), open(path, "ab") as file:
            file.truncate(count * values.itemsize)  # a killed process may have written more
            file.write(values.data)
        storage.sync(path)
        record["arrays"][name] = [values.dtype.str, count + len(values)]
    record["removed"] = collections.Counter(record["removed"])
    record["removed"].update(tokens.removed)
    record["chunks"] += 1
    _write_record(folder, record)


def _write_record(folder: pathlib.Path, record: dict) -> None:
    storage.write_atomic(folder / _RECORD, json.dumps(record, indent=2).encode())


def _read_record(folder: pathlib.Path) -> dict[str, Any]:
    """Reads the record of a corpus. If files are missing or damaged, the record has no rows."""
    with contextlib.suppress(UserError, *storage.FILE_ERRORS, *storage.DAMAGE):
        fields = {"chunks": int, "arrays": dict, "removed": dict, "fingerprint": str}
        record = storage.read_json(folder / _RECORD, **fields)
        found = _map(folder, record)  # raises if a file has fewer values than were recorded
        if record["fingerprint"] in ("", fingerprint(found.arrays().values())):
            return record
    return {"chunks": 0, "arrays": {}, "removed": {}, "fingerprint": ""}


def _map(folder: pathlib.Path, record: dict) -> TokenizedPairs:
    arrays = {
        name: map_array(folder / name, np.dtype(dtype), count)
        for name, (dtype, count) in record["arrays"].items()
    }
    sides = (
        TokenRows(arrays[f"{side}_ids"], arrays[f"{side}_offsets"]) for side in ("source", "target")
    )
    return TokenizedPairs(*sides, None, record["removed"], record["fingerprint"])
