"""The documents of a corpus: read from its sources, mixed in one order, cut into token ids."""

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

# Characters that are tokenized at once: an article alone (5 KB) would leave the tokenizer waiting
# for Python, and the ids of a megabyte are another one.
_GROUP = 1 << 20
_RECORDS = 10_000  # of a part of a TFDS split: of Wikipedia 50 MB


def open_source(
    source: CorpusSource, tfds: Tfds | None = None, max_documents: int | None = None
) -> Iterator[Text]:
    """Reads a source in its order, or its first `max_documents`; see `read_pairs`.

    Texts are not blank, and each half of a translation pair is one line.
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
    """Cuts a source into parts that are read apart and make it up in this order: each file of text,
    and each `_RECORDS` records of a TFDS split. Other sources are one part."""
    if source.is_translation:
        return [source]
    parsed = parse_documents(source.source)
    if parsed.kind.startswith("text") or parsed.kind in RECORDS:
        paths = list(map(str, source_files(source.source, source.split)))
        if parsed.kind == "datasets":
            return [source]  # a file alone is no set
        field = "".join(f":{name}" for name in parsed.fields)
        if not any(set(path) & set("*?[]{},") for path in paths):  # a part's name is no pattern
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
    """Identifies the content of a source without reading it: `content_stamps` of its files.

    The embedded corpus has its SHA-256, 0 and the version of its cutting instead.
    """
    embedded = [(homeassistant.HOMEASSISTANT_SHA256, 0, homeassistant.FORMAT)]
    files = source_files(source.source, source.split, source.languages, tfds)
    return content_stamps(files) or embedded


def count_corpus(config: CorpusConfig, tfds: Tfds | None = None) -> int | None:
    """The number of a corpus's documents where it is known before reading, else None."""
    if config.repeats or config.has_translations:
        return None
    counts = [count_documents(s.source, s.split, tfds) for s in config.sources]
    return None if None in counts else sum(counts)


