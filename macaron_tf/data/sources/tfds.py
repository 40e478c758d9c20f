"""Prepared sets of TensorFlow Datasets (TFDS), found and opened without the network."""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.sources.names import parse_tfds
from macaron_tf.errors import UserError, needed
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress
from macaron_tf.plug_ins import check_allowed

_RETRIES = 5  # of a download, with 6 s of waiting between them
_CHUNK = 1024  # records a batch: 60,614 sentences take 5 s so, 16 s one by one


@dataclasses.dataclass(frozen=True)
class Tfds:
    """TFDS's folder, and whether a set that it lacks is downloaded.

    Attributes:
        data_dir: TFDS's own default when None.
        download: never done otherwise.
    """

    data_dir: str | os.PathLike | None = None
    download: bool = False

    @property
    def root(self) -> epath.Path:
        """The folder of all sets."""
        named = self.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        return storage.as_path(named).expanduser()


class PreparedSplit(NamedTuple):
    """A split of a prepared set.

    Attributes:
        features: TFDS's description of a record's fields, by name.
    """

    name: str
    split: str
    builder: Any
    folder: epath.Path
    features: Any

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The fields that `rows` can write as texts, and the names of each one's classes."""
        sequence, found = import_tfds().features.Sequence, {}
        for field, feature in self.features.items():
            feature = feature.feature if isinstance(feature, sequence) else feature
            if feature.shape == ():
                found[field] = tuple(getattr(feature, "names", None) or ())
        return found

    def rows(self, fields: Sequence[str]) -> Iterator[list[str]]:
        """Fields of each record as texts: a class by its name, "" where it is secret (-1), and the
        items of a sequence with spaces between."""
        names = self.columns

        def text(field: str, value: Any) -> str:
            if isinstance(value, list):
                return " ".join(text(field, item) for item in value)
            if isinstance(value, bytes):
                return value.decode("utf-8", "replace")
            if named := names[field]:
                return named[value] if value >= 0 else ""
            return str(value)

        for chunk in self.chunks(fields):
            columns = [_listed(chunk[field]) for field in fields]
            for values in zip(*columns, strict=True):
                yield [text(field, item) for field, item in zip(fields, values, strict=True)]

    def chunks(self, fields: Sequence[str]) -> Iterator[dict[str, tf.Tensor | tf.RaggedTensor]]:
        """Batches of some fields, in the order of the records on disk."""
        with self.reading():
            records = self.records().map(lambda record: {name: record[name] for name in fields})
            total = self.builder.info.splits[self.split].num_examples
            with Progress(f"reading tfds:{self.name}", "records", total) as progress:
                for chunk in records.ragged_batch(_CHUNK):
                    yield chunk
                    progress.advance(min(_CHUNK, total))

    def records(self) -> tf.data.Dataset:
        """The records in their order on disk: one file after another, nothing kept in memory."""
        config = import_tfds().ReadConfig(interleave_cycle_length=1, try_autocache=False)
        return self.builder.as_dataset(split=self.split, read_config=config)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turns an error of TFDS or TensorFlow into a `UserError` that names the split."""
        try:
            yield
        except Exception as error:  # a bad slice, a damaged or missing record file
            raise UserError(
                f"tfds:{self.name}: cannot read split {self.split!r} in {self.folder} "
                f"({storage.reason(error)}): check the split or prepare the set again"
            ) from error

    def empty(self, item: str) -> UserError:
        """The error for a split without any `item`."""
        return UserError(
            f"tfds:{self.name}: the split {self.split!r} holds no {item}; take a larger one"
        )


def open_set(
    name: str,
    split: str,
    tfds: Tfds | None = None,
    languages: tuple[str, str] | None = None,
    fields: Sequence[str] = (),
) -> PreparedSplit:
    """Opens a split of a prepared set.

    Args:
        split: a split, or a slice of one such as "train[:10%]".
        tfds: TFDS's own folder, without downloads, when None.
        languages: see `prepared_folder`.
        fields: that its records must have.

    Raises:
        UserError: no such set, configuration, split or field; a damaged set; no network.
    """
    library = import_tfds()
    downloads = tfds and tfds.download
    if downloads and languages and not parse_tfds(name)[1]:
        name = _configured(name, languages)
    try:
        folder = prepared_folder(name, tfds, languages)
    except UserError:
        if not downloads or not _has_builder(name):
            raise
        _download(name, tfds)
        folder = prepared_folder(name, tfds, languages)
    _refuse_code(folder)
    try:
        builder = library.builder_from_directory(str(folder))
        features, splits = builder.info.features, builder.info.splits
        features = features if isinstance(features, library.features.FeaturesDict) else {}
    except Exception as error:  # TFDS passes on any error of its parsers
        raise UserError(
            f"{folder} is not a prepared TFDS set ({storage.reason(error)}): prepare it again"
        ) from error
    # TFDS's own error does not say which part of "train[:10%]" is unknown.
    if re.split(r"[\[+]", split)[0] not in splits:
        raise UserError(f"tfds:{name} has no split {split!r}: it has {listed(splits)}")
    if missing := [field for field in fields if field not in features]:
        raise UserError(
            f"tfds:{name} has no field {missing[0]!r}: its records hold {listed(features)}"
        )
    return PreparedSplit(name, split, builder, folder, features)


def _refuse_code(folder: epath.Path) -> None:
    """Refuses a set whose description names classes of code that nobody has trusted.

    TFDS imports the module of every class that it does not know.
    """
    for name in ("features.json", "dataset_info.json"):
        # A RecursionError is refused: TFDS may read brackets that are nested deeper.
        damage = storage.refuse_damage(folder / name, "prepare the set again")
        with damage, contextlib.suppress(*storage.FILE_ERRORS, ValueError):
            json.loads((folder / name).read_bytes(), object_hook=_checked)


def _checked(description: dict[str, Any]) -> dict[str, Any]:
    for key in ("pythonClassName", "python_class_name", "type"):  # of older versions too
        place = str(description.get(key))
        if "." in place and not place.startswith("tensorflow_datasets."):
            check_allowed(place)
    return description


def _configured(name: str, languages: tuple[str, str]) -> str:
    """The name with its builder's configuration of two languages, where it has one."""
    known = import_tfds().builder_cls(name).builder_configs if _has_builder(name) else {}
    named = ("-".join(languages), "-".join(languages[::-1]))
    base, _, version = parse_tfds(name)
    found = next((f"{base}/{config}" for config in named if config in known), base)
    return f"{found}:{version}" if version else found


