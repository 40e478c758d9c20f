"""Readers of translation pairs and documents, and the stamps of their files."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence

from etils import epath

from macaron_tf.data.sources import homeassistant
from macaron_tf.data.sources import names as forms
from macaron_tf.data.sources.names import RECORD_KINDS, TEXT, HeldOut, Source, Split, parse_source
from macaron_tf.data.sources.records import files_of, not_blank, open_records
from macaron_tf.data.sources.tfds import Tfds, open_set
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of, state_stamp

_TEXT_FIELDS = ("text", "book_text")  # "text" in Wikipedia, "book_text" in PG-19


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
    records = open_records(parsed, split, tfds, languages)
    fields = _pair_fields(parsed, records.fields, languages)
    return (tuple(texts) for _, texts in records.strings(fields))


def _pair_fields(source: Source, names: Sequence[str], languages: tuple[str, str]) -> tuple:
    """Returns the two fields of a pair in records that have the fields `names`."""
    if source.fields or source.kind not in RECORD_KINDS or {*languages} <= {*names}:
        fields = source.fields or languages
    elif "translation" in names:
        fields = tuple(f"translation.{code}" for code in languages)
    else:
        wanted = f"neither fields {' and '.join(map(repr, languages))} nor a field 'translation'"
        raise UserError(f"{source} has {wanted}, only {forms.join_names(names)}: give :FIELD,FIELD")
    if len(fields) != 2:
        raise UserError(f"{source} names {len(fields)} fields, not FIELD,FIELD")
    return fields


def count_texts(
    source: str, split: Split, languages: Sequence[str] = (), tfds: Tfds | None = None
) -> int | None:
    """Counts the pairs or documents of a split, or returns `None` if that means to read them all.

    The pairs of text files are counted as lines, which may include lines without a pair.
    """
    parsed = parse_texts(source, bool(languages))
    if parsed.kind == "tfds":
        return open_set(parsed.location, split, tfds, tuple(languages) or None).count
    if parsed.kind not in ("text", "tsv") or isinstance(split, HeldOut):
        return None
    paths = source_files(source, split, languages, tfds)
    if not languages:
        return len(paths)
    return sum(1 for _ in lines_of(paths[0]))


def source_files(
    source: str, split: Split, languages: Sequence[str] = (), tfds: Tfds | None = None
) -> list[epath.Path]:
    """Returns the files of a source of pairs or, without `languages`, of documents.

    A changed file invalidates the caches of the source. A change in data files that a Python
    function reads does not.
    """
    parsed = parse_texts(source, bool(languages))
    return files_of(parsed, split, tfds, languages or TEXT)


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
    """Computes a SHA-256 (hex) of a split's source, languages and files' paths, sizes and times."""
    states = source_stamps(source, split, languages, tfds, lambda files: [*map(state_stamp, files)])
    record = [source, states, split, *languages]
    return hashlib.sha256(json.dumps(record, default=vars).encode()).hexdigest()


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
    records = open_records(parsed, split, tfds, TEXT)
    names = records.fields
    usual = [name for name in (language or "", *_TEXT_FIELDS) if name in names][:1]
    fields = parsed.fields or usual or names
    if len(fields) != 1:
        mend = ": give one as :FIELD" if parsed.kind in RECORD_KINDS else ""
        raise UserError(f"{source} has no single text field, but {forms.join_names(names)}{mend}")
    texts = (text for _, [text] in records.strings(fields))
    return not_blank(texts, f"{source}, split {split!r}")


def parse_texts(source: str, paired: bool = False) -> Source:
    """Parses the name of a source of documents, or of translation pairs."""
    known = (forms.PAIR_FORMS, "pairs") if paired else (forms.DOCUMENT_FORMS, "documents")
    return parse_source(source, *known)
