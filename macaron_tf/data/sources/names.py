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

RECORD_KINDS = ("jsonl", "parquet", "datasets")  # types of sources with records of named fields
RECORD_FORMS = ("jsonl:FILE", "parquet:FILE", "datasets:DIR", "python:MODULE:FUNCTION")
TABLE_FORMS = ("tsv:FILE", *RECORD_FORMS)
# Forms of a source of translation pairs, and of a source of documents.
PAIR_FORMS = (
    TFDS_FORM,
    "text:SOURCE_FILE,TARGET_FILE",
    "tsv:FILE",
    *(f"{kind}:FILE[:FIELD,FIELD]" for kind in RECORD_KINDS),
    "homeassistant[:LANG]",
    "python:MODULE:FUNCTION",
)
DOCUMENT_FORMS = (
    TFDS_FORM,
    *(f"{kind}:GLOB[,GLOB...]" for kind in ("text", "text-paragraphs", "text-lines")),
    *(f"{kind}:GLOB[,GLOB...][:FIELD]" for kind in RECORD_KINDS),
    "homeassistant:LANG",
    "python:MODULE:FUNCTION",
)

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
        """Whether the source has named splits, and not a single one, "train" or "all"."""
        named = self.kind in ("tfds", "python") or self.is_embedded or "{split}" in self.location
        return named or bool(self.saved_splits)

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
    unknown = f"unknown source {source or ''!r}{purpose and f' of {purpose}'}"
    raise UserError(f"{unknown}: give {' or '.join(forms)}")


def parse_tfds(name: str) -> tuple[str, str, str]:
    """Splits NAME[/CONFIG][:VERSION] into three parts. A missing part becomes ""."""
    path, _, version = name.partition(":")
    base, _, config = path.partition("/")
    return base, config, version


def join_names(names: Iterable[str]) -> str:
    """Joins up to 20 names in alphabetical order for a message; "nothing" if there are none."""
    return ", ".join(sorted(str(name)[:40] for name in names)[:20]) or "nothing"