def _download(name: str, tfds: Tfds) -> None:
    """Downloads and prepares a set; where one of ours fails, nothing stays."""
    library, (base, config, _) = import_tfds(), parse_tfds(name)
    own = _own_builders().get(base)
    mend = "the free space and the name, or copy the prepared folder there from another machine"
    if own:
        mend = f"or {_by_hand(own, config, tfds.root)}"
    try:
        with _few_retries():
            library.builder(name, data_dir=str(tfds.root)).download_and_prepare()
    except BaseException as error:
        if own:  # a damaged file would be taken again
            (tfds.root / "downloads" / base).rmtree(missing_ok=True)
        if not isinstance(error, Exception):
            raise
        # Unknown name, no network, no disk, a damaged file: TFDS has no common class.
        raise UserError(
            f"tfds:{name} could not be prepared in {tfds.root} ({_cause(error)}): check the "
            f"network, {mend}"
        ) from error


@contextlib.contextmanager
def _few_retries() -> Iterator[None]:
    """TFDS gives a place up after seconds, not the 210 that its ten retries take."""
    from tensorflow_datasets.core.download import downloader  # it has no setting for them

    before, downloader.MAX_RETRIES = downloader.MAX_RETRIES, _RETRIES
    try:
        yield
    finally:
        downloader.MAX_RETRIES = before


def _cause(error: Exception) -> str:
    import requests  # TFDS's own client

    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, requests.RequestException):
        place = f" to {error.request.url}" if error.request else ""
        return f"the connection{place} failed"
    return storage.reason(error)


