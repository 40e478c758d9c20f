"""Token sequences as flat arrays of ids, in memory or memory-mapped from several files."""

import dataclasses
import hashlib
import mmap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np


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
    def of_lengths(
        cls, ids: Sequence[np.ndarray], lengths: Sequence[np.ndarray], vocabulary_size: int
    ) -> "TokenRows":
        """Concatenates the rows in several chunks of a corpus.

        Args:
            ids: flat array with the ids of all rows, for each chunk.
            lengths: array with the length of each row, for each chunk.
            vocabulary_size: number of ids in the vocabulary. The dtype of the result is uint16 if
                `vocabulary_size` is at most 65,536, and int32 otherwise.
        """
        dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        ids = np.concatenate([np.zeros(0, dtype), *(part.astype(dtype) for part in ids)])
        return cls(ids, _offsets(np.concatenate([np.zeros(0, np.int64), *lengths])))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], vocabulary_size: int) -> "TokenRows":
        """Builds rows from lists of ids. All ids must be less than `vocabulary_size`."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter((i for row in rows for i in row), np.int32, int(lengths.sum()))
        return cls.of_lengths([ids], [lengths], vocabulary_size)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        """Total number of ids in all rows."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def is_mapped(self) -> bool:
        """Whether `ids` is a memory-mapped file."""
        return isinstance(self.ids.base, mmap.mmap)

    def take(self, rows: np.ndarray) -> "TokenRows":
        """Returns the rows with the indices `rows`, in the order of these indices."""
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        # Position of each selected id: the start of its row plus the index within the row.
        positions = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenRows(self.ids[positions], offsets)

    def with_end(self, end: int) -> "TokenRows":
        """Returns a copy with the id `end` appended to each row."""
        ids = np.insert(self.ids, self.offsets[1:], end)
        return TokenRows(ids, self.offsets + np.arange(len(self.offsets)))

    def arrays(self) -> Iterator[np.ndarray]:
        """Yields the arrays that `fingerprint` hashes: the offsets, then the ids."""
        yield self.offsets
        yield self.ids

    def padded(self, rows: np.ndarray, length: int, pad: int = 0) -> np.ndarray:
        """Gathers rows into an int32 batch `(B, L)`, padded with `pad` or truncated to L.

        Args:
            rows: `(B,)` row indices. The index -1 gives a row of padding.
            length: L, the length of the batch.
            pad: id of padding.
        """
        starts = self.offsets[rows]
        ends = np.where(rows < 0, starts, self.offsets[rows + 1])
        columns = starts[:, None] + np.arange(length)  # (B, L)
        real = columns < ends[:, None]
        result = np.full(real.shape, pad, np.int32)
        result[real] = self.ids[columns[real]]
        return result


class JoinedRows:
    """Concatenation of several `TokenRows`, such as memory-mapped shards, without copying.

    After `lengths` or `padded` has read a shard, the memory pages of this shard are unmapped.

    Args:
        parts: one or more `TokenRows`, in order.
    """

    def __init__(self, parts: Sequence[TokenRows]):
        self.parts = parts
        self.size = sum(part.size for part in parts)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def lengths(self) -> np.ndarray:
        """Length of each row, `(rows,)` int32."""
        lengths, position = np.empty(len(self), np.int32), 0
        for part in self.parts:
            lengths[position : position + len(part)] = part.lengths
            position += len(part)
            _unmap(part)
        return lengths

    def arrays(self) -> Iterator[np.ndarray]:
        """Yields the arrays that `fingerprint` hashes.

        The concatenated bytes of these arrays are the same as for a single `TokenRows` that
        contains all rows.
        """
        yield self.parts[0].offsets[:1]
        begin = 0
        for part in self.parts:
            yield part.offsets[1:] + begin
            begin += part.size
        for part in self.parts:
            yield part.ids

    def padded(self, rows: np.ndarray, length: int, pad: int = 0) -> np.ndarray:
        """Gathers rows into a batch, like `TokenRows.padded`."""
        result = np.full((len(rows), length), pad, np.int32)
        owners = np.searchsorted(self._ends, rows, side="right")  # (B,); 0 for padding
        for owner in np.unique(owners):
            part, in_part = self.parts[owner], owners == owner
            in_shard = rows[in_part] - (self._ends[owner] - len(part))
            result[in_part] = part.padded(in_shard, length, pad)
            _unmap(part)
        return result


def _unmap(rows: TokenRows) -> None:
    """Unmaps the memory pages of memory-mapped rows.

    The pages stay in the operating system's page cache. Reading one page of 4 KB also maps 15
    neighbouring pages, so random batches would soon map the whole corpus.
    """
    if rows.is_mapped:
        rows.ids.base.madvise(mmap.MADV_DONTNEED)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def fingerprint(arrays: Iterable[np.ndarray]) -> str:
    """Returns the hexadecimal SHA-256 of the concatenated bytes of `arrays`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
