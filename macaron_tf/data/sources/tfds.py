"""Access to prepared datasets of TensorFlow Datasets (TFDS), and downloads on request."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.sources.names import Source, join_names, parse_tfds
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
    def columns(self) -> tuple[dict[str, tuple[str, ...]], list[str]]:
        """Dict mapping the name of each text column to its class names, and the single texts.

        Text columns are scalar fields and sequences of scalars, because `Records.texts` can convert
        them to text. A field that is not a class label has an empty tuple of class names.
        """
        types, columns, texts = import_tfds().features, {}, []
        for field, feature in self.features.items():
            texts += [field] * isinstance(feature, types.Text)
            feature = feature.feature if isinstance(feature, types.Sequence) else feature
            if feature.shape == ():
                columns[field] = tuple(getattr(feature, "names", None) or ())
        return columns, texts

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
    library, folder = import_tfds(), prepared_folder(name, tfds, languages)
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


def _download(name: str, tfds: Tfds) -> None:
    """Downloads and prepares a dataset."""
    from macaron_tf.data.sources import builders

    library, base = import_tfds(), parse_tfds(name)[0]
    try:
        library.builder(name, data_dir=str(tfds.root)).download_and_prepare()
    except BaseException as error:
        if base in builders.BUILDERS:  # TFDS would use a damaged file again at the next attempt
            (tfds.root / "downloads" / base).rmtree(missing_ok=True)
        if not isinstance(error, Exception):
            raise
        # TFDS errors (unknown name, network, disk, damaged file) have no common base class.
        failure = f"tfds:{name} could not be prepared in {tfds.root} ({storage.reason(error)})"
        mend = "check the network, or copy the prepared dataset there"
        raise UserError(f"{failure}: {mend}") from error


def prepared_folder(
    name: str, tfds: Tfds | None = None, languages: tuple[str, str] | None = None
) -> epath.Path:
    """Returns the folder of a prepared dataset, DATA_DIR/NAME[/CONFIG]/VERSION.

    If the dataset is missing and `tfds.download` is True, it is downloaded first. This function
    finds it without `tfds.builder`, which may search the network for a missing dataset for minutes.

    Args:
        name: name of the dataset in the form NAME[/CONFIG][:VERSION]. A name without VERSION means
            the latest prepared version. A name without CONFIG means the configuration of the
            languages, or the only prepared configuration.
        languages: two language codes, which select a configuration such as "de-en" or "en-de";
            `None` means that the languages are not used.
    """
    tfds = tfds or Tfds()
    root, (base, config, version) = tfds.root, parse_tfds(name)
    prepared: dict[str, list[str]] = {}  # versions of each configuration; "" if there is only one
    for depth in ("*", "*/*"):
        for path in (root / base).glob(f"{depth}/dataset_info.json"):
            *key, found = path.parent.relative_to(root / base).parts
            if re.fullmatch(r"\d+\.\d+\.\d+", found):
                prepared.setdefault("".join(key), []).append(found)
    if not config and "" not in prepared and prepared:
        wanted = {"-".join(languages), "-".join(languages[::-1])} if languages else set()
        fitting = [key for key in prepared if key in wanted or len(prepared) == 1]
        if len(fitting) != 1:
            failure = f"tfds:{name} has not one prepared configuration"
            mend = f"give tfds:{base}/CONFIG with one of {join_names(prepared)}"
            raise UserError(f"{failure} {' or '.join(sorted(wanted))}: {mend}")
        [config] = fitting
    versions = prepared.get(config, [])
    if not versions or version not in ("", *versions):
        has_builder = _has_builder(base)
        if tfds.download and has_builder:
            _download(name, tfds)
            return prepared_folder(name, dataclasses.replace(tfds, download=False), languages)
        no_builder = "prepare it yourself, as TFDS has no builder"
        remedy = "give --download" if has_builder else no_builder
        known = join_names(f"{key}:{found}" for key in prepared for found in prepared[key])
        failure = f"no TFDS dataset {name!r} in {root}, which has {known} of {base}"
        raise UserError(f"{failure}: correct the name, give another --data-dir, or {remedy}")
    latest = max(versions, key=lambda found: [int(part) for part in found.split(".")])
    return root / base / config / (version or latest)


def _has_builder(name: str) -> bool:
    """Returns whether the installed TFDS or this library has a builder for a dataset."""
    # Importing takes seconds, because TFDS then imports all its builders, and registers ours.
    from macaron_tf.data.sources import builders

    names = import_tfds().list_builders(with_community_datasets=False)
    return parse_tfds(name)[0] in (*builders.BUILDERS, *names)


def import_tfds():
    """Imports `tensorflow_datasets`."""
    with needed("a tfds: source"):
        import tensorflow_datasets
    return tensorflow_datasets


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