def prepared_folder(
    name: str, tfds: Tfds | None = None, languages: tuple[str, str] | None = None
) -> epath.Path:
    """Finds DATA_DIR/NAME[/CONFIG]/VERSION on the disk.

    `tfds.builder` asks the network for a set that is not prepared, and tries for minutes.

    Args:
        languages: two whose names, joined, may stand for a configuration that is not named.
    """
    root, (base, config, version) = (tfds or Tfds()).root, parse_tfds(name)
    configs = ("", *_subfolders(root / base))
    prepared = {
        found: versions for found in configs if (versions := _versions(root / base / found))
    }
    if config or "" in prepared:
        fitting = [config] if config in prepared else []
    else:
        wanted = {"-".join(languages), "-".join(languages[::-1])} if languages else set()
        fitting = [found for found in prepared if found in wanted or len(prepared) == 1]
        if prepared and len(fitting) != 1:
            raise UserError(
                f"tfds:{name} has several configurations: name one of {listed(prepared)}, as in "
                f"tfds:{base}/CONFIG"
            )
    if not fitting:
        path = f"{base}/{config}" if config else base
        others = set(_subfolders(root)) - {base, "downloads"}
        there = (f"{base}/{found}" for found in prepared) if prepared else others
        raise UserError(
            f"no TFDS set {path!r} in {root}, which holds {listed(there)}: correct the name, give "
            f"another data_dir, or {_remedy(path, root)}"
        )
    versions = prepared[fitting[0]]
    if version and version not in versions:
        raise UserError(f"tfds:{name} has no version {version!r}: it has {listed(versions)}")
    return root / base / fitting[0] / (version or versions[-1])


def _versions(folder: epath.Path) -> list[str]:
    named = (name for name in _subfolders(folder) if re.fullmatch(r"\d+\.\d+\.\d+", name))
    found = (name for name in named if (folder / name / "dataset_info.json").is_file())
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def _subfolders(folder: epath.Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] not in "._")


def _remedy(name: str, root: epath.Path) -> str:
    """The remedy for a set that is not prepared, in words."""
    base, config, _ = parse_tfds(name)
    if own := _own_builders().get(base):
        return (
            f"give --download, Tfds(download=True) in Python: {own.SIZE} of {own.PLACE}, kept in "
            f"{root}; without a network {_by_hand(own, config, root)}, and give --download"
        )
    if not _has_builder(name):
        return (
            f"prepare it in that folder (--data-dir) by other means, for TFDS has no builder "
            f"{base!r} that could download it"
        )
    return (
        'give --download, or prepare it with: python -c "import tensorflow_datasets as tfds; '
        f"tfds.load('{name}', data_dir='{root}')\""
    )


def _by_hand(own: Any, config: str, root: epath.Path) -> str:
    names = ", ".join(own.file_names(config))
    return f"put {names} of {own.PLACE} into {root / 'downloads' / 'manual' / own.name}"


def _has_builder(name: str) -> bool:
    """Whether the installed TFDS can make the set; the community's list would need the network."""
    known = import_tfds().list_builders(with_community_datasets=False)
    return parse_tfds(name)[0] in (*known, *_own_builders())


def _own_builders() -> dict[str, Any]:
    """Builders of sets that TFDS lacks, registered with it, by name."""
    import_tfds()
    from macaron_tf.data.sources import builders  # imports TFDS, and so seconds of other builders

    return builders.OWN


def import_tfds():
    """The package, or a UserError that says how to install it."""
    with needed("a tfds: source"):
        import tensorflow_datasets
    return tensorflow_datasets


def listed(names: Iterable[str]) -> str:
    """Sorted names for a message; "nothing" where there is none."""
    return ", ".join(sorted(names)) or "nothing"


class Columns(NamedTuple):
    """A split, column by column.

    Attributes:
        values: N entries of each field, texts as bytes, arrays where the field is a sequence; a
            nested field is named "idx/question".
        class_names: names of the classes of each field that is a class label, class 0 first.
    """

    values: dict[str, np.ndarray]
    class_names: dict[str, tuple[str, ...]]


def read_columns(name: str, split: str, fields: Sequence[str], tfds: Tfds | None = None) -> Columns:
    """Reads some fields of a split, in the order of the records on disk; see `open_set`.

    Args:
        fields: scalars, sequences of any length, or dicts of them.
    """
    found = open_set(name, split, tfds, fields=fields)
    chunks = [keras.tree.flatten_with_path(chunk) for chunk in found.chunks(fields)]
    chunks = [{"/".join(path): column for path, column in chunk} for chunk in chunks]
    if not chunks:
        raise found.empty("record")
    values = {key: tf.concat([chunk[key] for chunk in chunks], axis=0).numpy() for key in chunks[0]}
    classes = found.columns
    return Columns(values, {field: classes[field] for field in fields if classes.get(field)})


def _listed(column: tf.Tensor | tf.RaggedTensor) -> list:
    return column.to_list() if isinstance(column, tf.RaggedTensor) else column.numpy().tolist()


def decoded(texts: Sequence[bytes]) -> list[str]:
    return [text.decode("utf-8", "replace") for text in texts]
