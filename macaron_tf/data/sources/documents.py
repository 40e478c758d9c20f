"""Where the documents of pre-training come from: TFDS sets and text files, one at a time."""

import functools
import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import tensorflow as tf
from etils import epath

from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.data.sources import files as text_files
from macaron_tf.data.sources import homeassistant as corpora
from macaron_tf.data.sources import pairs as sources
from macaron_tf.data.sources import tfds as tfds_sets
from macaron_tf.data.sources.tfds import (
    PreparedSet,
    first_line,
    import_tfds,
    listed,
    open_set,
    records_in_order,
)
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import content_stamps

# What a source may be, and what it is: for the help of a command.
FORMS = {
    "tfds:NAME[/CONFIG][:VERSION]": "a TensorFlow Datasets set with a field of text",
    "text:GLOB[,GLOB...]": "files, plain or .gz, each a document",
    "text-paragraphs:GLOB[,GLOB...]": "files whose documents are separated by blank lines",
    "text-lines:GLOB[,GLOB...]": "files with a document a line",
    "homeassistant:LANG": "the embedded default corpus, a part of the program a document",
}
_TEXT_KINDS = ("text", "text-paragraphs", "text-lines")
_TEXT_FIELDS = ("text", "book_text")  # Wikipedia's and PG-19's
_CHUNK = 32  # records a batch: a book is a megabyte, an article 5 KB


def documents(
    source: str,
    split: str = "train",
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
) -> Iterator[str]:
    """Reads the documents of a source in its order, one at a time.

    Args:
        source: one of
            `tfds:NAME[/CONFIG][:VERSION]`: a TFDS set, already prepared in `data_dir` unless
                `download`; its field `text`, `book_text` or the only one that holds a string;
            `text:GLOB[,GLOB...]`: files, plain or `.gz`, in the order of their names, each a
                document;
            `text-paragraphs:GLOB[,GLOB...]`: the same, with a document up to each blank line;
            `text-lines:GLOB[,GLOB...]`: the same, with a document on each line;
            `homeassistant:LANG`: the embedded default corpus in one language, "en" included; a
                document is the texts of a part of the program in their order. Its splits are
                those of the translation pairs.
            `{split}` in a glob stands for the split; files without it have only the split
            "train", also called "all".
        split: a split, or a slice such as "train[:10%]" of a TFDS set.
        data_dir: TFDS's folder; its own default when None.
        download: lets TFDS fetch and prepare the set. Never done otherwise: with no network TFDS
            tries for minutes.

    Returns:
        An iterator of documents, none blank.

    Raises:
        UserError: no such source, set, split, field or file, at once; an empty, damaged or not
            UTF-8 file, when it is reached.
    """
    kind, rest = _parse(source)
    if kind == "tfds":
        return _tfds_documents(_tfds_set(rest, split, data_dir, download))
    if is_embedded(source):
        return iter(corpora.read_homeassistant_documents(rest, split))
    return _file_documents(kind, _paths(kind, rest, split))


def count_documents(
    source: str, split: str = "train", data_dir: str | os.PathLike | None = None
) -> int | None:
    """Number of a source's documents, where it is known before they are read.

    Args:
        source, split, data_dir: as for `documents`.

    Returns:
        The number; None for files that hold several documents, and for the embedded corpus.

    Raises:
        UserError: as `documents`.
    """
    kind, rest = _parse(source)
    if kind == "tfds":
        found = _tfds_set(rest, split, data_dir, download=False)
        return found.prepared.builder.info.splits[split].num_examples
    return len(_paths(kind, rest, split)) if kind == "text" else None


def document_files(
    source: str, split: str = "train", data_dir: str | os.PathLike | None = None
) -> list[epath.Path]:
    """The files of a source in the order of its documents; of the embedded corpus none.

    Args:
        source, split, data_dir: as for `documents`.

    Raises:
        UserError: as `documents`.
    """
    kind, rest = _parse(source)
    if kind == "tfds":
        return tfds_sets.set_files(rest, data_dir)
    return [] if is_embedded(source) else _paths(kind, rest, split)


def check_language(source: str, language: str | None) -> None:
    """Refuses a language for a source that names another one itself.

    Args:
        source: as for `documents`.
        language: what its text is taken for; None where that is not asked.

    Raises:
        UserError: it is of another; or as `documents` for what is no source.
    """
    _, rest = _parse(source)
    if is_embedded(source) and language not in (None, rest):
        raise UserError(f"{source} is not in {language!r}: give it the language {rest!r}")


def is_embedded(source: str) -> bool:
    """Whether a source is the embedded corpus, which is read as a whole.

    Args:
        source: as for `documents`.
    """
    return source.partition(":")[0] == "homeassistant"


def _parse(source: str) -> tuple[str, str]:
    kind, _, rest = source.partition(":")
    if kind == "tsv":
        raise UserError(
            f"{source} holds translation pairs: name its two languages, as in "
            f"({source!r}, 'train', None, ('en', 'de'))"
        )
    if kind not in ("tfds", *_TEXT_KINDS, "homeassistant") or not rest:
        *forms, last = FORMS
        raise UserError(
            f"unknown source of documents {source!r}: give {', '.join(forms)} or {last}"
        )
    return kind, rest


