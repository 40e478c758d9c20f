"""Token sequences as flat arrays of ids, in memory or memory-mapped from files."""

import dataclasses
import hashlib
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Layout = Mapping[str, tuple[str | np.dtype, Sequence[int]]]  # dtype and shape of named arrays


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Rows of token ids with different lengths, concatenated in one flat array.

    Attributes:
        ids: ids of all rows, a flat uint16 or int32 array.
        offsets: `(rows + 1,)` int64. Row i is `ids[offsets[i] : offsets[i + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence["TokenRows"], vocabulary_size: int) -> "TokenRows":
        """Concatenates the rows of several objects. `vocabulary_size` determines the dtype."""
        dtype = id_dtype(vocabulary_size)
        ids = np.concatenate([np.zeros(0, dtype), *(part.ids.astype(dtype) for part in parts)])
        lengths = [np.zeros(0, np.int32), *(part.lengths for part in parts)]
        return cls(ids, offsets_of(np.concatenate(lengths)))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], vocabulary_size: int) -> "TokenRows":
        """Builds rows from lists of ids. All ids must be less than `vocabulary_size`."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter((i for row in rows for i in row), np.int32, int(lengths.sum()))
        return cls(ids.astype(id_dtype(vocabulary_size)), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        """Total number of ids in all rows."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> np.ndarray:
        """Length of each row, `(rows,)` int32."""
        lengths = np.empty(len(self), np.int32)
        np.subtract(self.offsets[1:], self.offsets[:-1], out=lengths, casting="unsafe")
        self._unmap()
        return lengths

    def take(self, rows: np.ndarray) -> "TokenRows":
        """Returns the rows with the indices `rows`, in the order of these indices."""
        lengths = self.lengths[rows]
        offsets = offsets_of(lengths)
        # Position of each selected id: the start of its row plus the index within the row.
        positions = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenRows(self.ids[positions], offsets)

    def with_end(self, end: int) -> "TokenRows":
        """Returns a copy with the id `end` appended to each row."""
        ids = np.insert(self.ids, self.offsets[1:], end)
        return TokenRows(ids, self.offsets + np.arange(len(self.offsets)))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the arrays that `fingerprint` hashes: the offsets, then the ids."""
        return self.offsets, self.ids

    def padded(self, rows: np.ndarray, length: int, pad: int = 0) -> np.ndarray:
        """Gathers rows into an int32 batch `(B, L)`, padded with `pad` or truncated to L.

        The index -1 in `rows (B,)` gives a row of padding.
        """
        starts = self.offsets[rows]
        ends = np.where(rows < 0, starts, self.offsets[rows + 1])
        columns = starts[:, None] + np.arange(length)  # (B, L)
        real = columns < ends[:, None]
        result = np.full(real.shape, pad, np.int32)
        result[real] = self.ids[columns[real]]
        self._unmap()
        return result

    def _unmap(self) -> None:
        """Unmaps the memory pages of a memory-mapped file, which may also have the offsets.

        The pages stay in the operating system's page cache. Reading one page of 4 KB also maps 15
        neighbouring pages, so random batches would soon map the whole corpus.
        """
        if isinstance(self.ids.base, mmap.mmap):
            self.ids.base.madvise(mmap.MADV_DONTNEED)


def id_dtype(vocabulary_size: int) -> np.dtype:
    """Returns uint16 if a vocabulary has at most 65,536 ids, and int32 otherwise."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.int32)


def map_arrays(path: str | os.PathLike | int, layout: Layout) -> dict[str, np.ndarray]:
    """Memory-maps the arrays in a local file, which is not empty, given by its path or descriptor.

    The file has the bytes of the arrays in the order of `layout`.
    """
    with open(path, "rb", closefd=not isinstance(path, int)) as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found, start = {}, 0
    for name, (dtype, shape) in layout.items():
        found[name] = np.ndarray(shape, dtype, mapped, start)
        start += found[name].nbytes
    return found


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def fingerprint(arrays: Iterable[np.ndarray]) -> str:
    """Returns the hexadecimal SHA-256 of the concatenated bytes of `arrays`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
