"""Stores of integer rows and of texts, which need not fit into memory.

A `Store` is a folder of shards of rows, such as a corpus or tokenized translation pairs. A killed
writer resumes after the last complete shard. Examples of labelled tasks stay in memory up to 16 MB,
and move to temporary files beyond 16 MB. Only text offsets, row lengths and labels always stay in
memory.
"""

import array
import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Self

import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import cache_directory
from macaron_tf.text.token_rows import Layout, TokenRows, fingerprint, map_arrays, offsets_of

FORMAT = 7  # increase this number if the layout or the meaning of the files changes
INDEX = "corpus.json"  # settings, state and shards of a store, written after each block of shards
SCRATCH = "scratch"  # folder of a Beam pipeline within the folder of a store
_MAX_MEMORY_BYTES = 1 << 24  # beyond this number, the bytes in memory are written to disk
_MEND = "remove {} and prepare the corpus again, or restore the file"
_MAKE_ROOM = "make room, or choose another folder (by MACARON_TF_CACHE for the cache)"

Arrays = dict[str, np.ndarray]  # one array or, in a column of different lengths, two per column


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of rows, which has the bytes of several arrays, one after the other.

    A column whose rows have the same length is an array `(rows, length)`. A column whose rows have
    different lengths is two arrays, "NAME_offsets" and "NAME_ids", as in `TokenRows`.

    Attributes:
        arrays: dtype and shape of each array, in the order of the file.
        first: index of the first row in the split of the whole store.
        languages: language ids of the first and the second half of all rows. The ids differ only
            for translation pairs. There are none if a shard may have rows of any language.
    """

    name: str
    rows: int
    sha256: str
    arrays: Layout
    first: int = 0
    languages: Sequence[int] = ()

    def check(self, folder: epath.Path, verify: bool = True) -> None:
        """Raises a UserError if the file has another size or, with `verify`, another SHA-256."""
        with self._found(folder) as path:
            size = sum(np.dtype(d).itemsize * math.prod(shape) for d, shape in self.arrays.values())
            if storage.size(path) != size or (verify and storage.file_digest(path) != self.sha256):
                raise ValueError

    def read(self, folder: epath.Path, rows: slice | None = None) -> Arrays:
        """Reads the arrays, and checks their SHA-256.

        Args:
            rows: consecutive rows to read instead, of which only the size of the file is checked.
                All columns must have rows of the same length.
        """
        self.check(folder, verify=False)
        found, start = {}, 0
        with self._found(folder) as path, tf.io.gfile.GFile(path, "rb") as file:
            for name, (dtype, (count, *shape)) in self.arrays.items():
                first, end, _ = (rows or slice(None)).indices(count)
                size = np.dtype(dtype).itemsize * math.prod(shape)  # bytes of a row
                file.seek(start + first * size)
                content = file.read((end - first) * size)
                found[name] = np.frombuffer(content, dtype).reshape(end - first, *shape)
                start += count * size
            if rows is None and fingerprint(found.values()) != self.sha256:
                raise ValueError
        return found

    @contextlib.contextmanager
    def _found(self, folder: epath.Path) -> Iterator[epath.Path]:
        """Yields the path of the file; an error that damage causes becomes a UserError."""
        path, mend = folder / self.name, _MEND.format(folder / INDEX)
        with storage.clear_errors(f"cannot read {path}", "check the access to the folder"):
            try:
                yield path
            except (tf.errors.NotFoundError, *storage.DAMAGE):
                raise UserError(f"{path} is missing or damaged: {mend}") from None


def take_rows(columns: Arrays, rows: np.ndarray) -> Arrays:
    """Returns the rows of columns at the indices, or with the mask, `rows`."""
    return {name: column[rows] for name, column in columns.items()}


def read_shards(folder: epath.Path, shards: Sequence[Shard]) -> Arrays:
    """Reads and joins several shards. All columns must have rows of the same length."""
    parts = [shard.read(folder) for shard in shards]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def read_rows(folder: epath.Path, shards: Sequence[Shard], rows: np.ndarray) -> Arrays:
    """Reads the rows with the numbers `rows (...)` in several shards, as `read_shards` joins them.

    In each shard, the rows from the first to the last of `rows` are read. A checksum covers a whole
    shard, and is not verified here; `Store.check` verifies it.

    Returns:
        Columns `(..., length)`.
    """
    ends = np.cumsum([shard.rows for shard in shards])
    indices = np.searchsorted(ends, rows, side="right")  # (...), the shard of each row
    layout = shards[0].arrays.items()
    found = {n: np.empty((*rows.shape, *shape[1:]), dtype) for n, (dtype, shape) in layout}
    for index in np.unique(indices):
        mine = indices == index
        places = rows[mine] - (ends[index] - shards[index].rows)
        first = int(places.min())
        part = slice(first, int(places.max()) + 1)
        # What is read is freed at once, so that the next read finds memory that is mapped already.
        # Otherwise, reading takes twice the time.
        taken = take_rows(shards[index].read(folder, part), places - first)
        for name, column in taken.items():
            found[name][mine] = column
    return found


def refuse_damage(folder: epath.Path) -> contextlib.AbstractContextManager:
    """Returns a context in which an error that a damaged index causes becomes a UserError."""
    return storage.refuse_damage(folder / INDEX, _MEND.format(folder / INDEX))


@dataclasses.dataclass
class Store:
    """A folder of shards of rows, and an index from which a killed writer resumes.

    Attributes:
        settings: JSON dict of what determines the rows.
        state: JSON dict of what the writer needs to resume after the last shard.
        shards: shards of each split. The split "part" of an unfinished store becomes other splits.
        finished: whether the store has all rows.
    """

    folder: epath.Path
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    shards: dict[str, list[Shard]] = dataclasses.field(default_factory=dict)
    finished: bool = False

    @classmethod
    def open(cls, folder: epath.Path) -> "Store":
        """Opens a store by its index, without a look at the shards."""
        path, mend = folder / INDEX, _MEND.format(folder / INDEX)
        with refuse_damage(folder):
            record = storage.read_json(path, mend=mend, settings=dict, state=dict)
            if (number := record.pop("format")) != FORMAT:
                raise UserError(f"{path} has format {number}, not {FORMAT}: {mend}")
            parts = record.pop("shards").items()
            shards = {split: [Shard(**shard) for shard in found] for split, found in parts}
            return cls(folder, shards=shards, **record)

    def save(self) -> None:
        """Writes the index."""
        record = {**vars(self), "format": FORMAT}
        del record["folder"]
        storage.write_atomic(self.folder / INDEX, json.dumps(record, default=vars).encode())

    def check(self, verify: bool = True) -> Self:
        """Returns the store, if `Shard.check` finds no shard that is missing or damaged."""
        for shard in itertools.chain(*self.shards.values()):
            shard.check(self.folder, verify)
        return self

    def add(self, split: str, columns: Arrays, languages: Sequence[int] = ()) -> None:
        """Writes the next shard of a split. A killed writer writes those after `save` again."""
        self._write(split, {name: [column] for name, column in columns.items()}, languages)

    def join(self, split: str) -> None:
        """Makes the local shards of the split "part", one after the other, the shard of `split`."""
        parts = self.shards.pop("part")

        def pieces(name: str) -> Iterator[np.ndarray]:
            end = 0
            for index, part in enumerate(parts):
                piece = map_arrays(self.folder / part.name, part.arrays)[name]
                if name.endswith("_offsets"):  # those of each part begin at 0
                    piece, end = piece[index > 0 :] + end, end + piece[-1]
                yield piece

        self._write(split, {name: pieces(name) for name in parts[0].arrays}, ())

    def _write(self, split: str, columns: Mapping[str, Iterable[np.ndarray]], languages) -> None:
        """Writes a shard. Each array consists of several pieces."""
        shards = self.shards.setdefault(split, [])
        first = shards[-1].first + shards[-1].rows if shards else 0
        path = self.folder / f"{split}-{len(shards):05d}.rows"
        digest, arrays = hashlib.sha256(), {}
        with (
            storage.atomic_output_path(path, mend=_MAKE_ROOM) as name,
            epath.Path(name).open("wb") as file,
        ):
            for name, pieces in columns.items():
                count = 0
                for piece in pieces:
                    content = piece.tobytes()
                    digest.update(content)
                    file.write(content)
                    count += len(piece)
                arrays[name] = piece.dtype.str, (count, *piece.shape[1:])
        name, (_, (count, *_)) = next(iter(arrays.items()))
        rows = count - name.endswith("_offsets")
        shards.append(Shard(path.name, rows, digest.hexdigest(), arrays, first, languages))

    def clean(self) -> None:
        """Removes all files of the writer, which a finished store does not need."""
        for pattern in ("part-*.rows", ".tmp-*.rows-*", ".tmp-*.json-*"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        if (scratch := self.folder / SCRATCH).exists():
            scratch.rmtree()


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


class Columns:
    """Base class of a dataclass whose fields are columns, with one entry for each example.

    A field may also be a tuple of columns, or `None`. The first field is not `None`.

    Attributes:
        labels: labels of the examples, or `None` if they are unknown.
    """

    labels: Any

    def __len__(self) -> int:
        first = next(iter(vars(self).values()))
        return len(first[0] if isinstance(first, tuple) else first)

    def take(self, rows: np.ndarray) -> Self:
        """Returns the examples with the indices `rows`, in that order."""
        return type(self)(*(_taken(column, rows) for column in vars(self).values()))


def _taken(column: Any, rows: np.ndarray) -> Any:
    if isinstance(column, tuple):
        return tuple(_taken(part, rows) for part in column)
    if column is None or isinstance(column, np.ndarray):
        return column if column is None else column[rows]
    return column.take(rows) if isinstance(column, Texts) else [column[row] for row in rows]


class GrowingRows:
    """A growing sequence of rows of integers. Whenever 16 MB are in memory, they move to a file."""

    def __init__(self, dtype: np.dtype | type = np.uint8):
        self.dtype, self._lengths = np.dtype(dtype), array.array("q")
        self._buffer, self._file = bytearray(), None

    def add(self, data: bytes, lengths: Iterable[int]) -> None:
        """Appends rows with the given lengths. `data` are the bytes of their integers."""
        self._buffer += data
        self._lengths.extend(lengths)
        if len(self._buffer) >= _MAX_MEMORY_BYTES:
            self._flush()

    def _flush(self) -> None:
        folder = cache_directory()
        with storage.clear_errors(f"cannot write into {folder}", _MAKE_ROOM):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._file or tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            self._file.write(self._buffer)
            self._file.flush()
        self._buffer = bytearray()

    def finish(self) -> TokenRows:
        """Returns all rows that were added. Integers on disk are memory-mapped."""
        offsets = offsets_of(np.array(self._lengths, np.int64))
        if self._file is None:
            return TokenRows(np.frombuffer(self._buffer, self.dtype), offsets)
        self._flush()
        found = map_arrays(self._file.fileno(), {"ids": (self.dtype, offsets[-1:])})
        return TokenRows(found["ids"], offsets)


class GrowingTexts(GrowingRows):
    """A growing sequence of texts, which are rows of bytes."""

    def append(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self.add(data, [len(data)])

    def finish(self) -> Texts | list[str]:
        """Returns the texts as a list, or as `Texts` if they take 16 MB or more."""
        ends = super().finish().offsets
        if self._file is not None:
            return Texts(self._file, ends)
        return [_decode(self._buffer[a:b]) for a, b in itertools.pairwise(ends.tolist())]


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
