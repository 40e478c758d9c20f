"""Translation sets of TensorFlow Datasets, read from a prepared folder; fetched only on demand."""

import os
import pathlib
import re

from macaron_tf.errors import UserError


def read(
    name: str,
    split: str,
    source_lang: str,
    target_lang: str,
    data_dir: str | os.PathLike | None,
    download: bool,
) -> list[tuple[str, str]]:
    """Reads a split of a translation set.

    Args:
        name: NAME[/CONFIG][:VERSION].
        split: a split or a slice of one.
        source_lang, target_lang: keys of the set's records.
        data_dir: TFDS's folder, or None.
        download: prepare the set when it is absent.

    Returns:
        (source, target) lines in the set's order.

    Raises:
        UserError: see `sources.read_pairs`.
    """
    tfds = _import_tfds()
    try:
        folder = _prepared_folder(name, source_lang, target_lang, data_dir)
    except UserError:
        if not download or not _has_builder(name):
            raise
        _prepare(tfds, name, data_dir)
        folder = _prepared_folder(name, source_lang, target_lang, data_dir)
    try:
        builder = tfds.builder_from_directory(str(folder))
        features, splits = builder.info.features, builder.info.splits
    except Exception as error:  # TFDS lets through whatever its parsers raise
        raise UserError(
            f"{folder} is not a prepared TFDS set ({_first_line(error)}): prepare it again"
        ) from error
    _check_languages(name, features, source_lang, target_lang)
    # TFDS cannot itself say which half of "train[:10%]" it does not know.
    if re.split(r"[\[+]", split)[0] not in splits:
        raise UserError(f"tfds:{name} has no split {split!r}: it has {_listed(splits)}")
    try:
        # One file after another: the order of the records is the order on disk.
        config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        records = builder.as_dataset(split=split, read_config=config)
        pairs = [
            (_text(record[source_lang]), _text(record[target_lang]))
            for record in tfds.as_numpy(records)
        ]
    except Exception as error:  # a bad slice, a damaged or missing record file
        raise UserError(
            f"tfds:{name}: cannot read split {split!r} in {folder} ({_first_line(error)}): "
            "check the split or prepare the set again"
        ) from error
    if not pairs:
        raise UserError(f"tfds:{name}: the split {split!r} holds no pair; take a larger one")
    return pairs


def identity(
    name: str, source_lang: str, target_lang: str, data_dir: str | os.PathLike | None
) -> list[tuple[str, int, int]]:
    """What tells one state of a prepared set from another.

    Args:
        name, source_lang, target_lang, data_dir: as for `read`.

    Returns:
        Name, size in bytes and time of change in nanoseconds of each of its files.

    Raises:
        UserError: the set is not prepared.
    """
    folder = _prepared_folder(name, source_lang, target_lang, data_dir)
    return [
        (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
        if path.is_file()
    ]


def _prepared_folder(name, source_lang, target_lang, data_dir) -> pathlib.Path:
    """Finds DATA_DIR/NAME[/CONFIG]/VERSION by itself.

    `tfds.builder` would ask the network for whatever is not prepared, and try for minutes.
    """
    root = _data_dir(data_dir)
    path, _, version = name.partition(":")
    base, _, config = path.partition("/")
    if not (root / base).is_dir():
        prepared = _listed(_subfolders(root))
        raise UserError(
            f"no TFDS set {base!r} in {root}, which holds {prepared}: correct the name, give "
            f"another data_dir, or {_mend(path, root)}"
        )
    folder = root / base / config
    if not config and not _versions(folder):
        configs = _subfolders(folder)
        wanted = {f"{source_lang}-{target_lang}", f"{target_lang}-{source_lang}"}
        fitting = [c for c in configs if c in wanted or len(configs) == 1]
        if len(fitting) != 1:
            raise UserError(
                f"tfds:{name} has several configurations or none: name one of "
                f"{_listed(configs)}, as in tfds:{base}/CONFIG"
            )
        folder /= fitting[0]
    if not folder.is_dir():
        raise UserError(
            f"no configuration {config!r} of TFDS set {base!r} in {root}, which holds "
            f"{_listed(_subfolders(root / base))}: correct the name or {_mend(path, root)}"
        )
    versions = _versions(folder)
    if not versions:
        raise UserError(f"TFDS set {path!r} in {root} is not prepared: {_mend(path, root)}")
    if version and version not in versions:
        raise UserError(f"tfds:{path} has no version {version!r}: it has {_listed(versions)}")
    return folder / (version or versions[-1])


def _versions(folder: pathlib.Path) -> list[str]:
    found = [
        name
        for name in _subfolders(folder)
        if re.fullmatch(r"\d+\.\d+\.\d+", name) and (folder / name / "dataset_info.json").is_file()
    ]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def _subfolders(folder: pathlib.Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] not in "._")


def _data_dir(data_dir: str | os.PathLike | None) -> pathlib.Path:
    named = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return pathlib.Path(named).expanduser()


def _mend(name: str, root: pathlib.Path) -> str:
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
    known = _import_tfds().list_builders(with_community_datasets=False)
    return name.partition(":")[0].partition("/")[0] in known


def _prepare(tfds, name: str, data_dir: str | os.PathLike | None) -> None:
    root = _data_dir(data_dir)
    try:
        tfds.builder(name, data_dir=str(root)).download_and_prepare()
    except Exception as error:  # unknown name, no network, no disk: TFDS has no common class
        raise UserError(
            f"TFDS could not prepare {name!r} in {root} ({_first_line(error)}): "
            "check the name and the network"
        ) from error


def _check_languages(name, features, source_lang, target_lang) -> None:
    keys = list(features) if hasattr(features, "keys") else []
    for language in (source_lang, target_lang):
        if language not in keys:
            raise UserError(
                f"tfds:{name} has no language {language!r}: its records hold {_listed(keys)}"
            )


def _import_tfds():
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise UserError(
            f"a tfds: source needs the package tensorflow-datasets ({error}): "
            "pip install tensorflow-datasets importlib_resources"
        ) from error
    return tensorflow_datasets


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _listed(names) -> str:
    names = sorted(names)
    return ", ".join(names) if names else "nothing"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
