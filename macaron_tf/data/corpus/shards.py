"""Rows of a corpus, the tables of integers that hold them in files, and the record of the files."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.special import Special

FORMAT = 3  # increase this number if the layout or the meaning of the files changes
INDEX = "corpus.json"  # settings and state of the corpus, written after each block
SPLITS = ("train", "validation")
_MEND = "remove {} and prepare the corpus again, or restore the file"


class Row(NamedTuple):
    """A row before encoding.

    Attributes:
        segments: token ids of each segment, without the [SEP] that follows in the encoded row.
        owner: index of the document with which the row begins.
        boundary: column where the second segment of a pair begins, or L for rows without pairs.
        label: 1 if the second segment comes from another document or the segments are swapped,
            otherwise 0.
    """

    segments: list[np.ndarray]
    owner: int
    boundary: int
    label: int = 0


def token_ids_of(rows: Sequence[Row], length: int, special: Special) -> np.ndarray:
    """Returns N rows `[CLS] segment [SEP] segment [SEP] ...` as ids `(N, L)` int32."""
    token_ids = np.full((len(rows), length), special.pad, np.int32)
    for row, filled in zip(rows, token_ids, strict=True):
        filled[0] = special.begin
        column = 1
        for ids in row.segments:
            filled[column : column + len(ids)] = ids
            column += len(ids) + 1
            filled[column - 1] = special.end
    return token_ids


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file in the folder of a corpus, which has the bytes of a table of rows.

    Attributes:
        languages: language ids of the first and the second half of a row. All rows of the file
            have the same two ids, which differ only for translation pairs. The tuple is empty for a
            validation file, and if the corpus has no `batch_alpha`.
        first: index of the first row in the split of the whole corpus.
    """

    name: str
    rows: int
    sha256: str
    languages: tuple[int, ...] = ()
    first: int = 0

    def __post_init__(self):
        object.__setattr__(self, "languages", tuple(self.languages))  # a list if read from JSON


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """Layout of a table, in which a row has L token ids and then one value per column.

    Attributes:
        columns: names of the columns after the token ids, in order. The possible names are
            "boundary" (position where the second segment begins), "pair_label", "language" and
            "second_language".
    """

    sequence_length: int
    columns: tuple[str, ...]
    wide: bool
    pad_id: int = Special.pad

    @classmethod
    def of(cls, config: CorpusConfig, vocabulary_size: int, pad_id: int = Special.pad) -> Self:
        """Builds the layout for a corpus, with two bytes per integer if ids and positions fit."""
        columns = ("boundary",) * (config.paired or config.has_translations)
        columns += ("pair_label",) * config.paired + ("language",) * bool(config.languages)
        columns += ("second_language",) * config.has_translations
        wide = max(config.sequence_length + 1, vocabulary_size) > 1 << 16
        return cls(config.sequence_length, columns, wide, pad_id)

    @property
    def integer_count(self) -> int:
        return self.sequence_length + len(self.columns)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("<i4" if self.wide else "<u2")

    def encode(self, rows: Sequence[Row], languages: np.ndarray, special: Special) -> np.ndarray:
        """Encodes N rows and their `languages (N, 2)` as a table `(N, integer_count)`."""
        values = {
            "boundary": [row.boundary for row in rows],
            "pair_label": [row.label for row in rows],
            "language": languages[:, 0],
            "second_language": languages[:, 1],
        }
        columns = [np.array(values[name], np.int32)[:, None] for name in self.columns]
        token_ids = token_ids_of(rows, self.sequence_length, special)
        return np.concatenate([token_ids, *columns], axis=1).astype(self.dtype)

    def read(self, folder: epath.Path, shard: Shard, rows: slice = slice(None)) -> np.ndarray:
        """Reads the table of a shard, `(N, integer_count)`, and checks its SHA-256.

        Args:
            rows: consecutive rows to read without this check; `slice(0)` only checks the size.
        """
        path, content = folder / shard.name, b""
        size = self.integer_count * self.dtype.itemsize  # bytes of a row
        first, end, _ = rows.indices(shard.rows)
        with (
            storage.clear_errors(f"cannot read {path}", "check the access to the folder"),
            contextlib.suppress(tf.errors.NotFoundError),
            tf.io.gfile.GFile(path, "rb") as file,
        ):
            is_whole = file.size() == shard.rows * size
            if is_whole and end > first:
                file.seek(first * size)
                content = file.read((end - first) * size)
            if is_whole and (
                rows != slice(None) or hashlib.sha256(content).hexdigest() == shard.sha256
            ):
                return np.frombuffer(content, self.dtype).reshape(-1, self.integer_count)
        raise UserError(f"{path} is missing or damaged: {_MEND.format(folder / INDEX)}")

    def features(self, table: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the model inputs of a batch from rows of a table.

        Returns:
            Dict with "token_ids" `(B, L)` int32 and "segment_ids" `(B, L)` int32. Segment ids are 1
            in the second segment and 0 elsewhere, including padding. Segment pairs add "pair_label"
            `(B,)` int32. A corpus with languages adds "language_ids" `(B, L)` int32. A corpus with
            translation pairs adds "position_ids" `(B, L)` int32. Position ids restart at 0 in the
            second half (Conneau and Lample 2019, section 3.4).
        """
        table = tf.cast(table, tf.int32)
        token_ids, *columns = tf.split(table, [self.sequence_length, *[1] * len(self.columns)], 1)
        column = dict(zip(self.columns, columns, strict=True))  # each (B, 1)
        positions = tf.range(self.sequence_length)
        boundaries = column.get("boundary", self.sequence_length)
        is_second = (positions >= boundaries) & tf.ones_like(token_ids, tf.bool)  # (B, L)
        batch = {
            "token_ids": token_ids,
            "segment_ids": tf.cast(is_second & (token_ids != self.pad_id), tf.int32),
        }
        if "pair_label" in column:
            batch["pair_label"] = column["pair_label"][:, 0]
        if "language" in column:
            first = column["language"]
            batch["language_ids"] = tf.where(is_second, column.get("second_language", first), first)
        if "second_language" in column:
            batch["position_ids"] = positions - tf.where(is_second, boundaries, 0)
        return batch


@dataclasses.dataclass(frozen=True)
class CorpusState:
    """The state of a corpus after its last complete block, from which preparation can resume.

    Attributes:
        counted: number of rows among which validation rows are chosen, those of documents that are
            not repeated.
        validation: validation files. While a corpus is unfinished, each block has its own file if
            rows are held out. If documents are held out, only a finished corpus has these files.
        finished: whether the corpus has all rows.
    """

    documents: int = 0
    counted: int = 0
    tokens: int = 0
    train: tuple[Shard, ...] = ()
    validation: tuple[Shard, ...] = ()
    finished: bool = False


def read_index(folder: epath.Path) -> tuple[CorpusConfig, dict[str, Any], CorpusState]:
    """Reads the configuration, the settings and the state of a corpus."""
    path = folder / INDEX
    mend = _MEND.format(path)
    with storage.refuse_damage(path, mend):
        record = storage.read_json(path, mend=mend, state=dict, settings=dict)
        if (found := record["format"]) != FORMAT:
            raise UserError(f"{path} has corpus format {found}, not {FORMAT}: {mend}")
        state, settings = record["state"], record["settings"]
        settings["vocabulary"]  # what lacks it is damaged; `open` compares it with the files
        shards = {split: tuple(Shard(**shard) for shard in state[split]) for split in SPLITS}
        return CorpusConfig(**settings["config"]), settings, CorpusState(**{**state, **shards})


def write_index(folder: epath.Path, settings: dict, state: CorpusState) -> None:
    """Writes the settings and the state of a corpus."""
    record = {"format": FORMAT, "settings": settings, "state": dataclasses.asdict(state)}
    storage.write_atomic(folder / INDEX, (json.dumps(record, indent=1) + "\n").encode())
