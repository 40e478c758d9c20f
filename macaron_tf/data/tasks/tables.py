"""Tables of examples in files, Python functions and TensorFlow Datasets."""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from macaron_tf.data.sources.names import (
    RECORD_KINDS,
    RECORD_TABLE_FORMS,
    TFDS_FORM,
    Source,
    parse_source,
)
from macaron_tf.data.sources.records import Records, record_table
from macaron_tf.data.sources.tfds import Tfds, join_names, open_set, source_function
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.errors import UserError, plural
from macaron_tf.io.files import is_csv, table_rows
from macaron_tf.plug_ins import call_user_code

TABLE_FORMS = ("tsv:FILE", *RECORD_TABLE_FORMS, "python:MODULE:FUNCTION")


def parse_task_source(task: Task, source: str | None, *forms: str) -> Source:
    """Parses a source name for a task.

    Args:
        task: task that reads the source. Its name occurs in error messages.
        source: name of the source. `None` means the default source of the task.
        forms: accepted forms besides `tfds:NAME`, such as "tsv:FILE".

    Raises:
        UserError: the source has none of the accepted forms, or `source` is `None` and the task has
            no default source.
    """
    source = source or task.source
    if source is None:
        raise UserError(
            f"the task {task.name!r} has no default source: give a source such as {forms[0]}"
        )
    return parse_source(source, (TFDS_FORM, *forms), f"the task {task.name!r}")


