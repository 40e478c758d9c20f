"""From documents of ids to rows of a fixed length, of running text: pure functions."""

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.mixture import MixedDocument
from macaron_tf.data.corpus.tokenized import tokenized_documents
from macaron_tf.special_ids import PAD
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows


class Rows(NamedTuple):
    """Packed rows, N of them.

    Args:
        token_ids: (N, L) int32, filled up with PAD.
        boundaries: (N,) int32: the column where the second half begins; L in a row of one.
        pair_label: (N,) int32: 0 where the halves stand as they do in the text, 1 where the second
            one comes from another document or the two are swapped; 0 in rows of one.
        owners: (N,) int64: number of the document that a row begins with.
    """

    token_ids: np.ndarray
    boundaries: np.ndarray
    pair_label: np.ndarray
    owners: np.ndarray


def pack_rows(
    documents: Sequence[TokenRows],
    length: int,
    cls_id: int,
    sep_id: int,
    cross_documents: bool,
    whole_sentences: bool = False,
) -> Rows:
    """Rows `[CLS] ids [SEP]` of running text; no id is lost.

    A row takes as many ids as fit, and a sentence that does not fit goes on in the next row. With
    whole sentences it takes as many of these as fit, so that it ends where a sentence ends; one
    that is longer than a row begins a row of its own and is cut. Across documents a row goes on
    with the next one behind a [SEP] (where just one column is left for it, it stays PAD).

    Liu et al. 2019 (RoBERTa), section 4.2: whole sentences are its FULL-SENTENCES across documents
    and its DOC-SENTENCES within them; the latter's batches, which it enlarges to the former's
    number of ids, are left at their number of rows.

    Args:
        documents: the sentences of each document.
        length: L, 3 or more.
        cls_id, sep_id: the special ids.
        cross_documents: let a row go on with the next document.
        whole_sentences: end rows at the ends of sentences.

    Returns:
        The rows, in the documents' order; a document without ids gives none.
    """
    room = length - 2
    parts: list[list[np.ndarray]] = []  # of each row: the ids of its documents
    owners: list[int] = []
    left = 0  # columns of the last row that are free
    for number, document in enumerate(documents):
        start = 0
        if cross_documents and left > 1:
            start = _reach(document, 0, left - 1, whole_sentences)  # a [SEP] goes before it
            if start:
                parts[-1].append(document.ids[:start])
                left -= start + 1
        while start < len(document.ids):
            end = _reach(document, start, room, whole_sentences)
            end = end if end > start else start + room  # a sentence longer than a row
            parts.append([document.ids[start:end]])
            owners.append(number)
            left = room - (end - start)
            start = end
    token_ids = np.full((len(parts), length), PAD, np.int32)
    for row, pieces in zip(token_ids, parts, strict=True):
        row[0] = cls_id
        column = 1
        for ids in pieces:
            row[column : column + len(ids)] = ids
            column += len(ids) + 1
            row[column - 1] = sep_id
    count = len(parts)
    return Rows(
        token_ids,
        np.full(count, length, np.int32),
        np.zeros(count, np.int32),
        np.array(owners, np.int64),
    )


def _reach(document: TokenRows, start: int, room: int, whole_sentences: bool) -> int:
    """Where a stretch from `start` ends: `start` itself where no whole sentence fits."""
    if not whole_sentences:
        return min(start + room, len(document.ids))
    ends = document.offsets
    return max(start, int(ends[np.searchsorted(ends, start + room, side="right") - 1]))


