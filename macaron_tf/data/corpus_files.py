"""The files of a prepared corpus: records of one size in shards, and what is recorded of them."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from macaron_tf.data import storage
from macaron_tf.data.corpus_config import CorpusConfig
from macaron_tf.data.packing import Rows

FORMAT = 1  # raise it when the files' layout or meaning changes
INDEX = "corpus.json"
PROGRESS = "progress.json"
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """How a row lies in a record: L ids, and behind them the numbers that the corpus's rows have.

    Args:
        sequence_length: L.
        columns: names of those numbers: "boundary", where the second half begins, "pair_label",
            "language" and "second_language".
        wide: four bytes a number instead of two.
    """

    sequence_length: int
    columns: tuple[str, ...]
    wide: bool

    @classmethod
    def of(cls, config: CorpusConfig, vocabulary_size: int) -> "RecordFormat":
        """The format of a corpus: two bytes a number where that suffices.

        Args:
            config: the corpus.
            vocabulary_size: V.

        Returns:
            The format.
        """
        wanted = {
            "boundary": config.paired or config.has_translations,
            "pair_label": config.paired,
            "language": bool(config.languages),
            "second_language": config.has_translations,
        }
        columns = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        wide = max(config.sequence_length + 1, vocabulary_size) > 1 << 16
        return cls(config.sequence_length, columns, wide)

    @property
    def numbers(self) -> int:
        """Numbers of a record."""
        return self.sequence_length + len(self.columns)

    @property
    def file_bytes(self) -> int:
        """Bytes that a record takes in its file; TFRecord adds 16 of length and checksums."""
        return self.numbers * (4 if self.wide else 2) + 16

    def encoded(self, rows: Rows, languages: np.ndarray) -> list[bytes]:
        """Rows as records.

        Args:
            rows: N rows.
            languages: (N, 2) the languages of the halves.

        Returns:
            N records.
        """
        known = {
            "boundary": rows.boundaries,
            "pair_label": rows.pair_label,
            "language": languages[:, 0],
            "second_language": languages[:, 1],
        }
        columns = [known[name][:, None] for name in self.columns]
        table = np.concatenate([rows.token_ids, *columns], axis=1)  # (N, numbers)
        return [row.tobytes() for row in table.astype("<i4" if self.wide else "<u2")]

    def table(self, records: tf.Tensor) -> tf.Tensor:
        """Records as the numbers they hold, in-graph.

        Args:
            records: (N,) string tensor.

        Returns:
            (N, numbers) uint16, or int32 where `wide`.
        """
        table = tf.io.decode_raw(records, tf.int32 if self.wide else tf.uint16)
        return tf.ensure_shape(table, [None, self.numbers])

    def features(self, table: tf.Tensor) -> dict[str, tf.Tensor]:
        """Rows of a table as a batch, in-graph.

        Args:
            table: (B, numbers) of `table`.

        Returns:
            {"token_ids": (B, L) int32, "segment_ids": (B, L) int32, 1 in the second half} and, of
            pairs, "pair_label" (B,) int32; of several languages "language_ids" (B, L) int32; with
            translation pairs "position_ids" (B, L) int32, which begin at 0 again in the second
            half (Conneau and Lample 2019, section 3.4).
        """
        table = tf.cast(table, tf.int32)
        token_ids, *columns = tf.split(table, [self.sequence_length, *[1] * len(self.columns)], 1)
        column = dict(zip(self.columns, columns, strict=True))  # each (B, 1)
        places = tf.range(self.sequence_length)
        boundaries = column.get("boundary", self.sequence_length)
        second = (places >= boundaries) & tf.ones_like(token_ids, tf.bool)  # (B, L)
        batch = {
            "token_ids": token_ids,
            "segment_ids": tf.cast(second & (token_ids != 0), tf.int32),
        }
        if "pair_label" in column:
            batch["pair_label"] = column["pair_label"][:, 0]
        if "language" in column:
            first = column["language"]
            batch["language_ids"] = tf.where(second, column.get("second_language", first), first)
        if "second_language" in column:
            batch["position_ids"] = places - tf.where(second, boundaries, 0)
        return batch


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of records.

    Args:
        name: its name in the corpus's folder.
        rows: number of its records.
        sha256: of its bytes, hex.
    """

    name: str
    rows: int
    sha256: str


def write_shard(folder: str, name: str, records: Iterable[bytes]) -> Shard:
    """Writes a shard aside, then renames it into its place.

    Args:
        folder: the corpus's folder.
        name: the shard's name.
        records: its records.

    Returns:
        What is recorded of it.

    Raises:
        UserError: the place cannot be written.
    """
    path = storage.join(folder, name)
    rows = 0
    with storage.renamed_aside(path) as aside:
        with tf.io.TFRecordWriter(aside) as writer:
            for record in records:
                writer.write(record)
                rows += 1
        digest = storage.file_digest(aside)
    return Shard(name, rows, digest)


def read_records(folder: str, shards: Iterable[Shard]) -> Iterator[bytes]:
    """The records of shards, one after another.

    Args:
        folder: the corpus's folder.
        shards: the shards.

    Yields:
        Records.
    """
    paths = [storage.join(folder, shard.name) for shard in shards if shard.rows]
    if paths:
        for batch in tf.data.TFRecordDataset(paths).batch(1024).as_numpy_iterator():
            yield from batch


def is_whole(folder: str, shard: Shard, record: RecordFormat, verify: bool) -> bool:
    """Whether a shard is there and what it was.

    Args:
        folder: the corpus's folder.
        shard: what was recorded of it.
        record: the corpus's format.
        verify: compare the SHA-256 too, not the size alone.

    Returns:
        True where it is.
    """
    path = storage.join(folder, shard.name)
    try:
        if tf.io.gfile.stat(path).length != shard.rows * record.file_bytes:
            return False
        return not verify or storage.file_digest(path) == shard.sha256
    except tf.errors.OpError:
        return False
