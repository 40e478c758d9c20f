"""Token ids as flat arrays, in memory or mapped from several files."""

import dataclasses
import hashlib
import mmap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Rows of token ids of unequal length, stored one after another in a flat array.

    Attributes:
        ids: `(sum of lengths,)` uint16 or int32.
        offsets: `(rows + 1,)` int64; row i is `ids[offsets[i] : offsets[i + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of_lengths(
        cls, ids: Sequence[np.ndarray], lengths: Sequence[np.ndarray], vocabulary_size: int
    ) -> "TokenRows":
        """Builds rows from the parts of their ids and of their lengths.

        The ids are uint16 for a vocabulary of at most 65,536 pieces, otherwise int32.
        """
        dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        ids = np.concatenate([np.zeros(0, dtype), *(part.astype(dtype) for part in ids)])
        return cls(ids, _offsets(np.concatenate([np.zeros(0, np.int64), *lengths])))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], vocabulary_size: int) -> "TokenRows":
        """Builds rows from lists of ids, each below `vocabulary_size`; see `of_lengths`."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter((i for row in rows for i in row), np.int32, int(lengths.sum()))
        return cls.of_lengths([ids], [lengths], vocabulary_size)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        """Number of ids of all rows."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def is_mapped(self) -> bool:
        """Whether the ids are a memory-mapped file."""
        return isinstance(self.ids.base, mmap.mmap)

    def taken(self, rows: np.ndarray) -> "TokenRows":
        """Selects rows by their numbers, in that order."""
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        # Position of each kept id: the start of its row plus its distance from there.
        positions = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenRows(self.ids[positions], offsets)

    def ended(self, end: int) -> "TokenRows":
        """Returns the rows with the id `end` appended to each."""
        ids = np.insert(self.ids, self.offsets[1:], end)
        return TokenRows(ids, self.offsets + np.arange(len(self.offsets)))

    def arrays(self) -> Iterator[np.ndarray]:
        """Yields the arrays to hash, offsets first; see `fingerprint`."""
        yield self.offsets
        yield self.ids

    def padded(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Gathers rows `(B,)` into `(B, L)` int32, padded with zeros; longer rows are cut to L.

        Row -1 is a row of padding.
        """
        starts = self.offsets[rows]
        ends = np.where(rows < 0, starts, self.offsets[rows + 1])
        columns = starts[:, None] + np.arange(length)  # (B, L)
        real = columns < ends[:, None]
        result = np.zeros(real.shape, np.int32)
        result[real] = self.ids[columns[real]]
        return result


class JoinedRows:
    """Rows of several parts, read as if they were one, such as memory-mapped shards.

    After each use the pages of a mapped file leave the process's memory.

    Args:
        parts: the parts in order, at least one.
    """

    def __init__(self, parts: Sequence[TokenRows]):
        self.parts = parts
        self.size = sum(part.size for part in parts)
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) int32."""
        lengths, at = np.empty(len(self), np.int32), 0
        for part in self.parts:
            lengths[at : at + len(part)] = part.lengths
            at += len(part)
            _unmap(part)
        return lengths

    def arrays(self) -> Iterator[np.ndarray]:
        """Yields arrays part by part, whose bytes equal those of `TokenRows.arrays` of all rows."""
        yield self.parts[0].offsets[:1]
        begin = 0
        for part in self.parts:
            yield part.offsets[1:] + begin
            begin += part.size
        for part in self.parts:
            yield part.ids

    def padded(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Gathers rows as `TokenRows.padded` does."""
        result = np.zeros((len(rows), length), np.int32)
        owners = np.searchsorted(self._ends, rows, side="right")  # (B,); 0 for padding
        for owner in np.unique(owners):
            part, own = self.parts[owner], owners == owner
            result[own] = part.padded(rows[own] - (self._ends[owner] - len(part)), length)
            _unmap(part)
        return result


def _unmap(rows: TokenRows) -> None:
    """Releases the pages of a mapped file from the process's memory; the system's cache keeps them.

    Reading one page of 4 KB also maps the 15 around it, so random batches soon map a whole corpus.
    """
    if rows.is_mapped:
        rows.ids.base.madvise(mmap.MADV_DONTNEED)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def fingerprint(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 (hex) of the concatenated bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
