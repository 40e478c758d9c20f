"""One reader of records with named fields, whatever the kind of the source.

    tfds:NAME                 a dataset of TensorFlow Datasets
    tsv:FILE                  a tab-separated file, or a CSV file if `.csv` is a suffix of its name
    jsonl:FILE                one JSON object per line, plain or compressed
    parquet:FILE              a Parquet file, one record per row
    datasets:DIR              a folder that `save_to_disk` of a Hugging Face dataset wrote
    python:MODULE:FUNCTION    a function from a split name to dicts

At most 64 records of a file are Python objects at a time, so that a file may be larger than RAM.
Parquet and Arrow files need pyarrow, which the extra `tables` installs.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from macaron_tf.data.sources.names import RECORD_KINDS, Source
from macaron_tf.data.sources.tfds import Tfds, open_set, source_function
from macaron_tf.errors import UserError, nearest, needed
from macaron_tf.io import paths as storage
from macaron_tf.io.files import is_csv, lines_of, table_rows
from macaron_tf.io.plug_ins import call_user_code

_BATCH_RECORDS = 64  # records converted to Python at a time; a whole book takes about 1 MB
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
        keeps_quotes: whether quotation marks around a text are part of the text, as in a
            tab-separated file.
    """

    place: str
    fields: tuple[str, ...]
    read: Callable[[Sequence[str]], Placed]
    class_names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    keeps_quotes: bool = False
    may_be_empty: bool = False

    def rows(self, fields: Sequence[str], may_be_null: Sequence[str] = ()) -> Rows:
        """Yields the place and the values of `fields` for each record.

        A class label becomes the name of its class, or "" if it is withheld (-1).

        Args:
            fields: names of the fields to read. The name `translation.en` means the entry `en` of
                the object in the field `translation`.
        """
        where = None
        for where, record in self.read(fields):
            values = [record.get(field) for field in fields]
            if None in values:
                values = [_value(where, record, field, may_be_null) for field in fields]
            for index, field in enumerate(fields if self.class_names else ()):
                if classes := self.class_names.get(field):
                    values[index] = _names(where, field, values[index], classes)
            yield where, values
        if where is None:
            raise UserError(f"{self.place} contains no examples: give records, or another file")

    def strings(
        self, fields: Sequence[str], may_be_null: Sequence[str] = (), several: str | None = None
    ) -> Iterator[tuple[str, list[str]]]:
        """Yields the place and the values of `fields` as texts for each record; see `texts`."""
        for where, values in self.rows(fields, may_be_null):
            for index, (field, value) in enumerate(zip(fields, values, strict=True)):
                if type(value) is not str:
                    joint = "," if field == several else " "
                    values[index] = _text(where, field, value, joint)
            yield where, values

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
                known = f"the columns are {quoted(self.fields) or 'none'}"
                raise UserError(
                    f"{found} ({known}): give --set data.table.text and data.table.label"
                )
        for where, texts in self.strings(fields, may_be_empty, several):
            is_checked = not (self.may_be_empty or all(map(str.strip, texts)))
            for field, text in zip(fields, texts, strict=True) if is_checked else ():
                if not (text.strip() or field in may_be_empty):
                    raise UserError(f"{where}: the text in column {field!r} is empty")
            yield where, texts


def open_records(source: Source, split: str, tfds: Tfds | None = None) -> Records:
    """Opens a split of a source as a table with named columns."""
    if source.kind == "tfds":
        prepared = open_set(source.location, split, tfds)
        classes = prepared.columns
        return Records(str(source), tuple(classes), prepared.rows, classes, may_be_empty=True)
    if source.kind == "python":
        return _function_records(source, split, tfds)
    if source.kind not in RECORD_KINDS:
        return table_records(source.path(split))
    if source.fields:
        raise UserError(
            "name the fields of a table by --set data.table.text=FIELD, not in its source"
        )
    paths = saved_files(source, split) if source.kind == "datasets" else [source.path(split)]
    return file_records(source.kind, paths)


def _function_records(source: Source, split: str, tfds: Tfds | None) -> Records:
    function = source_function(source, tfds)
    records = call_user_code(source.location, lambda: [*map(dict, function(split))])
    place = f"{source}, split {split!r}"
    numbered = [(f"{place}, example {n}", record) for n, record in enumerate(records, start=1)]
    return Records(place, tuple(records[0] if records else ()), lambda _: iter(numbered))


