"""Token ids as flat arrays: in memory, and a tokenized corpus on disk, memory-mapped."""

import dataclasses
import json
import os
import pathlib
import shutil
import time
from collections.abc import Sequence

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage

FORMAT = 1  # raise it when the files' layout or meaning changes
_STALE = 24 * 3600  # seconds: a folder left aside by a killed process is older than that


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
        """(rows,) int64."""
        return np.diff(self.offsets)

    def taken(self, rows: np.ndarray) -> "TokenRows":
        """The rows of some numbers, `(n,)`, packed."""
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        # Position of each kept id: its row's start, plus its distance from there.
        positions = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenRows(self.ids[positions], offsets)

    def padded(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Gathers rows into a rectangle.

        Args:
            rows: (B,) int64 row numbers; -1 gives a row of padding.
            length: L, no less than the longest of the rows.

        Returns:
            (B, L) int32, filled up with 0.
        """
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

    def arrays(self) -> dict[str, np.ndarray]:
        """The five arrays, by the names of their files."""
        sides = {"source": self.source, "target": self.target}
        rows = {f"{name}_ids": side.ids for name, side in sides.items()}
        offsets = {f"{name}_offsets": side.offsets for name, side in sides.items()}
        return {**rows, **offsets, "indices": self.indices}


def save_tokens(folder: str | os.PathLike, tokens: TokenizedPairs) -> None:
    """Writes a corpus into a folder that exists whole or not at all, in place of an earlier one.

    Raises:
        UserError: the folder cannot be written, or is in a bucket.
    """
    if storage.is_remote(folder):
        raise UserError(f"the token cache {folder} is mapped into memory: give a local folder")
    folder = pathlib.Path(folder)
    aside = folder.parent / f".tmp-{folder.name}-{os.getpid()}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for left in folder.parent.glob(f".tmp-{folder.name}-*"):
            if time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left, ignore_errors=True)
        digests = {}
        for name, array in tokens.arrays().items():
            np.save(aside / f"{name}.npy", array)
            digests[name] = storage.file_digest(aside / f"{name}.npy")
        record = {"format": FORMAT, "removed": tokens.removed, "sha256": digests}
        (aside / "record.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
        # A folder cannot be renamed onto a full one; readers of the old one keep its files.
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.replace(aside, folder)
        except OSError:
            # Another process has put its equal copy there in the meantime.
            if load_tokens(folder) is None:
                raise
    except OSError as error:
        raise UserError(
            f"cannot write the token cache {folder}: {error.strerror or error}; "
            "set MACARON_TF_CACHE to a folder with room"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load_tokens(folder: str | os.PathLike) -> TokenizedPairs | None:
    """Maps a corpus that `save_tokens` wrote into memory.

    Returns:
        The corpus; None where there is none, or a damaged one (the SHA-256 of a file differs).
    """
    folder = pathlib.Path(folder)
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            return None
        arrays = {}
        for name, digest in record["sha256"].items():
            path = folder / f"{name}.npy"
            if storage.file_digest(path) != digest:
                return None
            # An empty array cannot be mapped, but none is ever written: no pair, no cache.
            arrays[name] = np.load(path, mmap_mode="r")
        removed = {str(reason): int(count) for reason, count in record["removed"].items()}
        sides = (
            TokenRows(arrays[f"{name}_ids"], arrays[f"{name}_offsets"])
            for name in ("source", "target")
        )
        return TokenizedPairs(*sides, arrays["indices"], removed)
    except (*storage.FILE_ERRORS, ValueError, KeyError, TypeError, AttributeError):
        return None
