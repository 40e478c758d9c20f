"""The documents of a corpus: reading and mixing the sources, and tokenizing."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.sources import homeassistant
from macaron_tf.data.sources.names import RECORDS, Source
from macaron_tf.data.sources.readers import (
    count_documents,
    documents,
    parse_documents,
    read_pairs,
    source_files,
)
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io.files import content_stamps
from macaron_tf.io.progress import Progress
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows
from macaron_tf.text.words import cut_lines, split_sentences

Item = TypeVar("Item")
Text = str | tuple[str, str]  # a document, or the two halves of a translation pair

# Characters that are tokenized in one call. A single article (5 KB) would leave the tokenizer
# waiting for Python. The ids of 1 MB of text take about as much memory.
_GROUP = 1 << 20
_RECORDS = 10_000  # records in a part of a TFDS split; 50 MB of Wikipedia


def open_source(
    source: CorpusSource, tfds: Tfds | None = None, max_documents: int | None = None
) -> Iterator[Text]:
    """Reads the documents or translation pairs of a source in their order.

    No text is blank, and each half of a translation pair is one line.

    Args:
        max_documents: read only this number of documents; None: all.
    """
    found: Iterable[Text]
    if source.is_translation:
        pairs = read_pairs(source.source, source.split, *source.languages, tfds)
        lines = ((" ".join(a.split()), " ".join(b.split())) for a, b in pairs)
        found = [pair for pair in lines if all(pair)]
        if not found:
            raise UserError(f"{source.source} holds no pair with text on both sides: give another")
    else:
        parsed = parse_documents(source.source)
        if parsed.is_embedded and source.language not in (None, parsed.place):
            raise UserError(
                f"{parsed} is not in {source.language!r}: give it the language {parsed.place!r}"
            )
        found = documents(source.source, source.split, tfds, source.language)
    return itertools.islice(found, max_documents)


def source_parts(source: CorpusSource, tfds: Tfds | None = None) -> list[CorpusSource]:
    """Splits a source into parts that can be read separately; their concatenation is the source.

    A part is a file of text, or `_RECORDS` records of a TFDS split. Other sources are one part.
    """
    if source.is_translation:
        return [source]
    parsed = parse_documents(source.source)
    if parsed.kind.startswith("text") or parsed.kind in RECORDS:
        paths = list(map(str, source_files(source.source, source.split)))
        if parsed.kind == "datasets":
            return [source]  # a single file is not a data set
        field = "".join(f":{name}" for name in parsed.fields)
        if not any(set(path) & set("*?[]{},") for path in paths):  # or it would be a pattern
            return [
                dataclasses.replace(source, source=f"{parsed.kind}:{path}{field}", split="train")
                for path in paths
            ]
    elif parsed.kind == "tfds" and source.split.isidentifier():
        count = count_documents(source.source, source.split, tfds)
        ends = [(start, min(start + _RECORDS, count)) for start in range(0, count, _RECORDS)]
        return [dataclasses.replace(source, split=f"{source.split}[{a}:{b}]") for a, b in ends]
    return [source]


def identify_source(source: CorpusSource, tfds: Tfds | None = None) -> list:
    """Identifies a source's content without reading it, by `content_stamps` of its files.

    For the built-in corpus it returns its SHA-256, 0 and the version of its extraction instead.
    """
    embedded = [(homeassistant.HOMEASSISTANT_SHA256, 0, homeassistant.FORMAT)]
    files = source_files(source.source, source.split, source.languages, tfds)
    return content_stamps(files) or embedded


def count_corpus(config: CorpusConfig, tfds: Tfds | None = None) -> int | None:
    """Number of documents of a corpus if it is known without reading, else None."""
    if config.repeats or config.has_translations:
        return None
    counts = [count_documents(s.source, s.split, tfds) for s in config.sources]
    return None if None in counts else sum(counts)


class MixedDocument(NamedTuple):
    """A document in the mixture of a corpus's sources.

    Attributes:
        text: its text, or the two halves of a translation pair.
        repeated: whether the document was read before.
        held_out: whether the whole document is for validation.
        source: number of its source.
    """

    text: Text
    repeated: bool
    held_out: bool
    source: int


def mixed_documents(
    readers: Sequence[Callable[[], Iterator[Text]]],
    weights: Sequence[float] | None,
    seed: int,
    hold_out_every: int | None = None,
) -> Iterator[MixedDocument]:
    """Draws documents from sources until every source has been read completely.

    With weights, each draw chooses a source with probability proportional to its weight. A source
    that ends early starts again: with 100 and 10,000 documents and weights 1 and 4, the first
    source is read 25 times. Without weights, each draw chooses one of the sources that have not
    ended, all equally likely, and no document is repeated.

    Args:
        readers: functions that open the sources; each source has at least one document.
        weights: weight of each source, or None.
        seed: determines the order, together with the numbers of documents but not their text.
        hold_out_every: one in this number of documents is held out each time it is read, and two of
            the first three, so that a small mixture has two. None: no document is held out.
    """
    rng = np.random.default_rng(seed)
    opened = [_readings(reader) for reader in readers]
    held_out: list[set[int]] = [set() for _ in readers]  # indices of each source's documents
    unread = set(range(len(readers)))
    count = 0  # distinct documents
    while unread:
        drawable = sorted(unread) if weights is None else list(range(len(readers)))
        chances = np.ones(len(drawable)) if weights is None else np.array(weights, np.float64)
        bounds = np.cumsum(chances) / chances.sum()
        number = drawable[int(np.searchsorted(bounds, rng.random(), side="right"))]
        text, index, repeated, ended = next(opened[number])
        if not repeated:
            if hold_out_every and (count % hold_out_every == 0 or count == 2):
                held_out[number].add(index)
            count += 1
        yield MixedDocument(text, repeated, index in held_out[number], number)
        if ended:
            unread.discard(number)


def _readings(reader: Callable[[], Iterator[Text]]) -> Iterator[tuple[Text, int, bool, bool]]:
    """Reads a source repeatedly: yields each text, its index, and whether it is a repetition.

    The fourth value says whether it is the last one; to know this, one document is read ahead.
    """
    for reading in itertools.count():
        texts = reader()
        following = next(texts)
        for index in itertools.count():
            text, following = following, next(texts, None)
            yield text, index, reading > 0, following is None
            if following is None:
                break


def corpus_mixture(
    config: CorpusConfig, tfds: Tfds | None = None, max_documents: int | None = None
) -> Iterator[MixedDocument]:
    """Draws the documents of a corpus. With `language_alpha` it first counts their lines.

    Args:
        max_documents: number of documents to read of each source; None: all.
    """
    readers = [_source_reader(source, tfds, max_documents) for source in config.sources]
    sizes = []
    if config.draws_languages:
        with Progress("counting lines", "documents") as progress:
            for reader in readers:
                lines = [count_lines(text) for text in progress.over(reader())]
                sizes.append((len(lines), sum(lines)))
    return draw_documents(config, readers, sizes)


def draw_documents(
    config: CorpusConfig,
    readers: Sequence[Callable[[], Iterator]],
    sizes: Sequence[tuple[int, int]],
) -> Iterator[MixedDocument]:
    """Mixes a corpus's documents, or other items in their place.

    Args:
        readers: functions that open the sources.
        sizes: numbers of documents and of lines of each source, needed if `draws_languages`.
    """
    weights = config.weights
    if config.draws_languages:
        weights = language_weights(config.sources, sizes, config.language_alpha)
    every = config.validation_every if config.paired else None
    return mixed_documents(readers, weights, config.seed, every)


def count_lines(text: Text) -> int:
    """Number of lines of a document; a translation pair counts as one."""
    return len(cut_lines(text)) if isinstance(text, str) else 1


def _source_reader(source, tfds, max_documents) -> Callable[[], Iterator[Text]]:
    """Returns a function that opens a source; sources that are read as a whole stay in memory."""
    opened = functools.partial(open_source, source, tfds, max_documents=max_documents)
    if not (source.is_translation or Source.of(source.source).is_embedded):
        return opened
    kept = functools.cache(lambda: list(opened()))
    return lambda: iter(kept())


def language_weights(
    sources: Sequence[CorpusSource], sizes: Sequence[tuple[int, int]], alpha: float
) -> list[float]:
    """Computes weights of sources that draw languages with q_i = p_i^alpha / sum_j p_j^alpha.

    In Conneau and Lample 2019, section 3.1, p_i is a language's share of all sentences, here of all
    lines, and q_i its share of the drawn ones. Since weights apply to documents, a source with long
    documents gets a smaller weight. Several sources of a language keep their shares within it. The
    translation pairs of two languages count as another language.

    Args:
        sizes: numbers of documents and of lines of each source.
        alpha: from 0, all languages equal, to 1, proportional to their size.
    """
    lines = collections.Counter()  # of each language
    for source, (_, count) in zip(sources, sizes, strict=True):
        lines[source.languages] += count
    powers = {language: (n / lines.total()) ** alpha for language, n in lines.items()}
    return [
        powers[source.languages] * documents / lines[source.languages]
        for source, (documents, _) in zip(sources, sizes, strict=True)
    ]


def tokenized_documents(
    texts: Iterable[Text], vocabulary: PieceVocabulary, splitter: str | None
) -> Iterator[TokenRows]:
    """Tokenizes documents: yields the ids of their sentences, none of which is empty.

    Small documents are tokenized together, large ones in parts. Each half of a translation pair is
    one sentence.

    Args:
        splitter: see `split_sentences`; None: each line is one sentence.
    """
    begun: list[tuple[np.ndarray, np.ndarray]] = []  # ids and lengths of a document's parts
    for group in _grouped(_lines(texts), lambda line: len(line[0])):
        lines, divisible, last = zip(*group, strict=True)
        sentences = [[line] for line in lines]
        if splitter is not None:
            found = zip(sentences, split_sentences(lines, splitter), divisible, strict=True)
            sentences = [cut if may_cut else whole for whole, cut, may_cut in found]
        rows = vocabulary.encode_rows(list(itertools.chain.from_iterable(sentences)))
        ends = np.cumsum(list(map(len, sentences)))[list(last)]  # where documents end
        ids, lengths = np.split(rows.ids, rows.offsets[ends]), np.split(rows.lengths, ends)
        for number, part in enumerate(zip(ids, lengths, strict=True), start=1):
            begun.append(part)
            if number < len(ids):  # the last part continues in the next group
                all_ids, all_lengths = map(np.concatenate, zip(*begun, strict=True))
                # `unique` drops sentences without ids, which have control characters only.
                yield TokenRows(all_ids, np.unique([0, *np.cumsum(all_lengths)]))
                begun = []


def _lines(texts: Iterable[Text]) -> Iterator[tuple[str, bool, bool]]:
    """Yields each line, whether it may be split into sentences, and whether its document ends."""
    for text in texts:
        is_text = isinstance(text, str)
        lines = (cut_lines(text) if is_text else text) or [""]
        for number, line in enumerate(lines, start=1):
            yield line, is_text, number == len(lines)


def _grouped(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Groups items into lists of about `_GROUP` characters."""
    group, characters = [], 0
    for item in items:
        group.append(item)
        characters += size(item)
        if characters >= _GROUP:
            yield group
            group, characters = [], 0
    if group:
        yield group


