"""Tokenized pairs as flat arrays: in memory, or on disk and memory-mapped."""

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
_ARRAYS = ("source_ids", "source_offsets", "target_ids", "target_offsets", "indices")


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Rows of ids of unequal length, one after another.

    Args:
        ids: (sum of lengths,) uint16 or int32.
        offsets: (rows + 1,) int64; row i is `ids[offsets[i] : offsets[i + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], vocabulary_size: int) -> "TokenRows":
        """Packs lists of ids, two bytes an id where the vocabulary allows it.

        Args:
            rows: the ids of each row.
            vocabulary_size: greater than every id.

        Returns:
            The packed rows.
        """
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        dtype = np.uint16 if vocabulary_size <= 1 << 16 else np.int32
        ids = np.fromiter((i for row in rows for i in row), dtype, int(offsets[-1]))
        return cls(ids, offsets)

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) int64: the length of each row."""
        return np.diff(self.offsets)

    def taken(self, rows: np.ndarray) -> "TokenRows":
        """A selection of rows.

        Args:
            rows: (n,) row numbers.

        Returns:
            Those rows, packed.
        """
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Place of each kept id: its row's start, plus its distance from there.
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenRows(self.ids[places], offsets)

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


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """A tokenized parallel corpus; every row is ids + EOS.

    Args:
        source, target: rows of equal number.
        indices: (rows,) int64: each row's place among the pairs before cleaning.
        removed: number of pairs left out, by reason.
    """

    source: TokenRows
    target: TokenRows
    indices: np.ndarray
    removed: dict[str, int]


def save_tokens(folder: str | os.PathLike, tokens: TokenizedPairs) -> None:
    """Writes a corpus into a folder that exists whole or not at all.

    Args:
        folder: the place; what lies there is replaced.
        tokens: the corpus.

    Raises:
        UserError: the place cannot be written, or is in a bucket.
    """
    if storage.is_remote(folder):
        raise UserError(f"the token cache {folder} is mapped into memory: give a local folder")
    folder = pathlib.Path(folder)
    aside = folder.parent / f".tmp-{folder.name}-{os.getpid()}"
    arrays = {
        "source_ids": tokens.source.ids,
        "source_offsets": tokens.source.offsets,
        "target_ids": tokens.target.ids,
        "target_offsets": tokens.target.offsets,
        "indices": tokens.indices,
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        digests = {}
        for name, array in arrays.items():
            np.save(aside / f"{name}.npy", array)
            digests[name] = storage.file_digest(aside / f"{name}.npy")
        record = {"format": FORMAT, "removed": tokens.removed, "sha256": digests}
        (aside / "record.json").write_text(json.dumps(record, indent=2), encoding="utf-8")
        # A folder cannot be renamed onto a full one; whoever reads the old one keeps its files.
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

    Args:
        folder: its place.

    Returns:
        The corpus; None where there is none, or a damaged one (any file's SHA-256 differs).
    """
    folder = pathlib.Path(folder)
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            return None
        arrays = {}
        for name in _ARRAYS:
            path = folder / f"{name}.npy"
            if storage.file_digest(path) != record["sha256"][name]:
                return None
            # An empty array cannot be mapped, but neither is one ever written: no pair, no cache.
            arrays[name] = np.load(path, mmap_mode="r")
        removed = {str(reason): int(count) for reason, count in record["removed"].items()}
    except (*storage.FILE_ERRORS, ValueError, KeyError, TypeError, AttributeError):
        return None
    return TokenizedPairs(
        TokenRows(arrays["source_ids"], arrays["source_offsets"]),
        TokenRows(arrays["target_ids"], arrays["target_offsets"]),
        arrays["indices"],
        removed,
    )


def _remove_stale(folder: pathlib.Path) -> None:
    for left in folder.parent.glob(f".tmp-{folder.name}-*"):
        if time.time() - left.stat().st_mtime > _STALE:
            shutil.rmtree(left, ignore_errors=True)
