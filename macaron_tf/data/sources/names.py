"""Names of data sources, `KIND:PLACE`: one parser for every reader.

The forms are part of the commands' helps, so this module does not import TensorFlow.
"""

import dataclasses
import hashlib
import heapq
import re
import sys
from collections.abc import Callable, Iterable, Iterator

from etils import epath

from macaron_tf.errors import UserError

TFDS = "tfds:NAME[/CONFIG][:VERSION]"

# Forms that a source of translation pairs may have, with the help text of a command.
PAIRS = {
    TFDS: "a TensorFlow Datasets translation set, in --data-dir",
    "text:SOURCE_FILE,TARGET_FILE": "aligned lines, plain, .gz, .bz2 or .xz; {split} is filled in",
    "tsv:FILE": "two tab-separated columns, or .csv; packed and {split} as above",
    "jsonl:FILE[:FIELD,FIELD]": "an object a line; fields of the languages' codes; packed as above",
    "parquet:FILE[:FIELD,FIELD]": "columns of the languages' codes, or translation with both",
    "datasets:DIR[:FIELD,FIELD]": "the same in a set that Hugging Face's save_to_disk wrote",
    "homeassistant[:LANG]": "the embedded default corpus, fetched with pip once",
    "python:MODULE:FUNCTION": "your own: FUNCTION(split) gives pairs of lines",
}

# Forms that a source of documents may have.
DOCUMENTS = {
    TFDS: "a TensorFlow Datasets set with a field of text",
    "text:GLOB[,GLOB...]": "files, plain, .gz, .bz2 or .xz, each a document",
    "text-paragraphs:GLOB[,GLOB...]": "files whose documents are separated by blank lines",
    "text-lines:GLOB[,GLOB...]": "files with a document a line",
    "jsonl:GLOB[,GLOB...][:FIELD]": "files with an object a line, whose field text is a document",
    "parquet:GLOB[,GLOB...][:FIELD]": "files with a document a row, in the column text",
    "datasets:DIR[:FIELD]": "a set that Hugging Face's save_to_disk wrote",
    "homeassistant:LANG": "the embedded default corpus, a part of the program a document",
    "python:MODULE:FUNCTION": "your own: FUNCTION(split) gives documents",
}

# Kinds whose files hold records of named fields, and forms of tables of them.
RECORDS = ("jsonl", "parquet", "datasets")
RECORD_TABLES = ("jsonl:FILE", "parquet:FILE", "datasets:DIR")

WHOLE = ("train", "all")  # the splits of files whose names hold no {split}


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A split of a file that has none: a drawn share of its pairs, to validate on, or the rest.

    A pair's text decides where it belongs: the least hashes are held out, equal pairs together.

    Attributes:
        most: greatest number of different pairs held out: each is translated at every validation.
    """

    share: float
    seed: int
    rest: bool = False
    most: int = 2_000

    def __str__(self) -> str:
        return "train" if self.rest else "validation"

    def among(
        self, read: Callable[[], Iterable[tuple[str, str]]], source: str
    ) -> Iterator[tuple[str, str]]:
        """This split of all pairs, read twice; tells how many there are to validate on."""
        least = heapq.nsmallest(self.most, map(self._hash, read()))
        limit = min(self.share * 2**64, least[-1] + 1)
        counts = [0, 0]  # of the rest, and held out
        for pair in read():
            held = self._hash(pair) < limit
            counts[held] += 1
            if held != self.rest:
                yield pair
        told = f"{counts[1]:,} of {sum(counts):,} pairs are held out for validation"
        if not all(counts):
            raise UserError(
                f"{source}: {told} (data.held_out={self.share:g}): give more pairs, or a file of "
                "each split with {split} in the name"
            )
        if not self.rest:
            print(f"{source}: {told}, drawn by data.seed={self.seed}", file=sys.stderr)

    def _hash(self, pair: tuple[str, str]) -> int:
        text, key = "\t".join(pair).encode(), str(self.seed).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=key).digest())


@dataclasses.dataclass(frozen=True)
class Source:
    """A parsed name.

    Attributes:
        kind: the word before the first colon, such as "tfds".
        place: the rest: a set, files separated by commas, a language, or "".
    """

    kind: str
    place: str

    @classmethod
    def of(cls, name: str) -> "Source":
        """Splits a name of any kind at its first colon."""
        kind, _, place = name.partition(":")
        return cls(kind, place)

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}"

    @property
    def is_embedded(self) -> bool:
        """Whether it is the embedded corpus, which is read as a whole."""
        return self.kind == "homeassistant"

    @property
    def has_splits(self) -> bool:
        """Whether splits have names; files without `{split}` have only "train", equally "all"."""
        if self.kind in ("tfds", "python") or self.is_embedded or "{split}" in self.place:
            return True
        return self.saved_splits is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields behind the last colon of a place in `RECORDS`."""
        _, colon, names = self.place.rpartition(":")
        named = self.kind in RECORDS and colon and names and "/" not in names
        return tuple(names.split(",")) if named else ()

    @property
    def without_fields(self) -> "Source":
        """The source of all fields; see `fields`."""
        place = self.place.rpartition(":")[0] if self.fields else self.place
        return Source(self.kind, place)

    @property
    def saved_splits(self) -> epath.Path | None:
        """The list of splits of a set that Hugging Face's `DatasetDict` saved, if it is one."""
        if self.kind != "datasets":
            return None
        from macaron_tf.io.paths import as_path  # imports TensorFlow

        listed = as_path(self.without_fields.place).expanduser() / "dataset_dict.json"
        return listed if listed.exists() else None

    def path(self, split: str | HeldOut) -> epath.Path:
        """The file of a split: `{split}` in the name; without it, "train" or "all"."""
        from macaron_tf.io.paths import as_path  # imports TensorFlow

        if not (self.has_splits or split in WHOLE or isinstance(split, HeldOut)):
            raise UserError(
                f"the source '{self}' has no split {split!r}: put {{split}} in the file's name, "
                f"where {split!r} shall stand; without it the file is the split 'all' alone"
            )
        return as_path(self.place.replace("{split}", str(split))).expanduser()

    def paths(self, split: str | HeldOut) -> list[epath.Path]:
        """The files, or patterns, that commas separate; see `path`."""
        names = filter(None, self.place.split(","))
        return [Source(self.kind, name).path(split) for name in names]


def parse_source(source: str | None, forms: Iterable[str], owner: str = "") -> Source:
    """Parses the name of a source.

    Args:
        forms: accepted ones, such as `"tsv:FILE"`; in `"homeassistant[:LANG]"` the place may be
            left out.
        owner: what asks for the source, such as "the task 'sst2'", for the message.
    """
    parsed = Source.of(source or "")
    for form in forms:
        kind = re.match(r"[a-z-]+", form)[0]
        if parsed.kind == kind and (parsed.place or form.startswith(f"{kind}[")):
            return parsed
    *others, last = forms
    raise UserError(
        f"unknown source {source or ''!r}{owner and f' of {owner}'}: "
        f"give {', '.join(others)}{' or ' if others else ''}{last}"
    )


def parse_tfds(name: str) -> tuple[str, str, str]:
    """NAME, CONFIG and VERSION of NAME[/CONFIG][:VERSION]; "" for one that is absent."""
    path, _, version = name.partition(":")
    base, _, config = path.partition("/")
    return base, config, version