def chunked(documents: Iterable[MixedDocument]) -> Iterator[list[MixedDocument]]:
    """Groups whole documents into lists of about `_GROUP` characters, or of one larger document."""

    def size(document: MixedDocument) -> int:
        text = document.text
        return len(text) if isinstance(text, str) else sum(map(len, text))

    return _grouped(documents, size)


@dataclasses.dataclass(frozen=True, eq=False)
class CorpusDocument:
    """A tokenized document.

    Attributes:
        sentences: the token ids of each sentence, or of each half of a translation pair.
        repeated, held_out: see `MixedDocument`.
        languages: ids of the languages of its two halves, which differ in translation pairs only;
            (0, 0) if the corpus does not distinguish languages.
    """

    sentences: TokenRows
    repeated: bool
    held_out: bool
    languages: tuple[int, int]

    @property
    def size(self) -> int:
        return len(self.sentences.ids)


def corpus_documents(
    mixture: Iterable[MixedDocument], vocabulary: PieceVocabulary, config: CorpusConfig
) -> Iterator[CorpusDocument]:
    """Tokenizes the documents of a mixture; reads the mixture some documents ahead."""
    splitter = config.sentence_splitter if config.cuts_sentences else None
    known = config.languages
    languages = [
        (known.index(source.languages[0]), known.index(source.languages[-1])) if known else (0, 0)
        for source in config.sources
    ]
    mixture, texts = itertools.tee(mixture)
    cut = tokenized_documents((document.text for document in texts), vocabulary, splitter)
    for document, sentences in zip(mixture, cut, strict=True):
        yield CorpusDocument(
            sentences,
            document.repeated,
            document.held_out,
            languages[document.source],
        )


def blocks(
    documents: Iterable[CorpusDocument], config: CorpusConfig
) -> Iterator[list[CorpusDocument]]:
    """Groups documents, or items with `size` and `held_out`, into blocks, one for each shard.

    A block ends with the document that fills its shard. It has at least one document to train on,
    and for next-sentence pairs two, so that a pair can draw from the other. To ensure this, a block
    is yielded only when the next one has enough; the last block takes the remaining documents.
    """
    least = 2 if config.pairs == "next_sentence" else 1
    room = config.sequence_length - (3 if config.paired else 2)
    held: list[CorpusDocument] = []
    block: list[CorpusDocument] = []
    usable = rows = 0  # documents of the block that have rows, and these rows
    for document in documents:
        block.append(document)
        ids = 0 if document.held_out else document.size
        usable += ids > 0
        rows += -(-ids // room)
        if usable >= least and rows >= config.rows_per_shard:
            if held:
                yield held
            held, block, usable, rows = block, [], 0, 0
    if held and usable >= least:
        yield held
        held = []
    if held or block:
        yield [*held, *block]
