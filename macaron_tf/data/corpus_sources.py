"""The sources of a corpus, be they documents or translation pairs."""

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator

from macaron_tf.data import corpora, sources
from macaron_tf.data.corpus_config import CorpusSource
from macaron_tf.data.documents import (
    check_language,
    count_documents,
    document_files,
    documents,
    is_embedded,
)
from macaron_tf.data.file_stamps import content_stamps
from macaron_tf.errors import UserError


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