def pack_pairs(
    documents: Sequence[TokenRows],
    length: int,
    cls_id: int,
    sep_id: int,
    rng: np.random.Generator,
    pairs: str = "next_sentence",
    short_probability: float = 0.1,
    single_sentences: bool = False,
) -> Rows:
    """BERT's and ALBERT's pairs of segments.

    As BERT's released `create_pretraining_data` does it (Devlin et al. 2019, appendix A.2),
    sentences are taken up to a target length and cut in two at random. Of a pair that is too long
    the longer segment is trimmed first, at either end.

    "next_sentence", BERT's: in half of the pairs `b` is replaced by a stretch of another document
    and the sentences it replaces are used again. A single sentence has no second half, so that its
    `b` is always another document's: with short documents more than half of the pairs are random.

    "sentence_order", ALBERT's (Lan et al. 2020, section 3.1): half of the pairs are swapped, and
    all are consecutive segments of one document. A single sentence is cut inside, at random; one
    of a single id gives no pair. ALBERT's released code pairs it with another document instead, as
    a swapped pair, which tells topics apart and makes more than half of the labels 1.

    Args:
        documents: the sentences of each document; for "next_sentence" two or more that have any.
        length: L, 5 or more.
        cls_id, sep_id: the special ids.
        rng: decides targets, cuts, replacements and swaps.
        pairs: "next_sentence" or "sentence_order".
        short_probability: part of the rows whose target is not L - 3 ids but any from 2 on.
        single_sentences: halves of one sentence each (Liu et al. 2019, section 4.2,
            SENTENCE-PAIR): there are no targets.

    Returns:
        The rows, in the documents' order.

    Raises:
        ValueError: another kind of pairs, or fewer than two documents where another is drawn.
    """
    halves = {"next_sentence": _next_sentence, "sentence_order": _sentence_order}.get(pairs)
    if halves is None:
        raise ValueError(f"unknown pairs {pairs!r}")
    numbers = [number for number, document in enumerate(documents) if len(document.ids)]
    usable = [documents[number] for number in numbers]
    if pairs == "next_sentence" and len(usable) < 2:
        raise ValueError("next-sentence pairs need two documents or more")
    room = length - 3
    rows: list[tuple[np.ndarray, np.ndarray, int, int]] = []
    for place, number in enumerate(numbers):
        offsets = usable[place].offsets
        first, count = 0, len(offsets) - 1
        while first < count:
            if single_sentences:
                target, end = 1, min(first + 2, count)
            else:
                target = room
                if rng.random() < short_probability:
                    target = int(rng.integers(2, room + 1))
                # The sentences first to end - 1: the fewest that reach the target.
                reach = np.searchsorted(offsets, offsets[first] + target, side="left")
                end = min(max(int(reach), first + 1), count)
            a, b, label, first = halves(usable, place, first, end, target, rng)
            if len(a) and len(b):
                rows.append((*_trimmed(a, b, room, rng), label, number))
    return _rows_of_halves(rows, length, cls_id, sep_id)


def pack_translations(
    documents: Sequence[TokenRows], length: int, cls_id: int, sep_id: int
) -> Rows:
    """A row for each translation pair (Conneau and Lample 2019, section 3.4).

    Pairs that do not fit are left out, as XLM does with long sentences: trimmed halves would not
    translate each other.

    Args:
        documents: the two halves of each pair, as two sentences; what has fewer, because nothing
            of a half can be cut into ids, gives no row.
        length: L, 5 or more.
        cls_id, sep_id: the special ids.

    Returns:
        The rows, in the pairs' order.
    """
    rows = []
    for number, pair in enumerate(documents):
        if len(pair.offsets) == 3 and len(pair.ids) <= length - 3:
            middle = pair.offsets[1]
            rows.append((pair.ids[:middle], pair.ids[middle:], 0, number))
    return _rows_of_halves(rows, length, cls_id, sep_id)