def _paths(kind: str, names: str, split: str) -> list[epath.Path]:
    found: dict[epath.Path, None] = {}  # in order, each file once
    for name in filter(None, names.split(",")):
        pattern = str(text_files.split_path(kind, name, split))
        with storage.clear_errors(f"cannot look for {pattern!r}", "check the path"):
            if storage.is_remote(pattern):
                matches = sorted(tf.io.gfile.glob(pattern))
            else:
                matches = sorted(glob.glob(pattern, recursive=True))
            files = [path for path in map(storage.as_path, matches) if path.is_file()]
        if not matches:
            raise UserError(f"no file matches {pattern!r} of {kind}:{names}: check the path")
        found.update(dict.fromkeys(files))
    if not found:
        raise UserError(f"{kind}:{names} names folders only: give files, as in {names}/*.txt")
    return list(found)


def _file_documents(kind: str, paths: list[epath.Path]) -> Iterator[str]:
    for path in paths:
        empty = True
        for document in _cut(kind, text_files.lines_of(path)):
            if document.strip():
                empty = False
                yield document
        if empty:
            raise UserError(f"{path} holds no text: remove it or give another file")


def _cut(kind: str, lines: Iterator[str]) -> Iterator[str]:
    if kind == "text-lines":
        yield from lines
    elif kind == "text":
        yield "\n".join(lines)
    else:
        for blank, group in itertools.groupby(lines, lambda line: not line.strip()):
            if not blank:
                yield "\n".join(group)


class _TfdsSet(NamedTuple):
    prepared: PreparedSet
    name: str
    split: str
    field: str


def _tfds_set(name, split, data_dir, download) -> _TfdsSet:
    found = open_set(name, split, data_dir, download)
    features, text = found.features, import_tfds().features.Text
    strings = [key for key in features if isinstance(features[key], text)]
    named = [field for field in _TEXT_FIELDS if field in strings] or strings
    if len(named) != 1 and named[:1] != ["text"]:
        raise UserError(
            f"tfds:{name} has no field 'text' or 'book_text' and {listed(strings)} for strings: "
            "take a set with one field of text"
        )
    return _TfdsSet(found, name, split, named[0])


def _tfds_documents(found: _TfdsSet) -> Iterator[str]:
    empty = True
    try:
        records = records_in_order(found.prepared, found.split)
        texts = records.map(lambda record: record[found.field]).batch(_CHUNK).prefetch(1)
        for chunk in texts.as_numpy_iterator():
            for text in chunk:
                document = text.decode("utf-8", "replace")
                if document.strip():
                    empty = False
                    yield document
    except Exception as error:  # a bad slice, a damaged or missing record file
        raise UserError(
            f"tfds:{found.name}: cannot read split {found.split!r} "
            f"({first_line(error)}): check the split or prepare the set again"
        ) from error
    if empty:
        raise UserError(
            f"tfds:{found.name}: the split {found.split!r} holds no text; take a larger one"
        )


def open_source(
    source: CorpusSource,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    max_documents: int | None = None,
) -> Iterator[str | tuple[str, str]]:
    """Reads a source in its order.

    Args:
        source: the source.
        data_dir, download: as for `documents`.
        max_documents: the first so many; None for all.

    Returns:
        An iterator of texts, none blank, or of translation pairs, each half of one line.

    Raises:
        UserError: as `documents` and `read_pairs`; a language that is not the source's.
    """
    found: Iterable[str | tuple[str, str]]
    if source.is_translation:
        pairs = sources.read_pairs(
            source.source, source.split, *source.languages, data_dir, download
        )
        lines = ((" ".join(a.split()), " ".join(b.split())) for a, b in pairs)
        found = [pair for pair in lines if all(pair)]
        if not found:
            raise UserError(f"{source.source} holds no pair with text on both sides: give another")
    else:
        check_language(source.source, source.language)
        found = documents(source.source, source.split, data_dir, download)
    return itertools.islice(found, max_documents)


def source_reader(
    source: CorpusSource,
    data_dir: str | os.PathLike | None = None,
    max_documents: int | None = None,
) -> Callable[[], Iterator[str | tuple[str, str]]]:
    """What opens a source again and again; a source that is read as a whole is read once only.

    Args:
        source, data_dir, max_documents: as for `open_source`.

    Returns:
        A function whose result is that of `open_source`.
    """
    opened = functools.partial(open_source, source, data_dir, max_documents=max_documents)
    if not (source.is_translation or is_embedded(source.source)):
        return opened
    kept = functools.cache(lambda: list(opened()))
    return lambda: iter(kept())


def identify_source(source: CorpusSource, data_dir: str | os.PathLike | None = None) -> list:
    """What tells one content of a source from another, without reading it, fit for JSON.

    Args:
        source: the source.
        data_dir: as for `documents`.

    Returns:
        Stamps, see `content_stamps`; of the embedded corpus its SHA-256, 0 and the version of its
        cutting.

    Raises:
        UserError: as `open_source`, for what is missing.
    """
    if is_embedded(source.source):
        return [(corpora.HOMEASSISTANT_SHA256, 0, corpora.FORMAT)]
    if source.is_translation:
        files = sources.pair_files(source.source, source.split, *source.languages, data_dir)
    else:
        files = document_files(source.source, source.split, data_dir)
    return content_stamps(files)


def count_source(source: CorpusSource, data_dir: str | os.PathLike | None = None) -> int | None:
    """Number of a source's documents, where it is known before they are read.

    Args:
        source: the source.
        data_dir: as for `documents`.

    Raises:
        UserError: as `open_source`.
    """
    if source.is_translation:
        return None
    return count_documents(source.source, source.split, data_dir)
