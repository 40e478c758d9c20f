"""Readers of translation pairs and documents in files, TensorFlow Datasets and other sources."""

import glob
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf
from etils import epath

from macaron_tf.data.sources import homeassistant
from macaron_tf.data.sources import names as forms
from macaron_tf.data.sources import tfds as sets
from macaron_tf.data.sources.names import RECORD_KINDS, HeldOut, Source, parse_source
from macaron_tf.data.sources.records import file_records, saved_files, table_records
from macaron_tf.data.sources.tfds import Tfds, join_names, open_set, source_function
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import count_lines, is_compressed, lines_of, state_stamp
from macaron_tf.io.plug_ins import call_user_code

Split = str | HeldOut
_TEXT_FIELDS = ("text", "book_text")  # "text" in Wikipedia, "book_text" in PG-19
_SIDES = ("source text", "target text")  # columns of a table of pairs, which has no header
_CHUNK_RECORDS = 32  # records per batch; a book takes about 1 MB, and an article 5 KB


def read_pairs(
    source: str, split: Split, source_lang: str, target_lang: str, tfds: Tfds | None = None
) -> list[tuple[str, str]]:
    """Reads a split of a parallel corpus into a list, with the arguments of `stream_pairs`."""
    return list(stream_pairs(source, split, source_lang, target_lang, tfds))


def stream_pairs(
    source: str, split: Split, source_lang: str, target_lang: str, tfds: Tfds | None = None
) -> Iterator[tuple[str, str]]:
    """Reads a split of a parallel corpus, one pair at a time.

    Args:
        source: name of the source in one of the forms of `PAIR_FORMS`. The name of the split
            replaces `{split}` in file names, as in `text:data/{split}.en,data/{split}.de`. A file
            without `{split}` in its name has a single split, which is called "train" or "all". For
            a TFDS dataset without CONFIG, the two languages determine the configuration.
            `homeassistant` has pairs of English and another language.

    Returns:
        Iterator of (source, target) texts in the order of the source. The texts are not cleaned,
        but lines of files have no line ends.
    """
    parsed, languages = parse_texts(source, paired=True), (source_lang, target_lang)
    if isinstance(split, HeldOut):
        return split.select(lambda: stream_pairs(source, "all", *languages, tfds), source)
    if parsed.kind == "tfds":
        prepared = open_set(parsed.location, split, tfds, languages)
        return (tuple(record.values()) for _, record in prepared.rows(languages))
    if parsed.kind == "text":
        return _aligned_lines(source_files(source, split, languages))
    if parsed.kind == "python":
        return map(tuple, call_user_code(parsed.location, source_function(parsed, tfds), split))
    if parsed.is_embedded:
        return iter(homeassistant.read_homeassistant(parsed.location or None, split, *languages))
    if parsed.kind == "tsv":  # the file has no header, and its cells need no check of their type
        return (tuple(cells) for _, cells in table_records(parsed.path(split), _SIDES).rows(_SIDES))
    records = file_records(parsed.kind, source_files(source, split, languages))
    fields = _pair_fields(parsed, records.fields, languages)
    return (tuple(texts) for _, texts in records.strings(fields))


def _pair_fields(source: Source, names: Sequence[str], languages: tuple[str, str]) -> tuple:
    """Returns the two fields of a pair in records that have the fields `names`."""
    if source.fields or {*languages} <= {*names}:
        fields = source.fields or languages
    elif "translation" in names:
        fields = tuple(f"translation.{code}" for code in languages)
    else:
        wanted = f"neither fields {' and '.join(map(repr, languages))} nor a field 'translation'"
        raise UserError(f"{source} has {wanted}, only {join_names(names)}: give :FIELD,FIELD")
    if len(fields) != 2:
        raise UserError(f"{source} names {len(fields)} fields, not FIELD,FIELD")
    return fields


