"""Parses the names of data sources, `KIND:PLACE`, for all readers.

The module does not import TensorFlow, because the commands print the forms in their `--help`.
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

# Forms of a source of translation pairs, with their lines in `--help`.
PAIRS = {
    TFDS: "a TensorFlow Datasets translation set, in --data-dir",
    "text:SOURCE_FILE,TARGET_FILE": "aligned lines, also .gz, .bz2, .xz; {split}: the split",
    "tsv:FILE": "two tab-separated columns, or .csv; compressed and {split} as above",
    "jsonl:FILE[:FIELD,FIELD]": "one JSON object per line, with a field per language code",
    "parquet:FILE[:FIELD,FIELD]": "a column per language code, or a column translation with both",
    "datasets:DIR[:FIELD,FIELD]": "the same in a folder that Hugging Face's save_to_disk wrote",
    "homeassistant[:LANG]": "the default corpus, which pip downloads once",
    "python:MODULE:FUNCTION": "your own function: FUNCTION(split) returns pairs of lines",
}

# Forms of a source of documents, with their lines in `--help`.
DOCUMENTS = {
    TFDS: "a TensorFlow Datasets set with a text field",
    "text:GLOB[,GLOB...]": "files with one document each; also .gz, .bz2, .xz",
    "text-paragraphs:GLOB[,GLOB...]": "files whose documents are separated by blank lines",
    "text-lines:GLOB[,GLOB...]": "files with one document per line",
    "jsonl:GLOB[,GLOB...][:FIELD]": "files with one JSON object per line; by default field text",
    "parquet:GLOB[,GLOB...][:FIELD]": "files with one document per row; by default column text",
    "datasets:DIR[:FIELD]": "a folder that Hugging Face's save_to_disk wrote",
    "homeassistant:LANG": "the default corpus in one language; pip downloads it once",
    "python:MODULE:FUNCTION": "your own function: FUNCTION(split) returns documents",
}

# Kinds of sources whose files have records with named fields, and their forms as tables.
RECORDS = ("jsonl", "parquet", "datasets")
RECORD_TABLES = ("jsonl:FILE", "parquet:FILE", "datasets:DIR")

WHOLE = ("train", "all")  # names of the only split of files without {split} in their names


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A validation split drawn from a file that has no splits, or the rest of the file.

    The pairs with the smallest hashes of their text are held out, so that equal pairs are in the
    same split.

    Attributes:
        share: share of the pairs that are held out.
        seed: key of the hash.
        rest: False: the held-out pairs, for validation; True: the other pairs, for training.
        most: greatest number of distinct pairs that are held out. There is a limit because every
            validation translates all of them.
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
        """Yields the pairs of this split; prints how many pairs are held out.

        Args:
            read: returns all pairs; it is called twice.
            source: name of the source, for messages.

        Raises:
            UserError: one of the two splits is empty.
        """
        least = heapq.nsmallest(self.most, map(self._hash, read()))
        limit = min(self.share * 2**64, least[-1] + 1)
        counts = [0, 0]  # pairs of the rest, and held-out pairs
        for pair in read():
            held = self._hash(pair) < limit
            counts[held] += 1
            if held != self.rest:
                yield pair
        told = f"{counts[1]:,} of {sum(counts):,} pairs are held out for validation"
        if not all(counts):
            raise UserError(
                f"{source}: {told} (data.held_out={self.share:g}): give more pairs, or a file for "
                "each split with {split} in the name"
            )
        if not self.rest:
            print(f"{source}: {told}, drawn by data.seed={self.seed}", file=sys.stderr)

    def _hash(self, pair: tuple[str, str]) -> int:
        text, key = "\t".join(pair).encode(), str(self.seed).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=key).digest())


@dataclasses.dataclass(frozen=True)
class Source:
    """The parsed name of a source of text.

    Attributes:
        kind: the word before the first colon, such as "tfds".
        place: the text after it: a set, files separated by commas, a language, or "".
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
        """Whether it is the default corpus, which pip downloads."""
        return self.kind == "homeassistant"

    @property
    def has_splits(self) -> bool:
        """Whether the source has named splits.

        Files without `{split}` in their names have a single split, called "train" or "all".
        """
        if self.kind in ("tfds", "python") or self.is_embedded or "{split}" in self.place:
            return True
        return self.saved_splits is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of fields after the last colon, for the kinds in `RECORDS`; () if none is named."""
        _, colon, names = self.place.rpartition(":")
        named = self.kind in RECORDS and colon and names and "/" not in names
        return tuple(names.split(",")) if named else ()

    @property
    def without_fields(self) -> "Source":
        """The source without the names in `fields`."""
        place = self.place.rpartition(":")[0] if self.fields else self.place
        return Source(self.kind, place)

    @property
    def saved_splits(self) -> epath.Path | None:
        """The file with the names of the splits that Hugging Face's `DatasetDict` saved, if any."""
        if self.kind != "datasets":
            return None
        from macaron_tf.io.paths import as_path  # imports TensorFlow

        listed = as_path(self.without_fields.place).expanduser() / "dataset_dict.json"
        return listed if listed.exists() else None

    def path(self, split: str | HeldOut) -> epath.Path:
        """The file of a split: `{split}` in the place is replaced by the name of the split.

        Raises:
            UserError: the source has no splits, and `split` is not "train" or "all".
        """
        from macaron_tf.io.paths import as_path  # imports TensorFlow

        if not (self.has_splits or split in WHOLE or isinstance(split, HeldOut)):
            raise UserError(
                f"the source '{self}' has no split {split!r}: put {{split}} in the file's name, "
                "as in data/{split}.tsv; a file without it has only the split 'all'"
            )
        return as_path(self.place.replace("{split}", str(split))).expanduser()

    def paths(self, split: str | HeldOut) -> list[epath.Path]:
        """The files or patterns of a split, which commas separate in the name; see `path`."""
        names = filter(None, self.place.split(","))
        return [Source(self.kind, name).path(split) for name in names]


def parse_source(source: str | None, forms: Iterable[str], owner: str = "") -> Source:
    """Parses the name of a source.

    Args:
        forms: accepted forms, such as `"tsv:FILE"`. If brackets follow the kind, as in
            `"homeassistant[:LANG]"`, a name may have no place.
        owner: what the source is for, such as "the task 'sst2'", for the error.

    Raises:
        UserError: the source has none of the forms.
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
    """Splits NAME[/CONFIG][:VERSION] into NAME, CONFIG and VERSION; a missing part is ""."""
    path, _, version = name.partition(":")
    base, _, config = path.partition("/")
    return base, config, version
