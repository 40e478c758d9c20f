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
        class_names: names of the classes of each field that is a class label, class 0 first.
    """

    values: dict[str, np.ndarray]
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
        chunks = [_flat(chunk) for chunk in records.batch(_CHUNK).as_numpy_iterator()]
    except Exception as error:  # a bad slice, a damaged or missing record file
        raise UserError(
            f"tfds:{name}: cannot read split {split!r} in {found.folder} ({first_line(error)}): "
            "check the split or prepare the set again"
        ) from error
    if not chunks:
        raise UserError(f"tfds:{name}: the split {split!r} holds no record; take a larger one")
    values = {key: np.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}
    class_label = import_tfds().features.ClassLabel
    class_names = {
        field: tuple(features[field].names)
        for field in fields
        if isinstance(features[field], class_label) and features[field].names
    }
    return Columns(values, class_names)


def _flat(record: dict, prefix: str = "") -> dict[str, np.ndarray]:
    columns = {}
    for key, value in record.items():
        if isinstance(value, dict):
            columns.update(_flat(value, f"{prefix}{key}/"))
        else:
            columns[prefix + key] = value
    return columns
