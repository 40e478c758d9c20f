"""Translation sets of TensorFlow Datasets, read from a prepared folder; fetched only on demand."""

import hashlib
import json
import os

from etils import epath

from macaron_tf.data.sources import files as text_files
from macaron_tf.data.sources import homeassistant as corpora
from macaron_tf.data.sources import tfds as tfds_sets
from macaron_tf.data.sources.tfds import first_line, listed, open_set, records_in_order
from macaron_tf.errors import UserError
from macaron_tf.io.files import state_stamp


def read(
    name: str,
    split: str,
    source_lang: str,
    target_lang: str,
    data_dir: str | os.PathLike | None,
    download: bool,
) -> list[tuple[str, str]]:
    """Reads a split of a translation set.

    Args:
        name: NAME[/CONFIG][:VERSION].
        split: a split or a slice of one.
        source_lang, target_lang: keys of the set's records.
        data_dir: TFDS's folder, or None.
        download: prepare the set when it is absent.

    Returns:
        (source, target) lines in the set's order.

    Raises:
        UserError: see `sources.read_pairs`.
    """
    found = open_set(name, split, data_dir, download, (source_lang, target_lang))
    _check_languages(name, found.features, source_lang, target_lang)
    try:
        records = records_in_order(found, split).as_numpy_iterator()
        pairs = [(_text(record[source_lang]), _text(record[target_lang])) for record in records]
    except Exception as error:  # a bad slice, a damaged or missing record file
        raise UserError(
            f"tfds:{name}: cannot read split {split!r} in {found.folder} ({first_line(error)}): "
            "check the split or prepare the set again"
        ) from error
    if not pairs:
        raise UserError(f"tfds:{name}: the split {split!r} holds no pair; take a larger one")
    return pairs


def _check_languages(name, features, source_lang, target_lang) -> None:
    keys = list(features) if hasattr(features, "keys") else []
    for language in (source_lang, target_lang):
        if language not in keys:
            raise UserError(
                f"tfds:{name} has no language {language!r}: its records hold {listed(keys)}"
            )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


# What a source may be, and what it is; `experiments.translate --help` prints the same lines.
FORMS = {
    "tfds:NAME[/CONFIG][:VERSION]": "a TensorFlow Datasets translation set, in --data-dir",
    "text:SOURCE_FILE,TARGET_FILE": "aligned lines, plain or .gz; {split} in a name is filled in",
    "tsv:FILE": "two tab-separated columns; .gz and {split} as above",
    "homeassistant[:LANG]": "the embedded default corpus, fetched with pip once",
}


def read_pairs(
    source: str,
    split: str,
    source_lang: str,
    target_lang: str,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
) -> list[tuple[str, str]]:
    """Reads a split of a parallel corpus.

    Args:
        source: one of
            `tfds:NAME[/CONFIG][:VERSION]`: a TFDS translation set (without CONFIG, the one of the
                two languages), already prepared in `data_dir` unless `download`;
            `text:SOURCE_FILE,TARGET_FILE`: aligned lines, plain or `.gz`; `{split}` in the names
                stands for the split, as in `text:data/{split}.en,data/{split}.de`; files without
                it have only the split "train", also called "all";
            `tsv:FILE`: two columns, source and target; `{split}` and `.gz` as above;
            `homeassistant[:LANG]`: the embedded default corpus, English with LANG (otherwise with
                the other of the two languages); splits train, validation, test.
        split: "train", "validation", "test" or another of the source's; TFDS slices
            such as "train[:10%]" too.
        source_lang: language code of the first of each pair.
        target_lang: language code of the second.
        data_dir: TFDS's folder; its own default when None.
        download: lets TFDS fetch and prepare the set. Never done otherwise: with no network TFDS
            tries for minutes.

    Returns:
        (source, target) lines in the source's order, without line ends, not cleaned.

    Raises:
        UserError: no such source, file, split or language; unequal, empty or malformed files; no
            network. The sentence names the place and what exists.
    """
    kind, rest = _parse(source)
    if kind == "tfds":
        return read(rest, split, source_lang, target_lang, data_dir, download)
    if kind == "text":
        return text_files.read_text(rest, split)
    if kind == "tsv":
        return text_files.read_tsv(rest, split)
    return corpora.read_homeassistant(rest or None, split, source_lang, target_lang)


def has_splits(source: str) -> bool:
    """Whether a source has splits by name: files without `{split}` in a name have only "all".

    Args:
        source: as for `read_pairs`.

    Raises:
        UserError: it is none of the forms.
    """
    kind, rest = _parse(source)
    return kind not in ("text", "tsv") or "{split}" in rest


def source_fingerprint(
    source: str,
    split: str,
    source_lang: str,
    target_lang: str,
    data_dir: str | os.PathLike | None = None,
) -> str:
    """Identifies what `read_pairs` would return, without reading it.

    Args:
        source, split, source_lang, target_lang, data_dir: as for `read_pairs`.

    Returns:
        SHA-256 (hex) over the specification and the name, size and time of change of each file (of
        the embedded corpus: its own SHA-256).

    Raises:
        UserError: as `read_pairs`, for what is missing.
    """
    kind, rest = _parse(source)
    files = pair_files(source, split, source_lang, target_lang, data_dir)
    embedded = [corpora.HOMEASSISTANT_SHA256, corpora.FORMAT, rest]
    identity = [state_stamp(path) for path in files] or embedded
    record = json.dumps([kind, identity, split, source_lang, target_lang])
    return hashlib.sha256(record.encode()).hexdigest()


def pair_files(
    source: str,
    split: str,
    source_lang: str,
    target_lang: str,
    data_dir: str | os.PathLike | None = None,
) -> list[epath.Path]:
    """The files that `read_pairs` would read; of the embedded corpus none.

    Args:
        source, split, source_lang, target_lang, data_dir: as for `read_pairs`.

    Raises:
        UserError: as `read_pairs`; a text file that is missing is named when it is read.
    """
    kind, rest = _parse(source)
    if kind == "tfds":
        return tfds_sets.set_files(rest, data_dir, (source_lang, target_lang))
    if kind == "text":
        return list(text_files.text_paths(rest, split))
    return [text_files.split_path("tsv", rest, split)] if kind == "tsv" else []


def _parse(source: str) -> tuple[str, str]:
    kind, _, rest = source.partition(":")
    if kind == "homeassistant" or (kind in ("tfds", "text", "tsv") and rest):
        return kind, rest
    if kind in ("tfds", "text", "tsv"):
        raise UserError(f"the source {source!r} names nothing after {kind}: give {_listed_forms()}")
    raise UserError(f"unknown source {source!r}: give {_listed_forms()}")


def _listed_forms() -> str:
    *forms, last = FORMS
    return f"{', '.join(forms)} or {last}"