def count_texts(
    source: str, split: Split, languages: Sequence[str] = (), tfds: Tfds | None = None
) -> int | None:
    """Counts the pairs or documents of a split, with the arguments of `source_files`.

    Returns:
        Number of pairs or documents, which may include blank texts, or `None` if counting would
        require decoding or decompressing them. For a `tsv:` source of pairs, the result is the
        number of lines, which may exceed the pair count.
    """
    paired = len(languages) == 2
    parsed = parse_texts(source, paired)
    if parsed.kind == "tfds":
        return open_set(parsed.location, split, tfds, tuple(languages) if paired else None).count
    if parsed.kind not in ("text", "tsv") or isinstance(split, HeldOut):
        return None
    paths = source_files(source, split, languages, tfds)
    if not paired:
        return len(paths)
    if any(map(is_compressed, paths)):
        return None
    counts = [count_lines(path) for path in paths]
    _check_equal(paths, counts)
    return counts[0]


def source_files(
    source: str, split: Split, languages: Sequence[str] = (), tfds: Tfds | None = None
) -> list[epath.Path]:
    """Returns the files of a source. A changed file invalidates the caches of the source.

    For a Python function, the result is the file of the function's module. A change in data files
    that the function reads therefore does not invalidate caches. The default corpus has no files.
    This function does not check whether the files of a `text:` or `tsv:` source of translation
    pairs exist.
    """
    paired = len(languages) == 2
    parsed = parse_texts(source, paired)
    if parsed.is_embedded:
        return []
    if parsed.kind == "tfds":
        folder = sets.prepared_folder(parsed.location, tfds, tuple(languages) if paired else None)
        return [path for path in sorted(folder.iterdir()) if path.is_file()]
    if parsed.kind == "python":
        return [storage.as_path(source_function(parsed, tfds).__code__.co_filename)]
    if parsed.kind == "datasets":
        return saved_files(parsed, split)
    if paired and parsed.kind == "text":
        if len([*filter(None, parsed.location.split(","))]) != 2:
            raise UserError(f"'{parsed}' does not have the form text:SOURCE_FILE,TARGET_FILE")
        return parsed.paths(split)
    return [parsed.path(split)] if parsed.kind == "tsv" else _matching_files(parsed, split)


def source_stamps(
    source: str, split: Split, languages: Sequence[str], tfds: Tfds | None, stamp: Callable
) -> list:
    """Returns a stamp of each file of a source, which show changes without reading all text.

    The default corpus comes from a Python wheel and has no such files. Its list has a single tuple
    with the SHA-256 of the wheel, 0 in place of a file size, and the version of the text
    extraction.
    """
    embedded = [(homeassistant.HOMEASSISTANT_SHA256, 0, homeassistant.FORMAT)]
    return stamp(source_files(source, split, languages, tfds)) or embedded


def source_fingerprint(
    source: str, split: Split, languages: tuple[str, str], tfds: Tfds | None = None
) -> str:
    """Computes a SHA-256 (hex) that identifies the pairs of a split without reading them.

    The hash covers the source type, the split, the languages, the field names or the name of the
    Python function, and the path, size and modification time of each file.
    """
    parsed = parse_texts(source, paired=True)
    states = source_stamps(source, split, languages, tfds, lambda files: [*map(state_stamp, files)])
    record = [parsed.kind, states, split, *languages, parsed.selection]
    return hashlib.sha256(json.dumps(record, default=vars).encode()).hexdigest()


def _aligned_lines(paths: Sequence[epath.Path]) -> Iterator[tuple[str, str]]:
    ended, counts = object(), [0, 0]
    for pair in itertools.zip_longest(*map(lines_of, paths), fillvalue=ended):
        counts = [n + (line is not ended) for n, line in zip(counts, pair, strict=True)]
        if counts[0] == counts[1]:
            yield pair
    _check_equal(paths, counts)
    if not counts[0]:
        raise UserError(f"{paths[0]} is empty: give a file with one sentence per line")