def _next_sentence(
    usable: Sequence[TokenRows],
    place: int,
    first: int,
    end: int,
    target: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """The halves of sentences `first` to `end - 1`, the label, and the next pair's first sentence.

    Args:
        usable: all documents.
        place: number of the one in hand.
        first, end: its sentences.
        target: ids of the pair.
        rng: decides.
    """
    ids, offsets = usable[place].ids, usable[place].offsets
    cut = first + 1 if end - first < 2 else int(rng.integers(first + 1, end))
    a = ids[offsets[first] : offsets[cut]]
    if end - first < 2 or rng.random() < 0.5:
        other = int(rng.integers(len(usable) - 1))
        b = _stretch(usable[other + (other >= place)], target - len(a), rng)
        return a, b, 1, cut  # the sentences that b replaces come again
    return a, ids[offsets[cut] : offsets[end]], 0, end


def _sentence_order(usable, place, first, end, target, rng):
    """As `_next_sentence`, of one document."""
    ids, offsets = usable[place].ids, usable[place].offsets
    start, stop = int(offsets[first]), int(offsets[end])
    if end - first > 1:
        cut = int(offsets[rng.integers(first + 1, end)])
    else:
        cut = int(rng.integers(start + 1, max(stop, start + 2)))
    a, b = ids[start:cut], ids[cut:stop]
    return (b, a, 1, end) if rng.random() < 0.5 else (a, b, 0, end)


def _stretch(document: TokenRows, target: int, rng: np.random.Generator) -> np.ndarray:
    """Whole sentences from a random one on, until they reach the target; at least one."""
    offsets = document.offsets
    start = int(rng.integers(len(offsets) - 1))
    reach = int(np.searchsorted(offsets, offsets[start] + target, side="left"))
    return document.ids[offsets[start] : offsets[min(max(reach, start + 1), len(offsets) - 1)]]


def _trimmed(
    a: np.ndarray, b: np.ndarray, room: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The longer segment loses an id, at one end or the other, until both fit; of two equal ones
    the second. In closed form, for a segment may be a book without a full stop."""
    keep_a = min(len(a), max(room - len(b), (room + 1) // 2))
    kept = []
    for ids, keep in ((a, keep_a), (b, min(len(b), room - keep_a))):
        excess = len(ids) - keep
        front = int(rng.binomial(excess, 0.5)) if excess else 0
        kept.append(ids[front : front + keep])
    return kept[0], kept[1]


def _rows_of_halves(rows, length: int, cls_id: int, sep_id: int) -> Rows:
    """Rows of (a, b, label, owner)."""
    token_ids = np.full((len(rows), length), PAD, np.int32)
    boundaries = np.zeros(len(rows), np.int32)
    for number, (a, b, _, _) in enumerate(rows):
        boundary = len(a) + 2
        row = token_ids[number]
        row[0] = cls_id
        row[1 : boundary - 1] = a
        row[boundary - 1] = sep_id
        row[boundary : boundary + len(b)] = b
        row[boundary + len(b)] = sep_id
        boundaries[number] = boundary
    return Rows(
        token_ids,
        boundaries,
        np.array([label for _, _, label, _ in rows], np.int32),
        np.array([owner for _, _, _, owner in rows], np.int64),
    )


class CorpusDocument:
    """A document of ids.

    Args:
        sentences: its ids; of a translation pair the two halves.
        repeated: whether it has come before.
        held_out: whether all of it is for validation.
        languages: ids of its language and of its second half's, which is the same but in a
            translation pair; (0, 0) in a corpus that does not tell languages apart.
        room: ids of a row.

    Attributes:
        rows: how many rows of a training shard it is worth.
    """

    def __init__(
        self,
        sentences: TokenRows,
        repeated: bool,
        held_out: bool,
        languages: tuple[int, int],
        room: int,
    ):
        self.sentences = sentences
        self.repeated = repeated
        self.held_out = held_out
        self.languages = languages
        self.rows = 0 if held_out else -(-len(sentences.ids) // room)

    @property
    def is_translation(self) -> bool:
        """Whether it is a translation pair."""
        return self.languages[0] != self.languages[1]


def corpus_documents(
    mixture: Iterable[MixedDocument], vocabulary: PieceVocabulary, config: CorpusConfig
) -> Iterator[CorpusDocument]:
    """Cuts the documents of a mixture into ids.

    Args:
        mixture: texts; it is read some documents ahead.
        vocabulary: cuts them.
        config: says whether they are cut into sentences, and how long a row is.

    Yields:
        The documents.
    """
    splitter = config.sentence_splitter if config.cuts_sentences else None
    room = config.sequence_length - (3 if config.paired else 2)
    known = config.languages
    languages = [
        (known.index(source.languages[0]), known.index(source.languages[-1])) if known else (0, 0)
        for source in config.sources
    ]
    # Of the documents that the tokenizer has taken: it runs ahead, by its group of them.
    taken: collections.deque[MixedDocument] = collections.deque()

    def texts() -> Iterator[str | tuple[str, str]]:
        for document in mixture:
            taken.append(document)
            yield document.text

    for sentences in tokenized_documents(texts(), vocabulary, splitter):
        document = taken.popleft()
        yield CorpusDocument(
            sentences, document.repeated, document.held_out, languages[document.source], room
        )


def blocks(
    documents: Iterable[CorpusDocument], config: CorpusConfig
) -> Iterator[list[CorpusDocument]]:
    """Documents by the shard: each block ends with the document that fills it.

    A block of pairs has a document to train on, and of next-sentence pairs two, so that one is
    there to draw from: it is held back until its successor has them too, and takes what is left at
    the end.

    Args:
        documents: all of them, in their order.
        config: says what a shard is.

    Yields:
        The documents of a shard, those that are held out among them.
    """
    least = 2 if config.pairs == "next_sentence" else 1
    held: list[CorpusDocument] = []
    block: list[CorpusDocument] = []
    usable = rows = 0  # of the block: documents with rows, and these
    for document in documents:
        block.append(document)
        usable += document.rows > 0
        rows += document.rows
        if usable >= least and rows >= config.rows_per_shard:
            if not config.paired:
                yield block
            else:
                if held:
                    yield held
                held = block
            block, usable, rows = [], 0, 0
    if usable >= least:
        if held:
            yield held
        held = []
    if held or block:
        yield [*held, *block]


def running_rows(
    block: Sequence[CorpusDocument], config: CorpusConfig, cls_id: int, sep_id: int
) -> Rows:
    """The rows of a block's running text and translation pairs.

    Args:
        block: documents.
        config: says what fills a row.
        cls_id, sep_id: the special ids.

    Returns:
        The rows, in the order of the documents that they begin with; none holds two languages but
        those of a translation pair.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for number, document in enumerate(block):
        groups.setdefault(document.languages, []).append(number)
    ids = (config.sequence_length, cls_id, sep_id)
    packed: list[Rows] = []
    for members in groups.values():
        sentences = [block[number].sentences for number in members]
        if block[members[0]].is_translation:
            rows = pack_translations(sentences, *ids)
        else:
            rows = pack_rows(
                sentences, *ids, config.crosses_documents, whole_sentences=config.cuts_sentences
            )
        packed.append(rows._replace(owners=np.array(members)[rows.owners]))
    rows = Rows(*map(np.concatenate, zip(*packed, strict=True)))
    order = np.argsort(rows.owners, kind="stable")
    return Rows(*(column[order] for column in rows))
