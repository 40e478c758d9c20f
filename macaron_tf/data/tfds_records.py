"""Columns of any prepared TensorFlow Datasets set; fetched only on demand."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from macaron_tf.data.tfds_source import (
    _first_line,
    _has_builder,
    _import_tfds,
    _listed,
    _prepare,
    _prepared_folder,
)
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
    tfds = _import_tfds()
    try:
        folder = _prepared_folder(name, None, None, data_dir)
    except UserError:
        if not download or not _has_builder(name):
            raise
        _prepare(tfds, name, data_dir)
        folder = _prepared_folder(name, None, None, data_dir)
    try:
        builder = tfds.builder_from_directory(str(folder))
        features, splits = builder.info.features, builder.info.splits
    except Exception as error:  # TFDS lets through whatever its parsers raise
        raise UserError(
            f"{folder} is not a prepared TFDS set ({_first_line(error)}): prepare it again"
        ) from error
    # TFDS cannot itself say which half of "train[:10%]" it does not know.
    if re.split(r"[\[+]", split)[0] not in splits:
        raise UserError(f"tfds:{name} has no split {split!r}: it has {_listed(splits)}")
    missing = [field for field in fields if field not in features]
    if missing:
        raise UserError(
            f"tfds:{name} has no field {missing[0]!r}: its records hold {_listed(features)}"
        )
    try:
        # One file after another: the order of the records is the order on disk.
        config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        records = builder.as_dataset(split=split, read_config=config)
        records = records.map(lambda record: {field: record[field] for field in fields})
        chunks = [_flat(chunk) for chunk in tfds.as_numpy(records.batch(_CHUNK))]
    except Exception as error:  # a bad slice, a damaged or missing record file
        raise UserError(
            f"tfds:{name}: cannot read split {split!r} in {folder} ({_first_line(error)}): "
            "check the split or prepare the set again"
        ) from error
    if not chunks:
        raise UserError(f"tfds:{name}: the split {split!r} holds no record; take a larger one")
    values = {key: np.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}
    class_names = {
        field: tuple(features[field].names)
        for field in fields
        if isinstance(features[field], tfds.features.ClassLabel) and features[field].names
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