class Table:
    """A table of examples with named columns.

    The source has one of these forms:

    - `tsv:FILE` is a tab-separated file, or a CSV file if `.csv` is one of the suffixes of its
      name. The first line is the header.
    - `python:MODULE:FUNCTION` is a Python function. `FUNCTION(split)` returns one dict per example,
      which maps column names to texts or numbers.
    - `tfds:NAME` is a dataset of TensorFlow Datasets. Its texts may be empty.
    - `jsonl:FILE`, `parquet:FILE` and `datasets:DIR` have records, whose fields are the columns.

    In FILE and DIR, the split name replaces `{split}`.

    Attributes:
        split: name of the split.
        path: path of the file or name of the source, for messages.
        header: names of the columns.
        class_names: dict mapping each column with class labels to the names of its classes, class 0
            first. Only datasets of TensorFlow Datasets, and files that the Hugging Face library
            wrote, have class names.
        keeps_quotes: whether the file is tab-separated, so that quotation marks around a text are
            part of the text. A text with doubled quotation marks is an exception (see
            `table_rows`).

    Raises:
        UserError: the source or the split does not exist or cannot be read, or the function of a
            `python:` source fails.
    """

    keeps_quotes = False

    def __init__(self, source: Source, split: str, tfds: Tfds | None = None):
        self.split, self._set, self.class_names = split, None, {}
        self._records: Records | None = None
        self.path = self._header_where = str(source)
        if source.kind == "tfds":
            self._set = open_set(source.location, split, tfds)
            columns = self._set.columns
            self.header = list(columns)
            self.class_names = {name: classes for name, classes in columns.items() if classes}
        elif source.kind == "python":
            self.header, rows = _function_rows(source, split, tfds)
            self._read = lambda: rows
        elif source.kind in RECORD_KINDS:
            self._records = record_table(source, split)
            self._header_where = str(self._records.paths[0])
            self.header, self.class_names = list(self._records.fields), self._records.class_names
        else:
            self.path = source.path(split)
            self._header_where, self.keeps_quotes = f"{self.path}, line 1", not is_csv(self.path)
            self.header = list(map(str.strip, next(table_rows(self.path), (1, [""]))[1]))
            self._read = self._lines

    def _lines(self) -> Iterator[tuple[str, list[str]]]:
        """Yields the location and the cells of each line after the header."""
        rows = itertools.islice(table_rows(self.path), 1, None)
        return ((f"{self.path}, line {number}", cells) for number, cells in rows)

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the columns `choice1`, `choice2` and so on, in numerical order.

        The tuple is empty if there are no such columns.

        Raises:
            UserError: a number from 1 to the number of these columns is missing or occurs twice.
        """
        names = [name for name in self.header if re.fullmatch(r"choice\d+", name)]
        names.sort(key=lambda name: int(name[6:]))
        if names != [f"choice{n}" for n in range(1, len(names) + 1)]:
            raise UserError(
                f"{self._header_where}: the choice columns are {', '.join(names)}, but must be "
                f"{', '.join(f'choice{n}' for n in range(1, len(names) + 1))}: number the choices "
                "from 1 without gaps"
            )
        return tuple(names)

    def rows(
        self, columns: Sequence[str], may_be_empty: Sequence[str] = ()
    ) -> Iterator[tuple[str, list[str]]]:
        """Yields the location and the texts in `columns` for each row.

        The location names the source, and the line or record, for error messages.

        Args:
            columns: names of the columns to read.
            may_be_empty: names of columns whose texts may be empty. In a dataset of TensorFlow
                Datasets, all texts may be empty.

        Raises:
            UserError: a column is missing or occurs twice, a line has too few or too many columns,
                a text is empty, a value of a record is neither text nor a number, a class index is
                out of range, or a file has no rows.
        """
        mend = f"give the table each of the columns {', '.join(columns)} once"
        mend += ", with a single tab between columns" * self.keeps_quotes
        mend += (
            ", or, for the tasks classify, regress, tag and choose, name the columns by settings "
            "such as --set table.text=COLUMN and --set table.label=COLUMN"
        )
        for column in columns:
            if self.header.count(column) != 1:
                names = ", ".join(repr(name[:40]) for name in self.header[:20]) or "none"
                raise UserError(
                    f"{self._header_where} has {self.header.count(column) or 'no'} columns named "
                    f"{column!r} (the columns are {names}), but needs exactly one: {mend}"
                )
        if self._set:
            rows = enumerate(self._set.rows(columns))
            yield from ((f"{self.path}, split {self.split!r}, record {n}", row) for n, row in rows)
            return
        if self._records:
            for where, values in self._records.rows(columns, may_be_empty):
                texts = [
                    _text(where, column, value, self.class_names.get(column, ()))
                    for column, value in zip(columns, values, strict=True)
                ]
                _check_filled(where, columns, texts, may_be_empty)
                yield where, texts
            return
        positions = [self.header.index(column) for column in columns]
        where = None
        for where, cells in self._read():
            if len(cells) != len(self.header):
                mend = "put each text that contains the separator between quotation marks"
                if self.keeps_quotes:
                    mend = (
                        "separate columns with a single tab, and remove tabs and line breaks from "
                        "the texts"
                    )
                raise UserError(
                    f"{where} has {len(cells)} {plural('column', len(cells))}, but the header has "
                    f"{len(self.header)}: {mend}"
                )
            texts = [cells[position] for position in positions]
            _check_filled(where, columns, texts, may_be_empty)
            yield where, texts
        if where is None:
            raise UserError(
                f"{self.path} contains no examples: write a header line and one line per example"
            )


def _check_filled(
    where: str, columns: Sequence[str], texts: Sequence[str], may_be_empty: Sequence[str]
) -> None:
    for column, text in zip(columns, texts, strict=True):
        if not text.strip() and column not in may_be_empty:
            raise UserError(
                f"{where}: the text in column {column!r} is empty: add a text or remove the example"
            )


def _text(where: str, column: str, value: Any, classes: Sequence[str]) -> str:
    """Converts a value of a record to text.

    A class label becomes the name of the class, or "" if the label is withheld (-1). The items of
    a list are joined by spaces.

    Args:
        where: location of the record, for error messages.
        column: name of the column.
        value: text, number, class index, or list of such values.
        classes: class names of the column. The tuple is empty if the column has no class labels.

    Raises:
        UserError: a class index is out of range, or a value is neither text nor a number.
    """
    if isinstance(value, list):
        return " ".join(_text(where, column, item, classes) for item in value)
    if classes and isinstance(value, int):
        if not -1 <= value < len(classes):
            raise UserError(
                f"{where}: {column!r} is {value}, but there are {len(classes)} classes: give an "
                f"index from 0 to {len(classes) - 1}, or -1 for a withheld class"
            )
        return classes[value] if value >= 0 else ""
    if not isinstance(value, str | int | float):
        raise UserError(
            f"{where}: {column!r} is {value!r:.40}, but must be text or a number: correct the "
            "record"
        )
    return str(value)


def _function_rows(
    source: Source, split: str, tfds: Tfds | None
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Reads examples by calling the Python function of a source.

    Returns:
        The column names of the first example, and a list with the location and the texts of each
        example. Both lists are empty if there are no examples.
    """
    function = source_function(source, tfds)
    records = call_user_code(source.location, lambda: [*map(dict, function(split))])
    header = list(records[0]) if records else []
    rows = []
    for number, record in enumerate(records, start=1):
        where = f"{source}, split {split!r}, example {number}"
        if set(record) != set(header):
            raise UserError(
                f"{where} has the columns {join_names(record)}, but example 1 has "
                f"{join_names(header)}: give all examples the same columns"
            )
        for column, value in record.items():
            if not isinstance(value, str | int | float):
                raise UserError(
                    f"{where}: {column!r} is {value!r:.40}, but must be text or a number: correct "
                    "the function"
                )
        rows.append((where, [str(record[column]) for column in header]))
    return header, rows
