"""Token ids as flat arrays: in memory, and a tokenized corpus on disk, memory-mapped."""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Sequence

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage

FORMAT = 2  # raise it when the files' layout or meaning changes
_STALE = 24 * 3600  # seconds: a file left aside by a killed process is older than that


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

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def taken(self, rows: np.ndarray) -> "TokenRows":
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        # Position of each kept id: its row's start, plus its distance from there.
        positions = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenRows(self.ids[positions], offsets)

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
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """A tokenized parallel corpus; every row is ids + EOS.

    Attributes:
        source, target: rows of equal number.
        indices: (rows,) int64: each row's position among the pairs before cleaning.
        removed: number of pairs left out, by reason.
    """

    source: TokenRows
    target: TokenRows
    indices: np.ndarray
    removed: dict[str, int]


def save_tokens(path: str | os.PathLike, tokens: TokenizedPairs) -> None:
    """Writes a corpus as two files, each whole or not at all: PATH.tokens, then PATH.json."""
    if storage.is_remote(path):
        raise UserError(f"the token cache {path} is mapped into memory: give a local folder")
    for left in pathlib.Path(path).parent.glob(f".tmp-{pathlib.Path(path).name}.*"):
        if time.time() - left.stat().st_mtime > _STALE:
            storage.remove(os.fspath(left))
    source, target = tokens.source, tokens.target
    # Eight bytes a number first, for their alignment.
    arrays = {"source_offsets": source.offsets, "target_offsets": target.offsets}
    arrays |= {"indices": tokens.indices, "source_ids": source.ids, "target_ids": target.ids}
    mend = "set MACARON_TF_CACHE to a folder with room"
    with storage.renamed_aside(f"{path}.tokens", mend) as aside:
        with open(aside, "wb") as file:
            for array in arrays.values():
                array.tofile(file)
        digest = storage.file_digest(aside)
    kinds = {name: [str(array.dtype), len(array)] for name, array in arrays.items()}
    record = {"format": FORMAT, "removed": tokens.removed, "sha256": digest, "arrays": kinds}
    storage.write_aside(f"{path}.json", json.dumps(record, indent=2).encode())


def load_tokens(path: str | os.PathLike) -> TokenizedPairs | None:
    """Maps a corpus that `save_tokens` wrote into memory.

    Returns:
        The corpus; None where there is none, or a damaged one (the SHA-256 differs).
    """
    try:
        record = json.loads(pathlib.Path(f"{path}.json").read_text(encoding="utf-8"))
        digest = storage.file_digest(f"{path}.tokens")
        if record["format"] != FORMAT or digest != record["sha256"]:
            return None
        # No array is empty, which could not be mapped: no pair, no cache.
        data, arrays = np.memmap(f"{path}.tokens", np.uint8, "r"), {}
        for name, (dtype, count) in record["arrays"].items():
            size = count * np.dtype(dtype).itemsize
            arrays[name], data = data[:size].view(dtype), data[size:]
        source, target = (
            TokenRows(arrays[f"{side}_ids"], arrays[f"{side}_offsets"])
            for side in ("source", "target")
        )
        removed = {str(reason): int(count) for reason, count in record["removed"].items()}
        return TokenizedPairs(source, target, arrays["indices"], removed)
    except (*storage.FILE_ERRORS, ValueError, KeyError, TypeError, AttributeError):
        return None
