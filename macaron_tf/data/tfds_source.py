"""Translation sets of TensorFlow Datasets, read from a prepared folder; fetched only on demand."""

import os

from macaron_tf.data.tfds_sets import first_line, listed, open_set, records_in_order
from macaron_tf.errors import UserError


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
