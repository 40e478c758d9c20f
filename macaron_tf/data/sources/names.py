"""Parser of data source names, such as `text:FILE` and `tfds:NAME`.

This module does not import TensorFlow, because commands import this module to print `--help`.
"""

import dataclasses
import hashlib
import heapq
import re
import sys
from collections.abc import Callable, Iterable, Iterator

from etils import epath

from macaron_tf.errors import UserError

TFDS_FORM = "tfds:NAME[/CONFIG][:VERSION]"

# The forms of a source of translation pairs, each with its description in `--help`.
PAIR_FORMS = {
    TFDS_FORM: "translation dataset of TensorFlow Datasets in the folder of --data-dir",
    "text:SOURCE_FILE,TARGET_FILE": "two text files, aligned line by line",
    "tsv:FILE": "tab-separated file, or comma-separated file if FILE ends in .csv, with the source "
    "texts and the target texts in two columns, without a header",
    "jsonl:FILE[:FIELD,FIELD]": "file with one JSON object per line (default fields: the language "
    "codes, such as 'en' and 'de', at the top level or inside a field named 'translation')",
    "parquet:FILE[:FIELD,FIELD]": "Parquet file, with the same defaults as jsonl:",
    "datasets:DIR[:FIELD,FIELD]": "folder of Hugging Face `Dataset.save_to_disk`, as jsonl:",
    "homeassistant[:LANG]": "user-interface texts of Home Assistant in English and in the language "
    "LANG (default: the recipe's language that is not English); pip downloads 51 MB",
    "python:MODULE:FUNCTION": "your own function; FUNCTION(split) yields (source, target) texts",
}

# The forms of a source of documents, each with its description in `--help`.
DOCUMENT_FORMS = {
    TFDS_FORM: "dataset of TensorFlow Datasets in the folder of --data-dir; its field 'text' or "
    "'book_text', or its only text field, contains the documents",
    "text:GLOB[,GLOB...]": "text files that contain one document each",
    "text-paragraphs:GLOB[,GLOB...]": "text files in which blank lines separate the documents",
    "text-lines:GLOB[,GLOB...]": "text files with one document per line",
    "jsonl:GLOB[,GLOB...][:FIELD]": "files with one JSON object per line (default field: 'text', "
    "'book_text' or the only field)",
    "parquet:GLOB[,GLOB...][:FIELD]": "Parquet files, with the same default as jsonl:",
    "datasets:DIR[:FIELD]": "folder of Hugging Face `Dataset.save_to_disk`, as jsonl:",
    "homeassistant:LANG": "user-interface texts of Home Assistant in LANG; pip downloads 51 MB",
    "python:MODULE:FUNCTION": "your own function; FUNCTION(split) yields the documents of a split",
}

# Types of sources with records of named fields, and the forms of sources that are tables.
RECORD_KINDS = ("jsonl", "parquet", "datasets")
FILE_TABLE_FORMS = ("tsv:FILE", "jsonl:FILE", "parquet:FILE", "datasets:DIR")
TABLE_FORMS = (*FILE_TABLE_FORMS, "python:MODULE:FUNCTION")

