"""One reader of records with named fields, whatever the kind of the source.

`open_records` opens a dataset of TensorFlow Datasets, a tab-separated or CSV file, JSON Lines,
Parquet files, a saved Hugging Face dataset, text files, the default corpus, or a Python function. A
task says which fields it reads, and what they mean.

At most 64 records of a file are Python objects at a time, so that a file may be larger than RAM.
Parquet and Arrow files need pyarrow, which the extra `tables` installs.
"""

import contextlib
import dataclasses
import glob
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from etils import epath

from macaron_tf.data.sources import homeassistant
from macaron_tf.data.sources.names import RECORD_KINDS, Source, Split, join_names
from macaron_tf.data.sources.tfds import Tfds, open_set, prepared_folder, source_function
from macaron_tf.errors import UserError, nearest, needed, parse_json
from macaron_tf.io import paths as storage
from macaron_tf.io.files import lines_of, table_rows
from macaron_tf.io.plug_ins import clear_errors

_BATCH = 64  # records converted to Python at a time; a whole book takes about 1 MB
_STATE = "state.json"  # file that lists the data files in the folder of a saved split

# The place of each record, for messages (the file and the line, or the source and a number), and
# the record, or the values of its wanted fields.
Placed = Iterator[tuple[str, Mapping[str, Any]]]
Rows = Iterator[tuple[str, Sequence[Any]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """Reader of the records of a split, in their order.

    Attributes:
        read: function from field names that yields the place of each record, and a dict with at
            least these fields. A column that nobody reads is not decoded.
        class_names: dict mapping each field of class labels to the names of its classes, class 0
            first. Only TFDS and files that the Hugging Face library wrote have class names.
    """

    place: str
    fields: tuple[str, ...]
    read: Callable[[Sequence[str]], Placed]
    class_names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    may_be_empty: bool = False

    def rows(self, fields: Sequence[str], may_be_null: Sequence[str] = ()) -> Rows:
        """Yields the place and the values of `fields` for each record.

        A class label becomes the name of its class, or "" if it is withheld (-1).

        Args:
            fields: names of the fields to read. The name `translation.en` means the entry `en` of
                the object in the field `translation`.
        """
        where, classes = None, [self.class_names.get(field) for field in fields]
        for where, record in self.read(fields):
            values = [record.get(field) for field in fields]
            if None in values:
                values = [_value(where, record, field, may_be_null) for field in fields]
            if any(classes):
                values = [_names(where, *one) for one in zip(fields, values, classes, strict=True)]
            yield where, values
        if where is None:
            raise UserError(f"{self.place} contains no examples: give records, or another file")

    def strings(
        self, fields: Sequence[str], may_be_null: Sequence[str] = (), several: str | None = None
    ) -> Iterator[tuple[str, list[str]]]:
        """Yields the place and the values of `fields` as texts for each record; see `texts`."""
        joints = ["," if field == several else " " for field in fields]
        for where, values in self.rows(fields, may_be_null):
            yield where, [*map(_text, itertools.repeat(where), fields, values, joints)]

    def texts(
        self, fields: Sequence[str], may_be_empty: Sequence[str] = (), several: str | None = None
    ) -> Iterator[tuple[str, list[str]]]:
        """Yields the place and the texts in `fields` for each record.

        Numbers become texts, and the items of a list are joined by spaces.

        Args:
            may_be_empty: names of fields whose texts may be empty, or missing in a JSON record.
            several: name of a field whose lists are joined by commas instead.
        """
        for field in fields:
            if (count := self.fields.count(field)) != 1:
                found = f"{self.place} has {count or 'no'} columns named {field!r}"
                mend = "name them so, or train with data.table.text and data.table.label"
                raise UserError(f"{found} (the columns are {join_names(self.fields)}): {mend}")
        for where, texts in self.strings(fields, may_be_empty, several):
            is_checked = not (self.may_be_empty or all(map(str.strip, texts)))
            for field, text in zip(fields, texts, strict=True) if is_checked else ():
                if not (text.strip() or field in may_be_empty):
                    raise UserError(f"{where}: the text in column {field!r} is empty")
            yield where, texts


def open_records(
    source: Source, split: Split, tfds: Tfds | None = None, columns: Sequence[str] = ()
) -> Records:
    """Opens a split of a source as records with named fields.

    Args:
        columns: names for the values of a source without named fields, which are `TEXT` for
            documents, and the two languages for translation pairs. Without `columns`, the source
            is a table, whose columns have names.
    """
    pair, kind = columns if len(columns) == 2 else None, source.kind
    if kind == "tfds":
        prepared = open_set(source.location, split, tfds, pair)
        classes, texts = prepared.columns
        names = texts if columns else classes
        return Records(str(source), tuple(names), prepared.rows, classes, may_be_empty=True)
    if kind in RECORD_KINDS and source.fields and not columns:
        mend = "by --set data.table.text=FIELD, not in its source"
        raise UserError(f"name the fields of a table {mend}")
    place, files = f"{source}, split {split!r}", files_of(source, split, tfds, columns)
    if kind == "tsv":
        return table_records(files[0], columns)
    if kind in RECORD_KINDS:
        return file_records(kind, files)
    if kind == "python":
        function = source_function(source, tfds)
        with clear_errors(source.location):
            values = function(split)
            records = [] if columns else [*map(dict, values)]
        if not columns:
            numbered = [(f"{place}, example {n}", one) for n, one in enumerate(records, start=1)]
            return Records(place, tuple(records[0] if records else ()), lambda _: iter(numbered))
    elif source.is_embedded:
        values = homeassistant.read_homeassistant(source.location, split, pair)
    else:
        values = _aligned_lines(files) if pair else _file_documents(kind, files)
    rows = values if pair else ([value] for value in values)
    named = (dict(zip(columns, row, strict=True)) for row in rows)
    return Records(place, tuple(columns), lambda _: ((place, record) for record in named))


def files_of(
    source: Source, split: Split, tfds: Tfds | None = None, columns: Sequence[str] = ()
) -> list[epath.Path]:
    """Returns the files of a split; see `open_records` for `columns`.

    For a Python function, the result is the file of the function's module. The default corpus has
    no files. This function does not check whether the files of tables and text pairs exist.
    """
    pair, kind = columns if len(columns) == 2 else None, source.kind
    if source.is_embedded:
        return []
    if kind == "tfds":
        folder = prepared_folder(source.location, tfds, pair)
        return [path for path in sorted(folder.iterdir()) if path.is_file()]
    if kind == "python":
        return [storage.as_path(source_function(source, tfds).__code__.co_filename)]
    if kind == "datasets":
        return _saved_files(source, split)
    if kind == "text" and pair:
        if len(paths := source.paths(split)) != 2:
            raise UserError(f"'{source}' does not have the form text:SOURCE_FILE,TARGET_FILE")
        return paths
    is_table = kind == "tsv" or not columns
    return [source.path(split)] if is_table else _matching_files(source, split)


def _matching_files(source: Source, split: Split) -> list[epath.Path]:
    """Returns the distinct files that match a source's patterns, sorted by pattern, then name."""
    paths: dict[epath.Path, None] = {}
    for pattern in map(str, source.paths(split)):
        with storage.clear_errors(f"cannot look for {pattern!r}", "check the path"):
            remote = storage.is_remote(pattern)
            found = tf.io.gfile.glob(pattern) if remote else glob.glob(pattern, recursive=True)
            matches = [path for path in map(storage.as_path, sorted(found)) if path.is_file()]
            paths.update(dict.fromkeys(matches))
        if not matches:
            raise UserError(f"no file matches {pattern!r} of {source}: check the path")
    return list(paths)


def _aligned_lines(paths: Sequence[epath.Path]) -> Iterator[tuple[str, str]]:
    ended, pair = object(), None
    for pair in itertools.zip_longest(*map(lines_of, paths), fillvalue=ended):
        if ended in pair:
            raise UserError(f"{paths[pair.index(ended)]} has fewer lines than the other file")
        yield pair
    if pair is None:
        raise UserError(f"{paths[0]} is empty: give a file with one sentence per line")


def _file_documents(kind: str, paths: Sequence[epath.Path]) -> Iterator[str]:
    for path in paths:
        lines = lines_of(path)
        if kind == "text-lines":
            texts = lines
        elif kind == "text":
            texts = map("\n".join, [lines])
        else:  # groups of text lines and groups of blank lines; `not_blank` drops the latter
            groups = itertools.groupby(lines, lambda line: bool(line.strip()))
            texts = ("\n".join(group) for _, group in groups)
        yield from not_blank(texts, str(path))


def not_blank(texts: Iterable[str], place: str) -> Iterator[str]:
    """Yields the texts that are not blank, or raises a UserError if all texts are blank."""
    text = None
    for text in filter(str.strip, texts):
        yield text
    if text is None:
        raise UserError(f"{place} contains no text: remove it, or give another source or field")


def table_records(path: epath.Path, header: Sequence[str] = ()) -> Records:
    """Opens a tab-separated file, or a CSV file; without `header`, its first line is one."""
    names = header or next(table_rows(path), (0, ()))[1]
    if not names:
        raise UserError(f"{path} is empty: give a table with a header")
    names, where = tuple(map(str.strip, names)), f"{path}, line "

    def read(_) -> Placed:
        for number, cells in itertools.islice(table_rows(path), not header, None):
            if len(cells) != len(names):
                mend = "put one tab between columns; a .csv has commas, and line breaks in quotes"
                count = f"has {len(cells)}, not {len(names)} columns"
                raise UserError(f"{where}{number} {count}: {mend}")
            yield f"{where}{number}", dict(zip(names, cells, strict=True))

    place = str(path) if header else f"{path}, line 1"
    return Records(place, names, read)


def file_records(kind: str, paths: Sequence[epath.Path]) -> Records:
    """Opens JSON Lines (`jsonl`), Parquet (`parquet`) or saved Arrow files (`datasets`)."""

    def read(fields: Sequence[str]) -> Placed:
        for path in paths:
            yield from _json_records(path) if kind == "jsonl" else _arrow_rows(kind, path, fields)

    if kind != "jsonl":
        with _open_table(kind, paths[0]) as (schema, _):
            return Records(str(paths[0]), tuple(schema.names), read, _classes_of(schema))
    for _, first in read(()):
        return Records(str(paths[0]), tuple(first), read)
    raise UserError(f"{paths[0]} contains no records: give another file")


def _arrow_rows(kind: str, path: epath.Path, fields: Sequence[str]) -> Placed:
    number = itertools.count()
    with _open_table(kind, path) as (schema, batches):
        columns = {f if f in schema.names else f.split(".")[0]: f for f in fields}
        for column in columns.keys() - {*schema.names}:
            raise _no_field_error(str(path), schema.names, columns[column])
        for batch in batches([*columns]):
            for record in batch.to_pylist():
                yield f"{path}, record {next(number)}", record


def _value(where: str, record: Mapping[str, Any], field: str, may_be_null: Sequence[str]) -> Any:
    value = record
    for name in (field,) if field in record else field.split("."):
        exists = isinstance(value, Mapping) and name in value
        if not exists and field not in may_be_null:
            raise _no_field_error(where, value if isinstance(value, Mapping) else (), field)
        value = value[name] if exists else None
        if value is None:
            if field in may_be_null:
                return ""
            raise UserError(f"{where}: {field!r} is null: give a value or remove the record")
    return value


def _no_field_error(where: str, fields, field: str) -> UserError:
    near = nearest(field, map(str, fields))
    return UserError(f"{where} has no field {field!r}, but {join_names(fields)}{near}")


def _names(where: str, field: str, value: Any, classes: Sequence[str] | None) -> Any:
    """Returns the name of a class, or the names of the classes in a list."""
    if not classes or not isinstance(value, int | list):
        return value
    if isinstance(value, list):
        return [_names(where, field, item, classes) for item in value]
    if not -1 <= value < len(classes):
        raise UserError(f"{where}: {field!r} is {value}, but there are {len(classes)} classes")
    return classes[value] if value >= 0 else ""


def _text(where: str, field: str, value: Any, separator: str = " ") -> str:
    if type(value) is str:
        return value
    if isinstance(value, list):
        return separator.join(_text(where, field, item) for item in value)
    if not isinstance(value, int | float):
        raise UserError(f"{where}: {field!r} is {value!r:.40}, but must be text or a number")
    return str(value)


def _json_records(path: epath.Path) -> Placed:
    """Yields the place and the JSON object of each line that is not blank."""
    place = f"{path}, line "
    for number, line in enumerate(lines_of(path), start=1):
        if line.strip():
            try:
                record = parse_json(line)
            except ValueError as error:
                raise UserError(f"{place}{number} is no JSON object ({error})") from error
            yield f"{place}{number}", record


@contextlib.contextmanager
def _open_table(kind: str, path):
    """Opens a Parquet or Arrow file."""
    with needed(f"{kind}:"):
        import pyarrow as pa
        import pyarrow.parquet
    storage.refuse_device(path)
    try:
        with storage.clear_errors(f"cannot read {path}", "check the path"), path.open("rb") as file:
            if kind == "parquet":
                table = pa.parquet.ParquetFile(file)
                yield (
                    table.schema_arrow,
                    lambda names: table.iter_batches(_BATCH, columns=names),
                )
            else:  # `save_to_disk` writes the Arrow stream format, not the Arrow file format
                source = file if storage.is_remote(path) else pa.memory_map(str(path))
                table = pa.ipc.open_stream(source).read_all()
                yield table.schema, lambda names: table.select(names).to_batches(_BATCH)
    except pa.ArrowInvalid as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path} is damaged or no file of {kind}: ({reason})") from error


def _classes_of(schema) -> dict[str, tuple[str, ...]]:
    """Returns the class names of each field of Hugging Face's type `ClassLabel` or a list of it."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(text).get("info", {}).get("features", {})
    # A field with one tag per word is a list of `ClassLabel`.
    items = {name: feature.get("feature", feature) for name, feature in features.items()}
    labels = {name for name, item in items.items() if item.get("_type") == "ClassLabel"}
    return {name: tuple(items[name]["names"]) for name in labels}


def _saved_files(source: Source, split: Split) -> list[epath.Path]:
    """Returns the data files of a split in a `datasets:` folder."""
    folder = source.path(split)
    if splits := source.saved_splits:
        if split not in splits:
            raise UserError(f"{folder} has no split {split!r}: give one of {', '.join(splits)}")
        folder = folder / split
    state = storage.read_json(folder / _STATE, _data_files=list)
    return [folder / record["filename"] for record in state["_data_files"]]
