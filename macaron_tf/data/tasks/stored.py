"""Storage of texts and token ids: in memory up to 16 MB, and in temporary files beyond 16 MB.

A fine-tuning table can therefore be larger than the RAM. Only text offsets, row lengths and labels
always stay in memory.
"""

import array
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence

import numpy as np

from macaron_tf.io import paths as storage
from macaron_tf.io.files import cache_directory
from macaron_tf.text.token_rows import TokenRows

_MAX_MEMORY_BYTES = 1 << 24  # beyond this number, the bytes in memory are written to disk


class _Pool:
    """A growing sequence of bytes. Whenever 16 MB are in memory, they move to a temporary file.

    The file has no name, so the operating system deletes the file after its last use.
    """

    def __init__(self):
        self._buffer, self.written, self._file = bytearray(), 0, None

    @property
    def size(self) -> int:
        return self.written + len(self._buffer)

    def add(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= _MAX_MEMORY_BYTES:
            self.flush()

    def flush(self) -> None:
        folder = cache_directory()
        mend = "free disk space, or set MACARON_TF_CACHE to another folder"
        with storage.clear_errors(f"cannot write into {folder}", mend):
            if self._file is None:
                folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            self._file.write(self._buffer)
            self._file.flush()
        self.written, self._buffer = self.size, bytearray()

    def read(self, start: int, end: int) -> bytes:
        """Returns the bytes `start:end`, which must be either all on disk or all in memory."""
        if start >= self.written:
            return bytes(self._buffer[start - self.written : end - self.written])
        return os.pread(self._file.fileno(), end - start, start)

    def map(self) -> mmap.mmap:
        """Writes all bytes to disk and returns a memory map of the file."""
        self.flush()
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)


class Texts(Sequence):
    """A growing sequence of texts. Texts of 16 MB or more are stored on disk."""

    def __init__(self):
        self._pool, self._ends, self._rows = _Pool(), array.array("q", [0]), None

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Texts | list[str]":
        """Returns the texts as a list, or as `Texts` on disk if they take 16 MB or more."""
        stored = cls()
        for text in texts:
            stored.append(text)
        return stored.list_if_small()

    def append(self, text: str) -> None:
        self._pool.add(text.encode("utf-8", "surrogatepass"))
        self._ends.append(self._pool.size)

    def list_if_small(self) -> "Texts | list[str]":
        """Returns this object if a text is on disk, and otherwise a list of the texts."""
        return self if self._pool.written else list(self)

    def take(self, rows: np.ndarray) -> "Texts":
        """Returns a sequence of the texts at the indices `rows`, without copying the texts."""
        subset = Texts()
        subset._pool, subset._ends = self._pool, self._ends
        subset._rows = rows if self._rows is None else self._rows[rows]
        return subset

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._rows is None else len(self._rows)

    def __getitem__(self, key):
        if isinstance(key, slice):
            return [self[row] for row in range(*key.indices(len(self)))]
        row = range(len(self))[key] if self._rows is None else self._rows[key]
        text = self._pool.read(self._ends[row], self._ends[row + 1])
        return text.decode("utf-8", "surrogatepass")

    def tolist(self) -> list[str]:
        return list(self)


class GrowingRows:
    """A growing sequence of rows of token ids. Ids of 16 MB or more are stored on disk."""

    def __init__(self, vocabulary_size: int, pad: int):
        self.pad = pad
        self._dtype = np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.int32)
        self._pool, self._lengths = _Pool(), []

    def add(self, ids: np.ndarray) -> None:
        """Appends the M rows of `ids` `(M, L)`, without padding."""
        is_real = ids != self.pad
        self._pool.add(ids[is_real].astype(self._dtype).tobytes())
        self._lengths.append(is_real.sum(axis=1))

    def rows(self) -> TokenRows:
        """Returns all rows that were added. Ids on disk are memory-mapped."""
        offsets = np.zeros(sum(map(len, self._lengths)) + 1, np.int64)
        np.cumsum(np.concatenate(self._lengths), out=offsets[1:])
        if self._pool.written:
            ids = np.ndarray(int(offsets[-1]), self._dtype, self._pool.map())
        else:
            ids = np.frombuffer(self._pool.read(0, self._pool.size), self._dtype)
        return TokenRows(ids, offsets)