TEXT = ("text",)  # name of a document in a source that does not name its documents
WHOLE_SPLITS = ("train", "all")  # names of the only split of a file without {split} in its name


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A validation or training split of translation pairs from a file without splits.

    The pairs with the smallest hashes form the validation split, so that equal pairs are never in
    different splits.

    Attributes:
        most: maximum number of distinct held-out pairs. The number is limited because each
            validation translates all held-out pairs.
    """

    share: float
    seed: int
    rest: bool = False
    most: int = 2_000

    def __str__(self) -> str:
        return "train" if self.rest else "validation"

    def select(
        self, read: Callable[[], Iterable[tuple[str, str]]], source: str
    ) -> Iterator[tuple[str, str]]:
        """Yields the pairs of this split."""
        smallest = heapq.nsmallest(self.most, map(self._hash, read()))
        limit = min(self.share * 2**64, smallest[-1] + 1)
        counts = [0, 0]  # numbers of training pairs and of held-out pairs
        for pair in read():
            is_held_out = self._hash(pair) < limit
            counts[is_held_out] += 1
            if is_held_out != self.rest:
                yield pair
        summary = f"{counts[1]:,} of {sum(counts):,} pairs are held out for validation"
        if not all(counts):
            raise UserError(f"{source}: {summary} (data.held_out={self.share:g}): change it")
        if not self.rest:
            print(f"{source}: {summary}, drawn by data.seed={self.seed}", file=sys.stderr)

    def _hash(self, pair: tuple[str, str]) -> int:
        text, key = "\t".join(pair).encode(), str(self.seed).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=key).digest())


Split = str | HeldOut


@dataclasses.dataclass(frozen=True)
class Source:
    """The parsed name of a source of text.

    Attributes:
        location: text after the first colon, such as the name of a dataset, files separated by
            commas, a language code, or "". It lacks the field names.
        fields: field names after the last colon of a `jsonl:`, `parquet:` or `datasets:` source.
            The tuple is empty for other sources, and if the names are omitted.
    """

    kind: str
    location: str
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str) -> "Source":
        """Parses a source of any type."""
        kind, _, location = name.partition(":")
        files, _, fields = location.rpartition(":")
        if kind in RECORD_KINDS and files and fields and "/" not in fields:
            return cls(kind, files, tuple(fields.split(",")))
        return cls(kind, location)

    def __str__(self) -> str:
        return ":".join([self.kind, self.location, *[",".join(self.fields)] * bool(self.fields)])

    @property
    def is_embedded(self) -> bool:
        """Whether the source is Home Assistant's text, in any language, which pip downloads."""
        return self.kind == "homeassistant"

    @property
    def has_splits(self) -> bool:
        """Whether the source has named splits.

        A file without `{split}` in its name, or a folder of a saved `Dataset`, has a single split,
        which is called "train" or "all".
        """
        named = self.kind in ("tfds", "python") or self.is_embedded or "{split}" in self.location
        return named or bool(self.saved_splits)

    @property
    def selection(self) -> str:
        """The part of the name that selects what to read from the files of the source.

        These are the comma-separated field names of records, or the name of a Python function in
        its module. The string is empty for other sources, and if this part is omitted.
        """
        if self.kind == "python":
            return self.location.partition(":")[2]
        return ",".join(self.fields)

    @property
    def saved_splits(self) -> tuple[str, ...]:
        """Split names of a saved `DatasetDict` of Hugging Face; other sources have none."""
        if self.kind != "datasets":
            return ()
        from macaron_tf.io.paths import as_path, read_json  # imports TensorFlow

        path = as_path(self.location).expanduser() / "dataset_dict.json"
        return tuple(read_json(path, splits=list)["splits"]) if path.exists() else ()

    def path(self, split: Split) -> epath.Path:
        """Returns the path of a split's file, in which the split name replaces `{split}`."""
        from macaron_tf.io.paths import as_path  # imports TensorFlow

        if not (self.has_splits or split in WHOLE_SPLITS or isinstance(split, HeldOut)):
            mend = "give one file per split, as {split}"
            raise UserError(f"'{self}' has no split {split!r}: {mend}")
        return as_path(self.location.replace("{split}", str(split))).expanduser()

    def paths(self, split: Split) -> list[epath.Path]:
        """Returns a split's path or glob pattern for each comma-separated part of `location`."""
        names = filter(None, self.location.split(","))
        return [Source(self.kind, name).path(split) for name in names]


def parse_source(source: str | None, forms: Iterable[str], purpose: str = "") -> Source:
    """Parses the name of a source.

    Args:
        forms: accepted forms, such as "tsv:FILE". A bracket right after the type, as in
            "homeassistant[:LANG]", means that the part after the colon may be missing.
    """
    parsed = Source.of(source or "")
    for form in forms:
        kind = re.match(r"[a-z-]+", form)[0]
        if parsed.kind == kind and (parsed.location or form.startswith(f"{kind}[")):
            return parsed
    *others, last = forms
    known = f"{', '.join(others)}{' or ' if others else ''}{last}"
    raise UserError(f"unknown source {source or ''!r}{purpose and f' of {purpose}'}: give {known}")


def parse_tfds(name: str) -> tuple[str, str, str]:
    """Splits NAME[/CONFIG][:VERSION] into three parts. A missing part becomes ""."""
    path, _, version = name.partition(":")
    base, _, config = path.partition("/")
    return base, config, version
