"""Columns of any prepared TensorFlow Datasets set; fetched only on demand."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from macaron_tf.data.tfds_sets import first_line, import_tfds, listed, open_set, records_in_order
from macaron_tf.errors import UserError

_CHUNK = 1024  # records a batch: 60,614 sentences take 5 s so, 16 s one by one


class Columns(NamedTuple):
    """A split, column by column.

    Args:
        values: (N,) array of each field, texts as bytes; a nested field is named "idx/question".
            Of sequences, see `read_sequences`.
        class_names: names of the classes of each field that is a class label, class 0 first.
    """

    values: dict[str, np.ndarray | list]
    class_names: dict[str, tuple[str, ...]]


def read_columns(
    name: str,
    split: str,
    fields: Sequence[str],
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
) -> Columns:
    """Reads some fields of a split, in the order of the records on disk.

    Args:
        name: NAME[/CONFIG][:VERSION].
        split: a split, or a slice of one such as "train[:10%]".
        fields: fields to read, each of them a scalar or a dict of scalars.
        data_dir: TFDS's folder; its own default when None.
        download: prepare the set when it is absent. Never done otherwise: with no network TFDS
            tries for minutes.

    Returns:
        The columns.

    Raises:
        UserError: no such set, configuration, split or field; a damaged set; no network.
    """
    chunks, class_names = _read(name, split, fields, data_dir, download, ragged=False)
    values = {key: np.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}
    return Columns(values, class_names)


def read_sequences(
    name: str,
    split: str,
    fields: Sequence[str],
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
) -> Columns:
    """`read_columns` of fields that may be sequences, of another length in each record.

    Args:
        name, split, data_dir, download: as for `read_columns`.
        fields: fields to read, each of them a scalar, a sequence, or a dict or sequence of such.

    Returns:
        The columns; of a sequence, a list of N arrays.

    Raises:
        UserError: as `read_columns`.
    """
    chunks, class_names = _read(name, split, fields, data_dir, download, ragged=True)
    values = {key: [row for chunk in chunks for row in chunk[key]] for key in chunks[0]}
    return Columns(values, class_names)


def _read(name, split, fields, data_dir, download, ragged: bool) -> tuple[list[dict], dict]:
    """Chunks of records, each a dict of columns, and the names of the fields' classes."""
    found = open_set(name, split, data_dir, download)
    features = found.features
    missing = [field for field in fields if field not in features]
    if missing:
        raise UserError(
            f"tfds:{name} has no field {missing[0]!r}: its records hold {listed(features)}"
        )
    try:
        records = records_in_order(found, split)
        records = records.map(lambda record: {field: record[field] for field in fields})
        batches = records.ragged_batch(_CHUNK) if ragged else records.batch(_CHUNK)
        chunks = [_flat(chunk) for chunk in batches]
    except Exception as error:  # a bad slice, a damaged or missing record file
        raise UserError(
            f"tfds:{name}: cannot read split {split!r} in {found.folder} ({first_line(error)}): "
            "check the split or prepare the set again"
        ) from error
    if not chunks:
        raise UserError(f"tfds:{name}: the split {split!r} holds no record; take a larger one")
    class_label = import_tfds().features.ClassLabel
    # A sequence's classes are those of what it is a sequence of.
    inner = {field: getattr(features[field], "feature", features[field]) for field in fields}
    class_names = {
        field: tuple(feature.names)
        for field, feature in inner.items()
        if isinstance(feature, class_label) and feature.names
    }
    return chunks, class_names


def _flat(record: dict, prefix: str = "") -> dict[str, np.ndarray]:
    columns = {}
    for key, value in record.items():
        if isinstance(value, dict):
            columns.update(_flat(value, f"{prefix}{key}/"))
        else:
            columns[prefix + key] = value.numpy()
    return columns
