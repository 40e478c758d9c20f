"""Prepared TensorFlow Datasets sets, found and opened without the network."""

import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from etils import epath

from macaron_tf.data import storage
from macaron_tf.errors import UserError


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
