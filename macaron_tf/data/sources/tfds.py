"""Access to prepared datasets of TensorFlow Datasets (TFDS), and downloads on request."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.sources.names import Source, parse_tfds
from macaron_tf.errors import UserError, needed
from macaron_tf.io import paths as storage
from macaron_tf.io.plug_ins import find
from macaron_tf.io.progress import Progress

# Number of records per batch. A book of PG-19 takes about 1 MB. Reading 60,614 sentences takes 16 s
# one by one.
_CHUNK_RECORDS = 64


@dataclasses.dataclass(frozen=True)
class Tfds:
    """The folder of TensorFlow Datasets, and what reading a source may do.

    Attributes:
        data_dir: folder of prepared datasets. `None` means the folder in the environment variable
            TFDS_DATA_DIR, or `~/tensorflow_datasets` if the variable is not set.
        trust_code: whether to run Python code that the name of a source or the description of a
            dataset names, if a file contains this name. Functions that `plug_ins.find` has found
            before, such as `--set data.source=python:mine:rows`, may run anyway.
    """

    data_dir: str | os.PathLike | None = None
    download: bool = False
    trust_code: bool = False

    @property
    def root(self) -> epath.Path:
        """Path of the folder of prepared datasets."""
        folder = self.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        return storage.as_path(folder).expanduser()


def source_function(source: Source, tfds: Tfds | None) -> Callable:
    """Finds the function of a `python:` source."""
    return find(source.location, trust_code=tfds is not None and tfds.trust_code)


class PreparedSplit(NamedTuple):
    """A split of a prepared TFDS dataset.

    Attributes:
        features: dict mapping the name of each field in a record to its TFDS feature. The dict is
            empty if the records are not dicts of fields.
    """

    name: str
    split: str
    builder: Any
    folder: epath.Path
    features: Any

    @property
    def text_fields(self) -> list[str]:
        """Names of the fields that are single texts."""
        text_type = import_tfds().features.Text
        return [name for name in self.features if isinstance(self.features[name], text_type)]

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Dict mapping the name of each text column to its class names.

        Text columns are scalar fields and sequences of scalars, because `Records.texts` can convert
        them to text. A field that is not a class label has an empty tuple of class names.
        """
        sequence_type, columns = import_tfds().features.Sequence, {}
        for field, feature in self.features.items():
            feature = feature.feature if isinstance(feature, sequence_type) else feature
            if feature.shape == ():
                columns[field] = tuple(getattr(feature, "names", None) or ())
        return columns

    def rows(self, fields: Sequence[str]) -> Iterator[tuple]:
        """Yields the place of each record, for messages, and a dict of its `fields`.

        Texts are strings, sequences are lists, and nested fields are dicts.
        """
        number = itertools.count()
        for chunk in self.chunks(fields):
            columns = (_to_python(chunk[field]) for field in fields)
            for values in zip(*columns, strict=True):
                where = f"tfds:{self.name}, split {self.split!r}, record {next(number)}"
                yield where, dict(zip(fields, values, strict=True))

    def chunks(self, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields dicts mapping field name to the (ragged) tensor of up to 64 records."""
        if missing := [field for field in fields if field not in self.features]:
            known = f"only the fields {join_names(self.features)}"
            raise UserError(f"tfds:{self.name} has no field {missing[0]!r}, {known}")
        total = self.count
        config = import_tfds().ReadConfig(interleave_cycle_length=1, try_autocache=False)
        with self._clear_errors():
            records = self.builder.as_dataset(split=self.split, read_config=config)
            records = records.map(lambda record: {name: record[name] for name in fields})
            with Progress(f"reading tfds:{self.name}", "records", total) as progress:
                for chunk in records.ragged_batch(_CHUNK_RECORDS).prefetch(1):
                    yield chunk
                    progress.advance(min(_CHUNK_RECORDS, total))

    @property
    def count(self) -> int:
        """Number of records."""
        with self._clear_errors():
            return self.builder.info.splits[self.split].num_examples

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Converts errors of TFDS and TensorFlow in a `with` block to a `UserError`."""
        try:
            yield
        except Exception as error:  # a bad slice, a damaged or missing record file
            failure = f"cannot read split {self.split!r} ({storage.reason(error)})"
            raise UserError(f"{self.folder}: {failure}") from error


def open_set(
    name: str, split: str, tfds: Tfds | None = None, languages: tuple[str, str] | None = None
) -> PreparedSplit:
    """Opens a split of a prepared dataset."""
    library, may_download = import_tfds(), tfds and tfds.download
    if may_download and languages and not parse_tfds(name)[1]:
        name = _with_config(name, languages)
    try:
        folder = prepared_folder(name, tfds, languages)
    except UserError:
        if not may_download or not _has_builder(name):
            raise
        _download(name, tfds)
        folder = prepared_folder(name, tfds, languages)
    _refuse_code(folder, tfds is not None and tfds.trust_code)
    try:
        builder = library.builder_from_directory(str(folder))
        features, splits = builder.info.features, builder.info.splits
        features = features if isinstance(features, library.features.FeaturesDict) else {}
    except Exception as error:  # TFDS lets errors of any type escape from its parsers
        failure = f"{folder} is not a prepared TFDS dataset ({storage.reason(error)})"
        raise UserError(f"{failure}: prepare it again") from error
    # The error of TFDS would not say which part of "train[:10%]" is unknown.
    if re.split(r"[\[+]", split)[0] not in splits:
        raise UserError(f"tfds:{name} has no split {split!r}: give one of {join_names(splits)}")
    return PreparedSplit(name, split, builder, folder, features)


def _refuse_code(folder: epath.Path, trust_code: bool) -> None:
    """Raises a UserError if a dataset's description names a Python class that needs `trust_code`.

    TFDS would import the module of the class, and importing a module runs its code.
    """

    def check(description: dict[str, Any]) -> dict[str, Any]:
        for key in ("pythonClassName", "python_class_name", "type"):  # TFDS's spellings
            class_path = str(description.get(key))
            if "." in class_path and not class_path.startswith("tensorflow_datasets."):
                find(":".join(class_path.rsplit(".", 1)), object, trust_code)
        return description

    for name in ("features.json", "dataset_info.json"):
        # A RecursionError is not suppressed, because TFDS might accept deeper nesting than `json`.
        damage = storage.refuse_damage(folder / name, "prepare the dataset again")
        with damage, contextlib.suppress(*storage.FILE_ERRORS, ValueError):
            json.loads((folder / name).read_bytes(), object_hook=check)


def _with_config(name: str, languages: tuple[str, str]) -> str:
    """Adds the configuration for two languages to a dataset's name, if TFDS has one."""
    configs = import_tfds().builder_cls(name).builder_configs if _has_builder(name) else {}
    candidates = ("-".join(languages), "-".join(languages[::-1]))
    base, _, version = parse_tfds(name)
    path = next((f"{base}/{config}" for config in candidates if config in configs), base)
    return f"{path}:{version}" if version else path


def _download(name: str, tfds: Tfds) -> None:
    """Downloads and prepares a dataset."""
    library, base = import_tfds(), parse_tfds(name)[0]
    try:
        library.builder(name, data_dir=str(tfds.root)).download_and_prepare()
    except BaseException as error:
        if base in _added_builders():  # TFDS would use a damaged file again at the next attempt
            (tfds.root / "downloads" / base).rmtree(missing_ok=True)
        if not isinstance(error, Exception):
            raise
        # TFDS errors (unknown name, network, disk, damaged file) have no common base class.
        failure = f"tfds:{name} could not be prepared in {tfds.root} ({storage.reason(error)})"
        by_hand = _by_hand(name, tfds.root) or "copy the prepared dataset there"
        raise UserError(f"{failure}: check the network, or {by_hand}") from error


def prepared_folder(
    name: str, tfds: Tfds | None = None, languages: tuple[str, str] | None = None
) -> epath.Path:
    """Returns the folder of a prepared dataset, DATA_DIR/NAME[/CONFIG]/VERSION.

    This function does not use `tfds.builder`, which may search the network for a missing dataset
    for minutes.

    Args:
        name: name of the dataset in the form NAME[/CONFIG][:VERSION]. A name without VERSION means
            the latest prepared version. A name without CONFIG means the configuration of the
            languages, or the only prepared configuration.
        languages: two language codes, which select a configuration such as "de-en" or "en-de";
            `None` means that the languages are not used.
    """
    root, (base, config, version) = (tfds or Tfds()).root, parse_tfds(name)
    prepared: dict[str, list[str]] = {}  # versions of each configuration; "" if there is only one
    for depth in ("*", "*/*"):
        for path in (root / base).glob(f"{depth}/dataset_info.json"):
            *key, found = path.parent.relative_to(root / base).parts
            if re.fullmatch(r"\d+\.\d+\.\d+", found):
                prepared.setdefault("".join(key), []).append(found)
    wanted = {"-".join(languages), "-".join(languages[::-1])} if languages else set()
    if config or "" in prepared:
        fitting = [config] if config in prepared else []
    else:
        fitting = [key for key in prepared if key in wanted or len(prepared) == 1]
        if prepared and len(fitting) != 1:
            failure = f"tfds:{name} has not one prepared configuration"
            mend = f"give tfds:{base}/CONFIG with one of {join_names(prepared)}"
            raise UserError(f"{failure} {' or '.join(sorted(wanted))}: {mend}")
    if not fitting:
        path = f"{base}/{config}" if config else base
        folders = (p for p in root.iterdir() if p.is_dir()) if root.is_dir() else ()
        others = {folder.name for folder in folders if folder.name[0] not in "._"}
        others -= {base, "downloads"}
        available = [f"{base}/{key}".rstrip("/") for key in prepared] or others
        by_hand, remedy = _by_hand(path, root), "prepare it yourself, as TFDS has no builder"
        if _has_builder(path):
            remedy = f"give --download{by_hand and f' (without a network, first {by_hand})'}"
        failure = f"no TFDS dataset {path!r} in {root}, which has {join_names(available)}"
        raise UserError(f"{failure}: correct the name, give another --data-dir, or {remedy}")
    versions = prepared[fitting[0]]
    if version and version not in versions:
        raise UserError(f"tfds:{name} has only the versions {join_names(versions)}")
    latest = max(versions, key=lambda found: [int(part) for part in found.split(".")])
    return root / base / fitting[0] / (version or latest)


def _by_hand(name: str, root: epath.Path) -> str:
    """Returns where to put the files of a dataset that this library prepares, or ""."""
    base, config, _ = parse_tfds(name)
    if not (builder := _added_builders().get(base)):
        return ""
    folder = root / "downloads" / "manual" / base
    return f"put {', '.join(builder.file_names(config))} from {builder.URL} into {folder}"


def _has_builder(name: str) -> bool:
    """Returns whether the installed TFDS or this library has a builder for a dataset."""
    _added_builders()  # registers them with TFDS
    return parse_tfds(name)[0] in import_tfds().list_builders(with_community_datasets=False)


def _added_builders() -> dict[str, Any]:
    """Returns a dict mapping name to class for all builders that this library adds to TFDS."""
    import_tfds()
    # Importing takes seconds, because TFDS then imports all its builders.
    from macaron_tf.data.sources import builders

    return builders.BUILDERS


def import_tfds():
    """Imports `tensorflow_datasets`."""
    with needed("a tfds: source"):
        import tensorflow_datasets
    return tensorflow_datasets


def join_names(names: Iterable[str]) -> str:
    """Joins names in alphabetical order for a message, or returns "nothing" if there are none."""
    return ", ".join(sorted(names)) or "nothing"


def read_columns(
    name: str, split: str, fields: Sequence[str], tfds: Tfds | None = None
) -> dict[str, np.ndarray]:
    """Reads some fields of all records as arrays, in the order of the records on disk."""
    chunks = [*open_set(name, split, tfds).chunks(fields)]
    return {field: tf.concat([chunk[field] for chunk in chunks], 0).numpy() for field in fields}


def _to_python(column: tf.Tensor | tf.RaggedTensor | dict) -> list:
    """Converts the values and texts in a column of any rank; see `PreparedSplit.rows`."""
    if isinstance(column, dict):
        parts = map(_to_python, column.values())
        return [dict(zip(column, values, strict=True)) for values in zip(*parts, strict=True)]
    is_ragged = isinstance(column, tf.RaggedTensor)
    return _decoded(column.to_list() if is_ragged else column.numpy().tolist())


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_decoded, value))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
