"""Documents of a corpus: reading, mixture of several sources, and tokenization."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.sampler import in_parts
from macaron_tf.data.sources import readers
from macaron_tf.data.sources.names import Source
from macaron_tf.data.sources.readers import count_texts, parse_texts
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io.progress import Progress
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows
from macaron_tf.text.words import cut_lines, split_sentences

Text = str | tuple[str, str]  # a document, or the two halves of a translation pair

# Number of characters per tokenizer call. Calls with a single article (5 KB) would be slow, because
# Python then takes longer than the tokenizer. The ids of 1 MB of text take about 1 MB of memory.
_GROUP_CHARACTERS = 1 << 20
_RECORDS_PER_PART = 10_000  # number of records in a part of a TFDS split; 50 MB of Wikipedia


def open_source(
    source: CorpusSource, tfds: Tfds | None = None, max_documents: int | None = None
) -> Iterator[Text]:
    """Reads a source's documents or pairs in order, without blank ones; a half is one line."""
    if source.pair:
        pairs = readers.read_pairs(source.source, source.split, *source.pair, tfds)
        lines = ((" ".join(a.split()), " ".join(b.split())) for a, b in pairs)
        texts = [pair for pair in lines if all(pair)]
        if not texts:
            raise UserError(f"{source.source} contains no pair with text on both sides")
    else:
        parsed = parse_texts(source.source)
        if parsed.is_embedded and source.language not in (None, parsed.location):
            raise UserError(f"{parsed} is not in {source.language!r}")
        texts = readers.documents(source.source, source.split, tfds, source.language)
    return itertools.islice(texts, max_documents)


def source_parts(source: CorpusSource, tfds: Tfds | None = None) -> list[CorpusSource]:
    """Splits a source into consecutive parts that can be read in parallel.

    A part is a `CorpusSource` for one text, JSON Lines or Parquet file, or for up to 10,000 records
    of a TFDS split. Any other source is a single part, as are a slice of a TFDS split and a source
    with a file name that contains a wildcard character, a brace or a comma.
    """
    if source.pair:
        return [source]
    parsed = parse_texts(source.source)
    # A file inside the folder of a `datasets:` source cannot be opened as a dataset.
    if parsed.kind.startswith("text") or parsed.kind in ("jsonl", "parquet"):
        paths = list(map(str, readers.source_files(source.source, source.split)))
        field = "".join(f":{name}" for name in parsed.fields)
        # A path with a wildcard or a comma would be read as a pattern or a list.
        if not any(set(path) & set("*?[]{},") for path in paths):
            names = (f"{parsed.kind}:{path}{field}" for path in paths)
            return [dataclasses.replace(source, source=name, split="train") for name in names]
    elif parsed.kind == "tfds" and source.split.isidentifier():
        parts = in_parts(count_texts(source.source, source.split, (), tfds), _RECORDS_PER_PART)
        splits = (f"{source.split}[{part.start}:{part.stop}]" for part in parts)
        return [dataclasses.replace(source, split=split) for split in splits]
    return [source]


def count_corpus(config: CorpusConfig, tfds: Tfds | None = None) -> int | None:
    """Counts the documents; `None` means that the count is unknown before reading the sources."""
    if config.repeats or config.has_translations:
        return None
    counts = [count_texts(s.source, s.split, (), tfds) for s in config.sources]
    return None if None in counts else sum(counts)


class Document(NamedTuple):
    """A document that was drawn from one of the sources of a corpus.

    Attributes:
        text: text of the document, or the two halves of a translation pair. In a tokenized
            document, `TokenRows` with the ids of one sentence or one half per row.
    """

    text: Any
    repeated: bool
    held_out: bool
    source: int


