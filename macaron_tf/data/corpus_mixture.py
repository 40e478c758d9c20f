"""The documents of a corpus in their order, languages by the shares that they shall have."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from macaron_tf.data.corpus_config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus_progress import CorpusProgress
from macaron_tf.data.corpus_sources import source_reader
from macaron_tf.data.mixture import MixedDocument, mixed_documents
from macaron_tf.data.tokenized_documents import cut_lines


class SourceSize(NamedTuple):
    """How much a source holds.

    Args:
        documents: number of documents, or of translation pairs.
        lines: number of lines that are not blank; a translation pair counts as one.
    """

    documents: int
    lines: int


def corpus_mixture(
    config: CorpusConfig,
    data_dir: str | os.PathLike | None = None,
    max_documents: int | None = None,
    stream=None,
) -> Iterator[MixedDocument]:
    """Draws the documents of a corpus, with `language_alpha` after counting their lines.

    Args:
        config: the corpus.
        data_dir: as for `documents`.
        max_documents: the first so many of each source; None for all.
        stream: where the counting shows its progress; standard error if None.

    Returns:
        An iterator of documents.

    Raises:
        UserError: a source that cannot be read.
    """
    readers = [source_reader(source, data_dir, max_documents) for source in config.sources]
    weights = config.weights
    if config.language_alpha is not None:
        sizes = []
        with CorpusProgress(None, stream) as progress:
            for reader in readers:
                sizes.append(_size(reader(), progress))
        weights = language_weights(config.sources, sizes, config.language_alpha)
    every = config.validation_every if config.paired else None
    return mixed_documents(readers, weights, config.seed, every)


def language_weights(
    sources: Sequence[CorpusSource], sizes: Sequence[SourceSize], alpha: float
) -> list[float]:
    """The sources' weights that draw languages with q_i = p_i^alpha / sum p_j^alpha.

    Conneau and Lample 2019, section 3.1: p_i is a language's share of all sentences, which are
    lines here, and q_i becomes its share of the lines that are drawn: a weight is of documents,
    so that a source whose documents are long is drawn less often. Several sources of one language
    keep their shares in it. The translation pairs of two languages count as a language of their
    own, beside the monolingual text.

    Args:
        sources: with their languages.
        sizes: of each.
        alpha: from 0, all languages alike, to 1, as large as they are.

    Returns:
        A weight for each source.
    """
    lines: dict[tuple[str, ...], int] = {}
    for source, size in zip(sources, sizes, strict=True):
        lines[source.languages] = lines.get(source.languages, 0) + size.lines
    total = sum(lines.values())
    powers = {language: (count / total) ** alpha for language, count in lines.items()}
    return [
        powers[source.languages] * size.documents / lines[source.languages]
        for source, size in zip(sources, sizes, strict=True)
    ]


def _size(documents: Iterator[str | tuple[str, str]], progress: CorpusProgress) -> SourceSize:
    count = lines = 0
    for document in documents:
        count += 1
        lines += len(cut_lines(document)) if isinstance(document, str) else 1
        progress.counted()
    return SourceSize(count, lines)
