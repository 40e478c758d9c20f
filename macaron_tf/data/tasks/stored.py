"""Storage of texts and token ids: in memory up to 16 MB, and in temporary files beyond 16 MB.

A fine-tuning table can therefore be larger than the RAM. Only text offsets, row lengths and labels
always stay in memory.
"""

import array
import itertools
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import IO

import numpy as np

from macaron_tf.io import paths as storage
from macaron_tf.io.files import cache_directory
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows, id_dtype, map_array, offsets_of

_MAX_MEMORY_BYTES = 1 << 24  # beyond this number, the bytes in memory are written to disk


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