def mixed_documents(
    readers: Sequence[Callable[[], Iterator[Text]]],
    weights: Sequence[float] | None,
    seed: int,
    hold_out_every: int | None = None,
) -> Iterator[Document]:
    """Draws documents from sources until every source has been read completely.

    With weights, the source of each document is drawn with a probability proportional to the weight
    of the source. A source that has been read completely starts again. For example, with 100 and
    10,000 documents and weights 1 and 4, the first source is read about 25 times. Without weights,
    the source of each document is drawn from the unfinished sources with equal probability, and no
    document is repeated.

    Args:
        readers: functions that open the sources. Each source has at least one document.
        seed: seed of the draws. The order depends on the seed, the weights and the number of
            documents in each source, but not on the text of the documents.
        hold_out_every: interval between held-out documents, counted without repetitions. Documents
            0 and 2 are always held out, so that even a small corpus has two held-out documents.
            `None` means that no document is held out.
    """
    rng = np.random.default_rng(seed)
    opened = [_read_repeatedly(reader) for reader in readers]
    held_out: list[set[int]] = [set() for _ in readers]  # document indices in each source
    unfinished = set(range(len(readers)))
    count = 0  # number of distinct documents so far
    while unfinished:
        equal = [index in unfinished for index in range(len(readers))]
        chances = np.array(equal if weights is None else weights, np.float64)
        bounds = np.cumsum(chances) / chances.sum()
        source_index = int(np.searchsorted(bounds, rng.random(), side="right"))
        text, index, repeated, ended = next(opened[source_index])
        if not repeated:
            if hold_out_every and (count % hold_out_every == 0 or count == 2):
                held_out[source_index].add(index)
            count += 1
        yield Document(text, repeated, index in held_out[source_index], source_index)
        if ended:
            unfinished.discard(source_index)


def _read_repeatedly(reader: Callable[[], Iterator[Text]]) -> Iterator[tuple]:
    """Reads a source forever: text, index, whether it was read before, whether it is the last."""
    for pass_index in itertools.count():
        texts = reader()
        following = next(texts)
        for index in itertools.count():
            text, following = following, next(texts, None)
            yield text, index, pass_index > 0, following is None
            if following is None:
                break


def corpus_mixture(
    config: CorpusConfig,
    readers: Sequence[Callable[[], Iterator]],
    lines: Callable[[Any], int] | None = None,
) -> Iterator[Document]:
    """Draws the documents of a corpus from its sources.

    If `config.draws_languages` is True, the call first reads all sources to count their lines.

    Args:
        lines: function that counts the lines of what the readers yield; `None` means
            `count_lines`.
    """
    weights = config.weights
    if config.draws_languages:
        sizes = []
        with Progress("counting lines", "documents") as progress:
            for reader in readers:
                counts = list(map(lines or count_lines, progress.over(reader())))
                sizes.append((len(counts), sum(counts)))
        weights = language_weights(config.sources, sizes, config.language_alpha)
    every = config.validation_every if config.holds_out_documents else None
    return mixed_documents(readers, weights, config.seed, every)


def count_lines(text: Text) -> int:
    """Counts the lines into which `cut_lines` splits a document; 1 for a translation pair."""
    return len(cut_lines(text)) if isinstance(text, str) else 1


def source_readers(
    config: CorpusConfig, tfds: Tfds | None = None, max_documents: int | None = None
) -> list[Callable[[], Iterator[Text]]]:
    """Returns a function for each source that opens the source."""

    def make(source: CorpusSource) -> Callable[[], Iterator[Text]]:
        read = functools.partial(open_source, source, tfds, max_documents=max_documents)
        if not (source.pair or Source.of(source.source).is_embedded):
            return read
        cached_texts = functools.cache(lambda: list(read()))
        return lambda: iter(cached_texts())

    return list(map(make, config.sources))


def language_weights(
    sources: Sequence[CorpusSource], sizes: Sequence[tuple[int, int]], alpha: float
) -> list[float]:
    """Computes source weights, so that the share of language i is p_i^alpha / sum_j p_j^alpha.

    In XLM (Conneau and Lample 2019, section 3.1), p_i is the share of language i in all sentences.
    This function uses the share in all lines, and the resulting share is the share in the drawn
    lines. Because weights apply to documents, a source with long documents gets a smaller weight.
    If a language has several sources, the language's weight is divided in proportion to document
    counts. The translation pairs of two languages count as a separate language.

    Args:
        alpha: exponent from 0 to 1. With 0 all languages are equally likely. With 1 a language is
            drawn in proportion to its line count.
    """
    lines = collections.Counter()  # number of lines of each language
    for source, (_, count) in zip(sources, sizes, strict=True):
        lines[source.languages] += count
    powers = {language: (n / lines.total()) ** alpha for language, n in lines.items()}
    return [
        powers[source.languages] * documents / lines[source.languages]
        for source, (documents, _) in zip(sources, sizes, strict=True)
    ]


