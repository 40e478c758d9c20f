"""Readers of records with named fields in JSON Lines, Parquet and saved Hugging Face datasets.

    jsonl:FILE       one JSON object per line, plain or compressed
    parquet:FILE     a Parquet file, one record per row
    datasets:DIR     a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote

At most 64 records at a time are Python objects, so that a file may be larger than RAM.
Parquet and Arrow files need pyarrow, which the extra `tables` installs.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from macaron_tf.data.sources.names import Source
from macaron_tf.errors import UserError, nearest, needed
from macaron_tf.io import paths as storage
from macaron_tf.io.files import lines_of

_BATCH_RECORDS = 64  # records converted to Python at a time; a whole book takes about 1 MB
_STATE = "state.json"  # file that lists the data files in the folder of a saved split


class Records:
    """Reader of the records in one or several files, in the order of the files.

    Attributes:
        source: a `jsonl:`, `parquet:` or `datasets:` source.
        paths: files of the source.
        fields: names of the fields of the first JSON record, or of the columns of the first file.
        class_names: dict mapping each field with class labels to the names of its classes, class 0
            first. Only files that the Hugging Face library wrote have class names.

    Raises:
        UserError: the first file is missing, damaged or a JSON Lines file without records, or a
            package is not installed.
    """

    def __init__(self, source: Source, paths: Sequence[epath.Path]):
        self.source, self.paths = source, paths
        first = paths[0]
        if source.kind == "jsonl":
            _, record = next(_json_objects(first), (0, None))
            if record is None:
                raise _empty_error(first)
            self.fields = tuple(record)
            self.class_names: dict[str, tuple[str, ...]] = {}
        else:
            with _open_table(source.kind, first) as (schema, _):
                self.fields, self.class_names = tuple(schema.names), _classes_of(schema)

    def rows(
        self, fields: Sequence[str], may_be_null: Sequence[str] = ()
    ) -> Iterator[tuple[str, list[Any]]]:
        """Yields the location and the values of `fields` for each record.

        The location names the file, and the line or record, for error messages.

        Args:
            fields: names of the fields to read. The name `translation.en` means the entry `en` of
                the object in the field `translation`.
            may_be_null: names of fields that may be null. A JSON record may also lack these fields.
                The value is then "".

        Raises:
            UserError: a field is missing or null, a line is not a JSON object, or a file is damaged
                or empty. The message names the file, and the line or record.
        """
        for path in self.paths:
            where = None
            for where, record in self._records(path, fields):
                yield where, [_value(where, record, field, may_be_null) for field in fields]
            if where is None:
                raise _empty_error(path)

    def texts(self, fields: Sequence[str]) -> Iterator[list[str]]:
        """Yields the texts in `fields` for each record, without the location.

        Raises:
            UserError: a record is invalid (see `rows`), or a value is not a string.
        """
        for where, values in self.rows(fields):
            for field, value in zip(fields, values, strict=True):
                if not isinstance(value, str):
                    raise UserError(
                        f"{where}: {field!r} is {value!r:.40}, but must be a string: give a field "
                        "of strings"
                    )
            yield values

    def _records(self, path, fields: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if self.source.kind == "jsonl":
            for number, record in _json_objects(path):
                yield f"{path}, line {number}", record
            return
        index = 0
        with _open_table(self.source.kind, path) as (schema, batches):
            columns: dict[str, None] = {}
            for field in fields:
                column = field if field in schema.names else field.split(".")[0]
                if column not in schema.names:
                    raise _no_field_error(str(path), schema.names, field)
                columns[column] = None
            for batch in batches([*columns]):
                try:
                    records = batch.to_pylist()
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}: a text in records {index} to {index + len(batch) - 1} is not "
                        "valid UTF-8: write the file again in UTF-8"
                    ) from error
                for record in records:
                    yield f"{path}, record {index}", record
                    index += 1


def _empty_error(path) -> UserError:
    return UserError(f"{path} contains no records: remove the file or give another file")


def _value(
    where: str, record: Mapping[str, Any], field: str, may_be_null: Sequence[str] = ()
) -> Any:
    value: Any = record
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
    names = ", ".join(repr(str(name)[:40]) for name in list(fields)[:20])
    advice = f"give one of the fields {names}" if names else "give records with this field"
    return UserError(f"{where} has no field {field!r}: {advice}{nearest(field, map(str, fields))}")


def _json_objects(path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line number and the JSON object of each line that is not blank."""
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number} is not JSON ({error}): write one JSON object per line, "
                'such as {"text": "..."}'
            ) from error
        if not isinstance(record, dict):
            raise UserError(
                f"{path}, line {number} contains {line.strip()[:40]!r}, which is not a JSON "
                'object: write one JSON object per line, such as {"text": "..."}'
            )
        yield number, record


