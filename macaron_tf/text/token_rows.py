"""Token ids as flat arrays, in memory or mapped from several files."""

import dataclasses
import hashlib
import mmap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Rows of ids of unequal length, one after another.

    Attributes:
        ids: (sum of lengths,) uint16 or int32.
        offsets: (rows + 1,) int64; row i is `ids[offsets[i] : offsets[i + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of_lengths(
        cls, ids: Sequence[np.ndarray], lengths: Sequence[np.ndarray], vocabulary_size: int
    ) -> "TokenRows":
        """Rows of concatenated ids and concatenated lengths; two bytes an id where they suffice."""
        dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        ids = np.concatenate([np.zeros(0, dtype), *(part.astype(dtype) for part in ids)])
        return cls(ids, _offsets(np.concatenate([np.zeros(0, np.int64), *lengths])))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], vocabulary_size: int) -> "TokenRows":
        """Packs lists of ids; every id is less than the vocabulary's size."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter((i for row in rows for i in row), np.int32, int(lengths.sum()))
        return cls.of_lengths([ids], [lengths], vocabulary_size)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        """The number of ids."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def is_mapped(self) -> bool:
        """Whether the ids are a file's, mapped into memory."""
        return isinstance(self.ids.base, mmap.mmap)

    def taken(self, rows: np.ndarray) -> "TokenRows":
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        # Position of each kept id: its row's start, plus its distance from there.
        positions = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenRows(self.ids[positions], offsets)

    def ended(self, end: int) -> "TokenRows":
        """The rows with another id at the end of each."""
        ids = np.insert(self.ids, self.offsets[1:], end)
        return TokenRows(ids, self.offsets + np.arange(len(self.offsets)))

    def arrays(self) -> Iterator[np.ndarray]:
        """The arrays, whose bytes identify the rows: offsets, then ids."""
        yield self.offsets
        yield self.ids

    def padded(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Gathers rows `(B,)` of at most L ids, -1 a row of padding, to (B, L) int32."""
        starts = self.offsets[rows]
        ends = np.where(rows < 0, starts, self.offsets[rows + 1])
        columns = starts[:, None] + np.arange(length)  # (B, L)
        real = columns < ends[:, None]
        result = np.zeros(real.shape, np.int32)
        result[real] = self.ids[columns[real]]
        return result


class JoinedRows:
    """Several parts read as one, such as those mapped from files, whose pages are not kept.

    Args:
        parts: one at least.
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
        """The bytes of `TokenRows.arrays`, the offsets and then the ids, in one array a part."""
        yield self.parts[0].offsets[:1]
        begin = 0
        for part in self.parts:
            yield part.offsets[1:] + begin
            begin += part.size
        for part in self.parts:
            yield part.ids

    def padded(self, rows: np.ndarray, length: int) -> np.ndarray:
        """As `TokenRows.padded`."""
        result = np.zeros((len(rows), length), np.int32)
        owners = np.searchsorted(self._ends, rows, side="right")  # (B,); 0 of padding
        for owner in np.unique(owners):
            part, own = self.parts[owner], owners == owner
            result[own] = part.padded(rows[own] - (self._ends[owner] - len(part)), length)
            _unmap(part)
        return result


def _unmap(rows: TokenRows) -> None:
    """Takes the pages of a mapped file out of the process's memory, not out of the system's cache.

    A page of 4 KB that is read maps the 15 around it, so that batches would map all of a corpus.
    """
    if rows.is_mapped:
        rows.ids.base.madvise(mmap.MADV_DONTNEED)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def fingerprint(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 (hex) of the bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
