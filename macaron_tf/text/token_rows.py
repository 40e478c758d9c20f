"""Token ids as flat arrays, in memory or mapped from several files."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np


class JoinedArrays:
    """Arrays of one dtype, such as those mapped from files, that are read as one.

    Args:
        parts: arrays of one dimension, one at least.
    """

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = list(parts)
        self.dtype = self.parts[0].dtype
        self._ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """The entries at positions `(N,)`; -1 is not the last one."""
        result = np.empty(len(positions), self.dtype)
        owners = np.searchsorted(self._ends, positions, side="right")
        for owner in np.unique(owners):
            part, own = self.parts[owner], owners == owner
            result[own] = part[positions[own] - (self._ends[owner] - len(part))]
        return result

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.concatenate(self.parts, dtype=dtype or self.dtype)


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Rows of ids of unequal length, one after another.

    Attributes:
        ids: (sum of lengths,) uint16 or int32, an array or `JoinedArrays`.
        offsets: (rows + 1,) int64, of joined rows int32 where it suffices; row i is
            `ids[offsets[i] : offsets[i + 1]]`.
    """

    ids: np.ndarray | JoinedArrays
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

    @classmethod
    def joined(cls, parts: Sequence["TokenRows"]) -> "TokenRows":
        """The rows of several ones, whose ids stay in their places."""
        ids = JoinedArrays([part.ids for part in parts])
        dtype = np.int32 if len(ids) < 1 << 31 else np.int64
        offsets = np.zeros(sum(len(part.offsets) - 1 for part in parts) + 1, dtype)
        at = 0
        for part in parts:
            ends = part.offsets[1:]
            offsets[at + 1 : at + 1 + len(ends)] = ends + offsets[at]
            at += len(ends)
        return cls(ids, offsets)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

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
        """The arrays, whose bytes identify the rows: offsets, then ids, part by part."""
        yield self.offsets.astype(np.int64, copy=False)
        yield from self.ids.parts if isinstance(self.ids, JoinedArrays) else [self.ids]

    def padded(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Gathers rows `(B,)` of at most L ids, -1 a row of padding, to (B, L) int32."""
        starts = self.offsets[rows]
        ends = np.where(rows < 0, starts, self.offsets[rows + 1])
        columns = starts[:, None] + np.arange(length)  # (B, L)
        real = columns < ends[:, None]
        result = np.zeros(real.shape, np.int32)
        result[real] = self.ids[columns[real]]
        return result


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
