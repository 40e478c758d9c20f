"""The files of a prepared corpus: records of one size in shards, and what is recorded of them."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from macaron_tf.data import storage
from macaron_tf.data.packing import Rows

FORMAT = 1  # raise it when the files' layout or meaning changes
INDEX = "corpus.json"
PROGRESS = "progress.json"
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """How a row lies in a record: L ids, and for pairs the boundary and the label behind them.

    Args:
        sequence_length: L.
        next_sentence: whether rows are pairs.
        wide: four bytes a number instead of two.
    """

    sequence_length: int
    next_sentence: bool
    wide: bool

    @classmethod
    def of(cls, sequence_length: int, next_sentence: bool, vocabulary_size: int) -> "RecordFormat":
        """The format of a corpus: two bytes a number where that suffices.

        Args:
            sequence_length: L.
            next_sentence: whether rows are pairs.
            vocabulary_size: V.

        Returns:
            The format.
        """
        wide = max(sequence_length, vocabulary_size) > 1 << 16
        return cls(sequence_length, next_sentence, wide)

    @property
    def numbers(self) -> int:
        """Numbers of a record."""
        return self.sequence_length + 2 * self.next_sentence

    @property
    def file_bytes(self) -> int:
        """Bytes that a record takes in its file; TFRecord adds 16 of length and checksums."""
        return self.numbers * (4 if self.wide else 2) + 16

    def encoded(self, rows: Rows) -> list[bytes]:
        """Rows as records.

        Args:
            rows: N rows.

        Returns:
            N records.
        """
        columns = [rows.token_ids]
        if self.next_sentence:
            columns += [rows.boundaries[:, None], rows.next_sentence[:, None]]
        table = np.concatenate(columns, axis=1)  # (N, numbers)
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
            {"token_ids": (B, L) int32, "segment_ids": (B, L) int32} and, of pairs,
            "next_sentence" (B,) int32.
        """
        table = tf.cast(table, tf.int32)
        token_ids = table[:, : self.sequence_length]
        if not self.next_sentence:
            return {"token_ids": token_ids, "segment_ids": tf.zeros_like(token_ids)}
        boundaries = table[:, self.sequence_length]  # (B,)
        second = tf.range(self.sequence_length) >= boundaries[:, None]  # (B, L)
        return {
            "token_ids": token_ids,
            "segment_ids": tf.cast(second & (token_ids != 0), tf.int32),
            "next_sentence": table[:, self.sequence_length + 1],
        }


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