@contextlib.contextmanager
def _open_table(kind: str, path):
    """Opens a Parquet or Arrow file.

    Yields:
        The schema, and a function from column names to an iterator of record batches.
    """
    with needed(f"{kind}:"):
        import pyarrow as pa
        import pyarrow.parquet
    storage.refuse_device(path)
    try:
        with path.open("rb") as file:
            if kind == "parquet":
                table = pa.parquet.ParquetFile(file)
                yield (
                    table.schema_arrow,
                    lambda columns: table.iter_batches(_BATCH_RECORDS, columns=columns),
                )
            else:  # `save_to_disk` writes the Arrow stream format, not the Arrow file format
                stream = pa.ipc.open_stream(file)
                yield stream.schema, lambda columns: _select_columns(stream, columns)
    except pa.ArrowInvalid as error:
        reason = " ".join(str(error).split())[:120]
        file_type = "a Parquet file" if kind == "parquet" else "an Arrow file of a saved dataset"
        raise UserError(
            f"{path} is damaged or not {file_type} ({reason}): write the file again, or give "
            "another file"
        ) from error
    except storage.FILE_ERRORS as error:
        raise UserError(f"cannot read {path} ({storage.reason(error)}): check the path") from error


def _select_columns(stream, columns: Sequence[str]) -> Iterator:
    """Yields only `columns` of a stream, in batches of at most 64 records.

    The batches in a saved dataset have 1,000 records or more.
    """
    for batch in stream:
        chosen = batch.select(columns)
        for start in range(0, len(chosen), _BATCH_RECORDS):
            yield chosen.slice(start, _BATCH_RECORDS)


def _classes_of(schema) -> dict[str, tuple[str, ...]]:
    """Returns the class names of each field of Hugging Face's type `ClassLabel` or a list of it."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(text).get("info", {}).get("features", {})
    # A field with one tag per word is a list of `ClassLabel`.
    items = {name: feature.get("feature", feature) for name, feature in features.items()}
    return {
        name: tuple(item["names"])
        for name, item in items.items()
        if item.get("_type") == "ClassLabel"
    }


def saved_splits(source: Source) -> tuple[str, ...]:
    """Returns the split names in a `datasets:` folder, or () for a dataset without splits."""
    if source.saved_splits is None:
        return ()
    return tuple(storage.read_json(source.saved_splits, splits=list)["splits"])


def record_table(source: Source, split: str) -> Records:
    """Opens a split of a table of records.

    Args:
        source: source in one of the forms of `RECORD_TABLE_FORMS`.
        split: name of the split.

    Raises:
        UserError: the source names fields, or its files cannot be read.
    """
    if source.fields:
        raise UserError(
            f"{source} names fields, but a table takes its fields from settings such as "
            f"--set table.text=FIELD: give {source.without_fields}"
        )
    paths = saved_files(source, split) if source.kind == "datasets" else [source.path(split)]
    return Records(source, paths)


def saved_files(source: Source, split: str) -> list[epath.Path]:
    """Returns the data files of a split in a `datasets:` folder.

    Raises:
        UserError: the split does not exist, `save_to_disk` did not write the folder, or a JSON file
            in the folder is damaged.
    """
    folder = source.path(split)
    if splits := saved_splits(source):
        if split not in splits:
            raise UserError(f"{folder} has no split {split!r}: give one of {', '.join(splits)}")
        folder = folder / split
    if not (folder / _STATE).exists():
        raise UserError(
            f"{folder} contains no {_STATE}: give a folder that `save_to_disk` of a Dataset or "
            "DatasetDict wrote"
        )
    state = storage.read_json(folder / _STATE, _data_files=list)
    return [folder / record["filename"] for record in state["_data_files"]]
