"""Reads tables of examples from files, the user's functions and TensorFlow Datasets."""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from macaron_tf.data.sources.names import RECORD_TABLES, RECORDS, TFDS, Source, parse_source
from macaron_tf.data.sources.records import Records, record_table
from macaron_tf.data.sources.tfds import Tfds, listed, open_set
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.errors import UserError
from macaron_tf.io.files import is_csv, table_rows
from macaron_tf.plug_ins import called, find

TABLES = ("tsv:FILE", *RECORD_TABLES, "python:MODULE:FUNCTION")


def parse_task_source(task: Task, source: str | None, *forms: str) -> Source:
    """Parses the source of a task's examples.

    Args:
        source: name of the source; None: the task's own source.
        forms: accepted forms besides `tfds:`, see `parse_source`.

    Raises:
        UserError: the source has none of the forms, or is None for a task without its own.
    """
    source = source or task.source
    if source is None:
        raise UserError(f"the task {task.name!r} has no data of its own: give {forms[0]}")
    return parse_source(source, (TFDS, *forms), f"the task {task.name!r}")


class Table:
    """A table with named columns, read from one of several kinds of sources.

    - `tsv:FILE`: a file that `table_rows` reads; its first line is the header.
    - `python:MODULE:FUNCTION`: a function of the user. `FUNCTION(split)` returns a dictionary for
      each example, with texts or numbers by column.
    - `tfds:NAME`: a TensorFlow Datasets set, whose texts may be empty.
    - `jsonl:FILE`, `parquet:FILE`, `datasets:DIR`: records, whose fields are the columns.

    Attributes:
        path: the file, or the name of the source, for messages.
        header: names of the columns.
        class_names: names of the classes, class 0 first, of each column for which the source has
            them.
        keeps_quotes: whether quotes around a text are kept as part of it, which the user may not
            expect.
    """

    keeps_quotes = False

    def __init__(self, source: Source, split: str, tfds: Tfds | None = None):
        self.split, self._set, self.class_names = split, None, {}
        self._records: Records | None = None
        self.path = self._head = str(source)
        if source.kind == "tfds":
            self._set = open_set(source.place, split, tfds)
            columns = self._set.columns
            self.header = list(columns)
            self.class_names = {name: classes for name, classes in columns.items() if classes}
        elif source.kind == "python":
            self.header, found = _own_rows(source, split)
            self._read = lambda: found
        elif source.kind in RECORDS:
            self._records = record_table(source, split)
            self._head = str(self._records.paths[0])
            self.header, self.class_names = list(self._records.fields), self._records.class_names
        else:
            self.path = source.path(split)
            self._head, self.keeps_quotes = f"{self.path}, line 1", not is_csv(self.path)
            self.header = list(map(str.strip, next(table_rows(self.path), (1, [""]))[1]))
            self._read = self._lines

    def _lines(self) -> Iterator[tuple[str, list[str]]]:
        """Yields the place and the cells of each line after the header."""
        rows = itertools.islice(table_rows(self.path), 1, None)
        return ((f"{self.path}, line {number}", cells) for number, cells in rows)

    @property
    def choices(self) -> tuple[str, ...]:
        """The columns `choice1`, `choice2` and so on, in the order of their numbers.

        Raises:
            UserError: a number is missing or occurs twice.
        """
        found = [name for name in self.header if re.fullmatch(r"choice\d+", name)]
        found.sort(key=lambda name: int(name[6:]))
        if found != [f"choice{n}" for n in range(1, len(found) + 1)]:
            raise UserError(
                f"{self._head}: the columns {', '.join(found)} are not choice1 to "
                f"choice{len(found)}: number them from 1, each number once"
            )
        return tuple(found)

    def rows(
        self, columns: Sequence[str], may_be_empty: Sequence[str] = ()
    ) -> Iterator[tuple[str, list[str]]]:
        """Yields the place of each row, for error messages, and its texts in some columns.

        Args:
            columns: names of the columns to read.
            may_be_empty: columns whose texts may be empty.

        Raises:
            UserError: a column is missing or occurs twice, a line has too few or too many columns,
                a text is empty, or the table has no rows. The message names the file, the line and
                the column.
        """
        mend = f"give each of {', '.join(columns)} once, with tabs between"
        if self._set or self._records:
            mend = "name the columns by --set table.text=COLUMN, table.text_b and table.label"
        for column in columns:
            if self.header.count(column) != 1:
                found = ", ".join(repr(name[:40]) for name in self.header[:20])
                raise UserError(
                    f"{self._head}: {self.header.count(column) or 'no'} column named "
                    f"{column!r} among {found}: {mend}"
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
                raise UserError(
                    f"{where}: {len(cells)} columns, but the header has {len(self.header)}: "
                    "separate columns by one tab, and remove tabs and line ends from texts"
                )
            texts = [cells[position] for position in positions]
            _check_filled(where, columns, texts, may_be_empty)
            yield where, texts
        if where is None:
            raise UserError(
                f"{self.path} has no example: give a header and a line for each example"
            )


def _check_filled(
    where: str, columns: Sequence[str], texts: Sequence[str], may_be_empty: Sequence[str]
) -> None:
    for column, text in zip(columns, texts, strict=True):
        if not text.strip() and column not in may_be_empty:
            raise UserError(
                f"{where}: the text in column {column!r} is empty: fill it in or remove the line"
            )


def _text(where: str, column: str, value: Any, classes: Sequence[str]) -> str:
    """Converts a value of a record to text: a class to its name, a list to items joined by spaces.

    A secret class, -1, becomes "".
    """
    if isinstance(value, list):
        return " ".join(_text(where, column, item, classes) for item in value)
    if classes and isinstance(value, int):
        if not -1 <= value < len(classes):
            raise UserError(
                f"{where}: {column!r} is {value}, but there are {len(classes)} classes: give a "
                "class from 0, or -1 if it is secret"
            )
        return classes[value] if value >= 0 else ""
    if not isinstance(value, str | int | float):
        raise UserError(f"{where}: {column!r} is {value!r:.40}: give text or a number")
    return str(value)


def _own_rows(source: Source, split: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Calls a user's function; returns its columns, and each example's place and texts."""
    function = find(source.place)
    found = called(source.place, lambda: [*map(dict, function(split))])
    header = list(found[0]) if found else []
    rows = []
    for number, record in enumerate(found, start=1):
        where = f"{source}, split {split!r}, example {number}"
        if set(record) != set(header):
            raise UserError(
                f"{where} has {listed(record)}, but the first one {listed(header)}: give all "
                "examples the same columns"
            )
        for column, value in record.items():
            if not isinstance(value, str | int | float):
                raise UserError(f"{where}: {column!r} is {value!r:.40}: give text or a number")
        rows.append((where, [str(record[column]) for column in header]))
    return header, rows