def tokenized_documents(
    texts: Iterable[Text], vocabulary: PieceVocabulary, splitter: str | None
) -> list[TokenRows]:
    """Splits documents into sentences and tokenizes them.

    One call of the tokenizer takes about a megabyte of lines, from several documents or from a part
    of one. Each half of a translation pair is one sentence.

    Args:
        splitter: name of a splitter for `split_sentences`; `None` means that each line is one
            sentence.

    Returns:
        Token ids of each document, one sentence per row. Sentences without a token are left out.
    """
    texts = list(texts)
    documents = [cut_lines(text) if isinstance(text, str) else text for text in texts]
    is_split = [splitter and isinstance(text, str) for text in texts]
    lines = ((line, cut) for row, cut in zip(documents, is_split, strict=True) for line in row)
    rows, counts = [], [0]  # counts: number of sentences of each line
    for group in _grouped(lines, lambda item: len(item[0])):
        sentences = [[line] for line, _ in group]
        if any(cut for _, cut in group):
            pieces = split_sentences([line for line, _ in group], splitter)
            sentences = [pieces[i] if cut else sentences[i] for i, (_, cut) in enumerate(group)]
        rows.append(vocabulary.encode_rows(list(itertools.chain.from_iterable(sentences))))
        counts += map(len, sentences)
    joined = TokenRows.joined(rows, vocabulary.size)
    ends = np.cumsum(counts)[np.cumsum([0, *map(len, documents)])]  # in sentences, of the documents
    # `unique` drops sentences without ids, which have only control characters.
    parts = [np.unique(joined.offsets[a : b + 1]) for a, b in itertools.pairwise(ends)]
    return [TokenRows(joined.ids[part[0] : part[-1]], part - part[0]) for part in parts]


def _grouped(items: Iterable, size: Callable[[Any], int]) -> Iterator[list]:
    """Groups consecutive items into lists of about `_GROUP_CHARACTERS` characters each."""
    group, characters = [], 0
    for item in items:
        group.append(item)
        characters += size(item)
        if characters >= _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def chunked(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups whole documents into lists of about `_GROUP_CHARACTERS` characters each."""

    def size(document: Document) -> int:
        text = document.text
        return len(text) if isinstance(text, str) else sum(map(len, text))

    return _grouped(documents, size)


def blocks(documents: Iterable[Document], config: CorpusConfig) -> Iterator[list[Document]]:
    """Groups consecutive documents into blocks of about `rows_per_shard` rows.

    A block ends with the document that reaches `rows_per_shard` rows. Each block has at least one
    non-empty training document, if the corpus has any. For next-sentence pairs, each block has at
    least two such documents, so that a pair can take its second segment from another document. If
    too few documents remain at the end, these documents join the previous block. A block is
    therefore yielded only when the next block is complete, or at the end.

    """
    min_documents = 2 if config.pairs == "next_sentence" else 1
    capacity = config.sequence_length - (3 if config.paired else 2)
    previous: list[Document] = []
    block: list[Document] = []
    usable = rows = 0  # counts of non-empty training documents and of their rows in the block
    for document in documents:
        block.append(document)
        ids = 0 if document.held_out else document.text.size
        usable += ids > 0
        rows += -(-ids // capacity)
        if usable >= min_documents and rows >= config.rows_per_shard:
            if previous:
                yield previous
            previous, block, usable, rows = block, [], 0, 0
    if previous and usable >= min_documents:
        yield previous
        previous = []
    if previous or block:
        yield [*previous, *block]
