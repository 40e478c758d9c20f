"""Rows of a corpus, and their encoding as records."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.special import Special


class Row(NamedTuple):
    """A row before encoding.

    Attributes:
        segments: token ids of each segment, without the [SEP] that follows in the encoded row.
        owner: index of the document with which the row begins.
        boundary: column where the second segment of a pair begins, or L for rows without pairs.
        label: label of a segment pair, see `Rows.pair_label`.
    """

    segments: list[np.ndarray]
    owner: int
    boundary: int
    label: int = 0


class Rows(NamedTuple):
    """N rows `[CLS] segment [SEP] segment [SEP] ...` of L ids.

    Attributes:
        token_ids: `(N, L)` int32, with padding at the end.
        boundaries: `(N,)` int32, column where the second segment of a pair begins, or L for rows
            without pairs.
        pair_label: `(N,)` int32, 1 if the second segment comes from another document or the
            segments are swapped, otherwise 0.
        owners: `(N,)` int64, index of the document with which each row begins.
    """

    token_ids: np.ndarray
    boundaries: np.ndarray
    pair_label: np.ndarray
    owners: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Row], length: int, special: Special) -> "Rows":
        token_ids = np.full((len(rows), length), special.pad, np.int32)
        for row, filled in zip(rows, token_ids, strict=True):
            filled[0] = special.begin
            column = 1
            for ids in row.segments:
                filled[column : column + len(ids)] = ids
                column += len(ids) + 1
                filled[column - 1] = special.end
        return cls(
            token_ids,
            np.array([row.boundary for row in rows], np.int32),
            np.array([row.label for row in rows], np.int32),
            np.array([row.owner for row in rows], np.int64),
        )


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """Binary layout of a record, which holds one row: L token ids, then one value per column.

    Attributes:
        sequence_length: row length L.
        columns: names of the columns after the token ids, in order. The possible names are
            "boundary" (position where the second segment begins), "pair_label", "language" and
            "second_language".
        wide: whether an integer takes four bytes instead of two bytes.
        pad_id: id of padding.
    """

    sequence_length: int
    columns: tuple[str, ...]
    wide: bool
    pad_id: int = Special.pad

    @classmethod
    def of(
        cls, config: CorpusConfig, vocabulary_size: int, pad_id: int = Special.pad
    ) -> "RecordFormat":
        """Builds the layout for a corpus, with two bytes per integer if ids and positions fit."""
        wanted = {
            "boundary": config.paired or config.has_translations,
            "pair_label": config.paired,
            "language": bool(config.languages),
            "second_language": config.has_translations,
        }
        columns = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        wide = max(config.sequence_length + 1, vocabulary_size) > 1 << 16
        return cls(config.sequence_length, columns, wide, pad_id)

    @property
    def integer_count(self) -> int:
        return self.sequence_length + len(self.columns)

    @property
    def file_bytes(self) -> int:
        """Size of a record in a TFRecord file in bytes, with 16 bytes for length and checksums."""
        return self.integer_count * (4 if self.wide else 2) + 16

    def encode(self, rows: Rows, languages: np.ndarray) -> list[bytes]:
        """Encodes N rows as N records, one bytes object per row.

        Args:
            rows: N rows of `sequence_length` ids.
            languages: `(N, 2)` language ids of the first and second half of each row.
        """
        values = {
            "boundary": rows.boundaries,
            "pair_label": rows.pair_label,
            "language": languages[:, 0],
            "second_language": languages[:, 1],
        }
        columns = [values[name][:, None] for name in self.columns]
        table = np.concatenate([rows.token_ids, *columns], axis=1)  # (N, integer_count)
        return [row.tobytes() for row in table.astype("<i4" if self.wide else "<u2")]

    def decode(self, records: tf.Tensor) -> tf.Tensor:
        """Decodes N records to a table with one row per record and one column per integer.

        Args:
            records: `(N,)` strings.

        Returns:
            `(N, integer_count)` uint16, or int32 if `wide`.
        """
        table = tf.io.decode_raw(records, tf.int32 if self.wide else tf.uint16)
        return tf.ensure_shape(table, [None, self.integer_count])

    def features(self, table: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the model inputs of a batch from rows of a table.

        Args:
            table: `(B, integer_count)`, rows that `decode` returned.

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
