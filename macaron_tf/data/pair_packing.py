"""From documents of ids to rows of two halves, `[CLS] a [SEP] b [SEP]`: pure functions."""

from collections.abc import Sequence

import numpy as np

from macaron_tf.data.cache import TokenRows
from macaron_tf.data.packing import Rows
from macaron_tf.special_ids import PAD


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