def _check_equal(paths: Sequence[epath.Path], counts: Sequence[int]) -> None:
    if len(set(counts)) > 1:
        raise UserError(f"{paths[0]} and {paths[1]} have {counts[0]} and {counts[1]} lines")


def documents(
    source: str, split: str = "train", tfds: Tfds | None = None, language: str | None = None
) -> Iterator[str]:
    """Reads the documents of a source that are not blank, in their order, one at a time.

    Args:
        source: name of the source in one of the forms of `DOCUMENT_FORMS`. From a TFDS dataset, the
            field `text` or `book_text` is read, or the only text field. Files that match a pattern
            are read in the order of their names.
        language: code of the language to read if the source is a TFDS dataset of translation pairs.
            Each text in this language is then a document.
    """
    parsed = parse_texts(source)
    if parsed.kind == "tfds":
        prepared = open_set(parsed.location, split, tfds)
        field = _text_field(parsed, prepared.text_fields, language)
        texts = (record[field] for _, record in prepared.rows([field], _CHUNK_RECORDS))
    elif parsed.is_embedded:
        texts = homeassistant.read_homeassistant_documents(parsed.location, split)
    elif parsed.kind == "python":
        texts = call_user_code(parsed.location, source_function(parsed, tfds), split)
    elif parsed.kind in RECORD_KINDS:
        records = file_records(parsed.kind, source_files(source, split))
        field = _text_field(parsed, records.fields)
        texts = (text for _, [text] in records.strings([field]))
    else:
        return _file_documents(parsed.kind, source_files(source, split))
    return _not_blank(texts, f"{source}, split {split!r}")


def _text_field(source: Source, names: Sequence[str], language: str | None = None) -> str:
    """Returns the field of the documents in records that have the fields `names`."""
    usual = [name for name in (language or "", *_TEXT_FIELDS) if name in names][:1]
    fields = source.fields or usual or names
    if len(fields) != 1:
        mend = ": give one as :FIELD" if source.kind in RECORD_KINDS else ""
        raise UserError(f"{source} has no single text field, but {join_names(names)}{mend}")
    return fields[0]


def parse_texts(source: str, paired: bool = False) -> Source:
    """Parses the name of a source of documents, or of translation pairs."""
    if paired:
        return parse_source(source, forms.PAIR_FORMS)
    return parse_source(source, forms.DOCUMENT_FORMS, "documents")


def _matching_files(source: Source, split: str) -> list[epath.Path]:
    """Returns the distinct files that match a source's patterns, sorted by pattern, then name."""
    paths: dict[epath.Path, None] = {}
    for pattern in map(str, source.paths(split)):
        with storage.clear_errors(f"cannot look for {pattern!r}", "check the path"):
            remote = storage.is_remote(pattern)
            found = tf.io.gfile.glob(pattern) if remote else glob.glob(pattern, recursive=True)
            matches = sorted(found)
            files = [path for path in map(storage.as_path, matches) if path.is_file()]
        if not matches:
            raise UserError(f"no file matches {pattern!r} of {source}: check the path")
        paths.update(dict.fromkeys(files))
    if not paths:
        raise UserError(f"{source} matches only folders: give files, as in {source.location}/*")
    return list(paths)


def _file_documents(kind: str, paths: list[epath.Path]) -> Iterator[str]:
    for path in paths:
        lines = lines_of(path)
        if kind == "text-lines":
            texts = lines
        elif kind == "text":
            texts = map("\n".join, [lines])
        else:  # groups of text lines and groups of blank lines; `_not_blank` drops the latter
            groups = itertools.groupby(lines, lambda line: bool(line.strip()))
            texts = ("\n".join(group) for _, group in groups)
        yield from _not_blank(texts, str(path))


def _not_blank(texts: Iterable[str], place: str) -> Iterator[str]:
    """Yields the texts that are not blank, or raises a UserError if all texts are blank."""
    text = None
    for text in filter(str.strip, texts):
        yield text
    if text is None:
        raise UserError(f"{place} contains no text: remove it, or give another source or field")
