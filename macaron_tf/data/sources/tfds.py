"""Prepared TensorFlow Datasets sets, found and opened without the network."""

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage


class PreparedSet(NamedTuple):
    """A set on the disk.

    Attributes:
        builder: TFDS's read-only builder.
        folder: where it lies.
        features: of its records, by name.
    """

    builder: Any
    folder: epath.Path
    features: Any


def open_set(
    name: str,
    split: str,
    data_dir: str | os.PathLike | None,
    download: bool,
    languages: tuple[str, str] | None = None,
) -> PreparedSet:
    """Opens a prepared set that has a split.

    Args:
        name: NAME[/CONFIG][:VERSION].
        split: a split, or a slice of one such as "train[:10%]".
        data_dir: TFDS's folder; its own default when None.
        download: prepare the set when it is absent. Never done otherwise: with no network TFDS
            tries for minutes.
        languages: see `prepared_folder`.

    Returns:
        The set.

    Raises:
        UserError: no such set, configuration or split; a damaged set; no network.
    """
    tfds = import_tfds()
    try:
        folder = prepared_folder(name, data_dir, languages)
    except UserError:
        if not download or not _has_builder(name):
            raise
        _prepare(tfds, name, data_dir)
        folder = prepared_folder(name, data_dir, languages)
    try:
        builder = tfds.builder_from_directory(str(folder))
        features, splits = builder.info.features, builder.info.splits
    except Exception as error:  # TFDS lets through whatever its parsers raise
        raise UserError(
            f"{folder} is not a prepared TFDS set ({first_line(error)}): prepare it again"
        ) from error
    # TFDS cannot itself say which half of "train[:10%]" it does not know.
    if re.split(r"[\[+]", split)[0] not in splits:
        raise UserError(f"tfds:{name} has no split {split!r}: it has {listed(splits)}")
    return PreparedSet(builder, folder, features)


def records_in_order(found: PreparedSet, split: str):
    """The records of a split as a `tf.data.Dataset`, in their order on disk."""
    # One file after another, and nothing kept.
    config = import_tfds().ReadConfig(interleave_cycle_length=1, try_autocache=False)
    return found.builder.as_dataset(split=split, read_config=config)


def set_files(
    name: str, data_dir: str | os.PathLike | None, languages: tuple[str, str] | None = None
) -> list[epath.Path]:
    """The files of a prepared set, in the order of their names.

    Args:
        name, data_dir, languages: as for `prepared_folder`.

    Raises:
        UserError: the set is not prepared.
    """
    folder = prepared_folder(name, data_dir, languages)
    return [path for path in sorted(folder.iterdir()) if path.is_file()]


def prepared_folder(
    name: str, data_dir: str | os.PathLike | None, languages: tuple[str, str] | None = None
) -> epath.Path:
    """Finds DATA_DIR/NAME[/CONFIG]/VERSION by itself.

    `tfds.builder` would ask the network for whatever is not prepared, and try for minutes.

    Args:
        name, data_dir: as for `open_set`.
        languages: two whose names, joined, may stand for a configuration that is not named.

    Returns:
        The folder.

    Raises:
        UserError: the set is not prepared.
    """
    root = _data_dir(data_dir)
    path, _, version = name.partition(":")
    base, _, config = path.partition("/")
    if not (root / base).is_dir():
        prepared = listed(_subfolders(root))
        raise UserError(
            f"no TFDS set {base!r} in {root}, which holds {prepared}: correct the name, give "
            f"another data_dir, or {_mend(path, root)}"
        )
    folder = root / base / config
    if not config and not _versions(folder):
        configs = _subfolders(folder)
        wanted = {"-".join(languages), "-".join(languages[::-1])} if languages else set()
        fitting = [c for c in configs if c in wanted or len(configs) == 1]
        if len(fitting) != 1:
            raise UserError(
                f"tfds:{name} has several configurations or none: name one of "
                f"{listed(configs)}, as in tfds:{base}/CONFIG"
            )
        folder /= fitting[0]
    if not folder.is_dir():
        raise UserError(
            f"no configuration {config!r} of TFDS set {base!r} in {root}, which holds "
            f"{listed(_subfolders(root / base))}: correct the name or {_mend(path, root)}"
        )
    versions = _versions(folder)
    if not versions:
        raise UserError(f"TFDS set {path!r} in {root} is not prepared: {_mend(path, root)}")
    if version and version not in versions:
        raise UserError(f"tfds:{path} has no version {version!r}: it has {listed(versions)}")
    return folder / (version or versions[-1])


def _versions(folder: epath.Path) -> list[str]:
    found = [
        name
        for name in _subfolders(folder)
        if re.fullmatch(r"\d+\.\d+\.\d+", name) and (folder / name / "dataset_info.json").is_file()
    ]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def _subfolders(folder: epath.Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] not in "._")


def _data_dir(data_dir: str | os.PathLike | None) -> epath.Path:
    named = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return storage.as_path(named).expanduser()


def _mend(name: str, root: epath.Path) -> str:
    """How to come by a set."""
    if not _has_builder(name):
        return (
            f"prepare it in that folder (--data-dir) by other means, for TFDS has no builder "
            f"{name.partition('/')[0]!r} that could download it"
        )
    return (
        'prepare it with: python -c "import tensorflow_datasets as tfds; '
        f"tfds.load('{name}', data_dir='{root}')\""
    )


def _has_builder(name: str) -> bool:
    """Whether the installed TFDS can make the set; the community's list would need the network."""
    known = import_tfds().list_builders(with_community_datasets=False)
    return name.partition(":")[0].partition("/")[0] in known


def _prepare(tfds, name: str, data_dir: str | os.PathLike | None) -> None:
    root = _data_dir(data_dir)
    try:
        tfds.builder(name, data_dir=str(root)).download_and_prepare()
    except Exception as error:  # unknown name, no network, no disk: TFDS has no common class
        raise UserError(
            f"TFDS could not prepare {name!r} in {root} ({first_line(error)}): "
            "check the name and the network"
        ) from error


def import_tfds():
    """The package, or a UserError that says how to install it."""
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise UserError(
            f"a tfds: source needs the package tensorflow-datasets ({error}): "
            "pip install tensorflow-datasets importlib_resources"
        ) from error
    return tensorflow_datasets


def listed(names: Iterable[str]) -> str:
    """Names in order, for a message; "nothing" where there is none."""
    names = sorted(names)
    return ", ".join(names) if names else "nothing"


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


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