class MixedDocument(NamedTuple):
    """A document of a mixture.

    Attributes:
        text: its text, or the two halves of a translation pair.
        repeated: whether its source has been read to its end before.
        held_out: whether the whole document is for validation.
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
    """Draws documents until every source has been read to its end once.

    With weights, each draw takes a source with a probability proportional to its weight, and a
    source that ends before the others do begins again: of two sources of 100 and 10,000 documents
    and weights 1 and 4, the first is read 25 times. Without weights no document comes twice: each
    draw takes one of the sources that have not ended, all of them equally likely.

    Args:
        readers: open the sources; each gives at least one document.
        seed: decides the order, together with the numbers of documents; their text does not.
        hold_out_every: one document in so many is held out, at every reading; of the first three
            documents two are, that a small mixture has two. None holds out none.
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
    """Reads a source again and again: each text, its index, whether it came before, and whether it
    is the last one, for which the reading is one document ahead."""
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
    """Draws the documents of a corpus, with `language_alpha` alone after counting their lines.

    Args:
        max_documents: the first so many of each source; None for all.
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
    """The mixture of a corpus's documents, or of anything that stands for them.

    Args:
        readers: open the sources.
        sizes: numbers of documents and of lines of each source, which `draws_languages` needs.
    """
    weights = config.weights
    if config.draws_languages:
        weights = language_weights(config.sources, sizes, config.language_alpha)
    every = config.validation_every if config.paired else None
    return mixed_documents(readers, weights, config.seed, every)


def count_lines(text: Text) -> int:
    """The lines of a document; a translation pair is one."""
    return len(cut_lines(text)) if isinstance(text, str) else 1


def _source_reader(source, tfds, max_documents) -> Callable[[], Iterator[Text]]:
    """Opens a source at each call; one that is read as a whole is kept in memory."""
    opened = functools.partial(open_source, source, tfds, max_documents=max_documents)
    if not (source.is_translation or Source.of(source.source).is_embedded):
        return opened
    kept = functools.cache(lambda: list(opened()))
    return lambda: iter(kept())


def language_weights(
    sources: Sequence[CorpusSource], sizes: Sequence[tuple[int, int]], alpha: float
) -> list[float]:
    """Weights for sources that draw languages with q_i = p_i^alpha / sum_j p_j^alpha.

    Conneau and Lample 2019, section 3.1: p_i is a language's share of all sentences, which are
    lines here, and q_i becomes its share of the drawn lines. A weight counts documents, so that a
    source with long documents is drawn less often. Several sources of one language keep their
    shares in it. The translation pairs of two languages count as a language of their own, beside
    the monolingual text.

    Args:
        sizes: numbers of documents and of lines of each source.
        alpha: from 0, all languages alike, to 1, proportional to their size.
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
    """Cuts documents into lines, lines into sentences, and sentences into ids.

    Small documents are tokenized together, a large one in parts. Each half of a translation pair
    counts as one sentence, and so does each line where the `splitter` of `split_sentences` is None.
    No sentence is empty.
    """
    begun: list[tuple[np.ndarray, np.ndarray]] = []  # ids and lengths of a document's parts
    for group in _grouped(_lines(texts), lambda line: len(line[0])):
        lines, divisible, last = zip(*group, strict=True)
        sentences = [[line] for line in lines]
        if splitter is not None:
            found = zip(sentences, split_sentences(lines, splitter), divisible, strict=True)
            sentences = [cut if may_cut else whole for whole, cut, may_cut in found]
        rows = vocabulary.encode_rows(list(itertools.chain.from_iterable(sentences)))
        ends = np.cumsum(list(map(len, sentences)))[list(last)]  # of the documents that end here
        ids, lengths = np.split(rows.ids, rows.offsets[ends]), np.split(rows.lengths, ends)
        for number, part in enumerate(zip(ids, lengths, strict=True), start=1):
            begun.append(part)
            if number < len(ids):  # the last part goes on in the next group
                all_ids, all_lengths = map(np.concatenate, zip(*begun, strict=True))
                # A sentence without an id (control characters only) adds no offset.
                yield TokenRows(all_ids, np.unique([0, *np.cumsum(all_lengths)]))
                begun = []


def _lines(texts: Iterable[Text]) -> Iterator[tuple[str, bool, bool]]:
    """Each line, whether it may be cut into sentences, and whether it ends its document."""
    for text in texts:
        is_text = isinstance(text, str)
        lines = (cut_lines(text) if is_text else text) or [""]
        for number, line in enumerate(lines, start=1):
            yield line, is_text, number == len(lines)


def _grouped(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Lists of items with about `_GROUP` characters each."""
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
    """Lists of whole documents with about `_GROUP` characters each, or one larger document."""

    def size(document: MixedDocument) -> int:
        text = document.text
        return len(text) if isinstance(text, str) else sum(map(len, text))

    return _grouped(documents, size)


@dataclasses.dataclass(frozen=True, eq=False)
class CorpusDocument:
    """A document of ids.

    Attributes:
        sentences: its ids; of a translation pair the two halves.
        repeated, held_out: see `MixedDocument`.
        languages: ids of its language and of its second half's, which differ in a translation
            pair only; (0, 0) in a corpus that does not tell languages apart.
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
    """Cuts the documents of a mixture into ids; reads the mixture some documents ahead."""
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
    """Groups documents, or what stands for them with a `size` and `held_out`, by the shard: each
    block ends with the document that fills it.

    A block has a document to train on, and of next-sentence pairs two, so that one is there to draw
    from: it is held back until its successor has them too, and takes what is left at the end.
    """
    least = 2 if config.pairs == "next_sentence" else 1
    room = config.sequence_length - (3 if config.paired else 2)
    held: list[CorpusDocument] = []
    block: list[CorpusDocument] = []
    usable = rows = 0  # of the block: documents with rows, and their rows
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