def table_records(path: epath.Path, header: Sequence[str] | None = None) -> Records:
    """Opens a tab-separated file, or a CSV file; `header` is `None` if its first line is one."""
    _, names = next(table_rows(path), (0, ())) if header is None else (0, header)
    if not names:
        raise UserError(f"{path} is empty: give a table with a header")
    names, keeps_quotes = tuple(map(str.strip, names)), not is_csv(path)

    def read(_) -> Placed:
        where = f"{path}, line "
        for number, cells in itertools.islice(table_rows(path), header is None, None):
            if len(cells) != len(names):
                mend = "put one comma between columns"
                if keeps_quotes:
                    mend = "put a single tab between columns; only a .csv has line breaks in quotes"
                count = f"has {len(cells)}, not {len(names)} columns"
                raise UserError(f"{where}{number} {count}: {mend}")
            yield f"{where}{number}", dict(zip(names, cells, strict=True))

    place = str(path) if header else f"{path}, line 1"
    return Records(place, names, read, keeps_quotes=keeps_quotes)


def file_records(kind: str, paths: Sequence[epath.Path]) -> Records:
    """Opens JSON Lines (`jsonl`), Parquet (`parquet`) or saved Arrow files (`datasets`)."""
    if kind == "jsonl":
        first = next((record for path in paths for _, record in _json_objects(path)), None)
        if first is None:
            raise UserError(f"{paths[0]} contains no records: give another file")
        names, classes = tuple(first), {}
    else:
        with _open_table(kind, paths[0]) as (schema, _):
            names, classes = tuple(schema.names), _classes_of(schema)

    def read(fields: Sequence[str]) -> Placed:
        for path in paths:
            yield from _file_records(kind, path, fields)

    return Records(str(paths[0]), names, read, classes)


def _file_records(kind: str, path: epath.Path, fields: Sequence[str]) -> Placed:
    if kind == "jsonl":
        for number, record in _json_objects(path):
            yield f"{path}, line {number}", record
        return
    index = 0
    with _open_table(kind, path) as (schema, batches):
        columns = {f if f in schema.names else f.split(".")[0]: f for f in fields}
        for column in columns.keys() - {*schema.names}:
            raise _no_field_error(str(path), schema.names, columns[column])
        for batch in batches([*columns]):
            try:
                records = batch.to_pylist()
            except UnicodeDecodeError as error:
                place = f"{path}: a text in records {index} to {index + len(batch) - 1}"
                raise UserError(f"{place} is not UTF-8") from error
            for record in records:
                yield f"{path}, record {index}", record
                index += 1


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
    return UserError(f"{where} has no field {field!r}, but {quoted(fields) or 'none'}{near}")


def quoted(names) -> str:
    """Lists at most 20 names for a message."""
    return ", ".join(repr(str(name)[:40]) for name in list(names)[:20])


def _names(where: str, field: str, value: Any, classes: Sequence[str]) -> Any:
    """Returns the name of a class, or the names of the classes in a list."""
    if isinstance(value, list):
        return [_names(where, field, item, classes) for item in value]
    if not isinstance(value, int):
        return value
    if not -1 <= value < len(classes):
        raise UserError(f"{where}: {field!r} is {value}, but there are {len(classes)} classes")
    return classes[value] if value >= 0 else ""


def _text(where: str, field: str, value: Any, separator: str = " ") -> str:
    if isinstance(value, list):
        return separator.join(_text(where, field, item) for item in value)
    if not isinstance(value, str | int | float):
        raise UserError(f"{where}: {field!r} is {value!r:.40}, but must be text or a number")
    return str(value)


def _json_objects(path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line number and the JSON object of each line that is not blank."""
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number} is no JSON object: {line.strip()[:40]!r}")
        yield number, record


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
                batches = functools.partial(table.iter_batches, _BATCH_RECORDS)
                yield table.schema_arrow, lambda columns: batches(columns=columns)
            else:  # `save_to_disk` writes the Arrow stream format, not the Arrow file format
                stream = pa.ipc.open_stream(file)

                # The batches in a saved dataset have 1,000 records or more.
                def chosen(columns):
                    for batch in stream:
                        table = pa.Table.from_batches([batch.select(columns)])
                        yield from table.to_batches(_BATCH_RECORDS)

                yield stream.schema, chosen
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


def saved_files(source: Source, split: str) -> list[epath.Path]:
    """Returns the data files of a split in a `datasets:` folder."""
    folder = source.path(split)
    if splits := source.saved_splits:
        if split not in splits:
            raise UserError(f"{folder} has no split {split!r}: give one of {', '.join(splits)}")
        folder = folder / split
    if not (folder / _STATE).exists():
        raise UserError(f"{folder} contains no {_STATE}: give a folder of `Dataset.save_to_disk`")
    state = storage.read_json(folder / _STATE, _data_files=list)
    return [folder / record["filename"] for record in state["_data_files"]]
