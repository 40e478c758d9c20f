"""Tables of examples: rows under a header, from files, code and sets of TensorFlow Datasets."""

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
    """A task's source, its own where None is given: of one of these forms, or of TFDS."""
    source = source or task.source
    if source is None:
        raise UserError(f"the task {task.name!r} has no data of its own: give {forms[0]}")
    return parse_source(source, (TFDS, *forms), f"the task {task.name!r}")


class Table:
    """Rows under a header.

    `tsv:FILE` is a file of `table_rows`. `python:MODULE:FUNCTION` is code of the user's:
    `FUNCTION(split)` gives a dict an example, of texts by column, and numbers.
    `tfds:NAME` is a set of TensorFlow Datasets, whose texts may be empty.
    `jsonl:FILE`, `parquet:FILE` and `datasets:DIR` hold records, whose fields are the columns.

    Attributes:
        class_names: of each column whose classes the source names, class 0 first.
        keeps_quotes: whether quotes around a text are a part of it, which may not be meant.
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
        """The place and the cells of each line of a file behind the header."""
        rows = itertools.islice(table_rows(self.path), 1, None)
        return ((f"{self.path}, line {number}", cells) for number, cells in rows)

    @property
    def choices(self) -> tuple[str, ...]:
        """The columns `choice1`, `choice2` and so on, by their numbers.

        Raises:
            UserError: a number is missing, or there twice.
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
        """The place of each line, for errors, and its texts in these columns.

        Raises:
            UserError: a column that is missing or there twice, a line of too few or too many
                columns, an empty text, or no line; names the file, the line and the column.
        """
        mend = f"give one of each of {', '.join(columns)}, with tabs between"
        if self._set or self._records:
            mend = "name the columns by --set table.text=COLUMN, table.text_b and table.label"
        for column in columns:
            if self.header.count(column) != 1:
                found = ", ".join(repr(name[:40]) for name in self.header[:20])
                raise UserError(
                    f"{self._head}: {self.header.count(column) or 'no'} column named "
                    f"{column!r} among {found}; {mend}"
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
                    f"{where}: {len(cells)} columns, not the header's {len(self.header)}; "
                    "separate columns by one tab, and take tabs and line ends out of texts"
                )
            texts = [cells[position] for position in positions]
            _check_filled(where, columns, texts, may_be_empty)
            yield where, texts
        if where is None:
            raise UserError(
                f"{self.path} holds no example: give a header and a line for each example"
            )


def _check_filled(
    where: str, columns: Sequence[str], texts: Sequence[str], may_be_empty: Sequence[str]
) -> None:
    for column, text in zip(columns, texts, strict=True):
        if not text.strip() and column not in may_be_empty:
            raise UserError(
                f"{where}: the text in column {column!r} is empty; fill it in or take the line out"
            )


def _text(where: str, column: str, value: Any, classes: Sequence[str]) -> str:
    """A value of a record as text: a class by its name, the items of a list with spaces between."""
    if isinstance(value, list):
        return " ".join(_text(where, column, item, classes) for item in value)
    if classes and isinstance(value, int):  # -1 is a secret one
        if not -1 <= value < len(classes):
            raise UserError(f"{where}: {column!r} is {value}, and there are {len(classes)} classes")
        return classes[value] if value >= 0 else ""
    if not isinstance(value, str | int | float):
        raise UserError(f"{where}: {column!r} is {value!r:.40}: give text or a number")
    return str(value)


def _own_rows(source: Source, split: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The columns of a user's function, and the place and the texts of each of its examples."""
    function = find(source.place)
    found = called(source.place, lambda: [*map(dict, function(split))])
    header = list(found[0]) if found else []
    rows = []
    for number, record in enumerate(found, start=1):
        where = f"{source}, split {split!r}, example {number}"
        if set(record) != set(header):
            raise UserError(f"{where}: it has {listed(record)}, the first one {listed(header)}")
        for column, value in record.items():
            if not isinstance(value, str | int | float):
                raise UserError(f"{where}: {column!r} is {value!r:.40}: give text or a number")
        rows.append((where, [str(record[column]) for column in header]))
    return header, rows
