"""From documents of ids to rows of a fixed length: pure functions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from macaron_tf.data.cache import TokenRows
from macaron_tf.special_ids import PAD


class Rows(NamedTuple):
    """Packed rows, N of them.

    Args:
        token_ids: (N, L) int32, filled up with PAD.
        boundaries: (N,) int32: the column where segment 1 begins; L in a row of one segment.
        next_sentence: (N,) int32: 0 where segment 1 follows segment 0 in its document, 1 where it
            comes from another one (BERT's order); 0 in rows of one segment.
        owners: (N,) int64: number of the document that a row begins with.
    """

    token_ids: np.ndarray
    boundaries: np.ndarray
    next_sentence: np.ndarray
    owners: np.ndarray


def pack_rows(
    documents: Sequence[np.ndarray], length: int, cls_id: int, sep_id: int, cross_documents: bool
) -> Rows:
    """Rows `[CLS] ids [SEP]`, every one full but the last one of a document; no id is lost.

    A sentence that does not fit goes on in the next row. Across documents (RoBERTa's
    FULL-SENTENCES, Liu et al. 2019, section 4.2) only the very last row is not full, and a [SEP]
    stands between two documents of a row; where just one column is left for it, it stays PAD.

    Args:
        documents: the ids of each document, (n,).
        length: L, 3 or more.
        cls_id, sep_id: the special ids.
        cross_documents: let a row go on with the next document.

    Returns:
        The rows, in the documents' order; a document without ids gives none.
    """
    parts: list[list[np.ndarray]] = []  # of each row: the ids of its documents
    owners: list[int] = []
    left = 0  # columns of the last row that are free
    for number, ids in enumerate(documents):
        start = 0
        if cross_documents and left > 1 and len(ids):
            start = min(left - 1, len(ids))  # a [SEP] goes before it
            parts[-1].append(ids[:start])
            left -= start + 1
        for begin in range(start, len(ids), length - 2):
            parts.append([ids[begin : begin + length - 2]])
            owners.append(number)
            left = length - 2 - len(parts[-1][0])
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


def pack_pairs(
    documents: Sequence[TokenRows],
    length: int,
    cls_id: int,
    sep_id: int,
    rng: np.random.Generator,
    short_probability: float = 0.1,
) -> Rows:
    """BERT's sentence pairs `[CLS] a [SEP] b [SEP]`.

    Devlin et al. 2019, appendix A.2, as its released `create_pretraining_data` does it: sentences
    are taken up to a target length and cut in two at random; in half of the pairs `b` is replaced
    by a stretch of another document and the sentences it replaces are used again. A single
    sentence has no second half, so that its `b` is always another document's: with short
    documents more than half of the pairs are random ones. Of a pair that is too long the longer
    segment is trimmed first, at either end.

    Args:
        documents: the sentences of each document; two documents or more that have any.
        length: L, 5 or more.
        cls_id, sep_id: the special ids.
        rng: decides targets, cuts and replacements.
        short_probability: part of the rows whose target is not L - 3 ids but any from 2 on.

    Returns:
        The rows, in the documents' order.

    Raises:
        ValueError: fewer than two documents have a sentence.
    """
    usable = [number for number, document in enumerate(documents) if len(document.ids)]
    if len(usable) < 2:
        raise ValueError("next-sentence pairs need two documents or more")
    room = length - 3
    rows: list[tuple[np.ndarray, np.ndarray, int, int]] = []
    for place, number in enumerate(usable):
        ids, offsets = documents[number].ids, documents[number].offsets
        first, count = 0, len(offsets) - 1
        while first < count:
            target = room
            if rng.random() < short_probability:
                target = int(rng.integers(2, room + 1))
            # The sentences first to end - 1: the fewest that reach the target.
            reach = np.searchsorted(offsets, offsets[first] + target, side="left")
            end = min(max(int(reach), first + 1), count)
            cut = first + 1 if end - first < 2 else int(rng.integers(first + 1, end))
            a = ids[offsets[first] : offsets[cut]]
            is_random = end - first < 2 or rng.random() < 0.5
            if is_random:
                other = int(rng.integers(len(usable) - 1))
                b = _stretch(documents[usable[other + (other >= place)]], target - len(a), rng)
                first = cut  # the sentences that b replaces come again
            else:
                b = ids[offsets[cut] : offsets[end]]
                first = end
            rows.append((*_trimmed(a, b, room, rng), int(is_random), number))
    return _pair_rows(rows, length, cls_id, sep_id)


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


def _pair_rows(rows, length: int, cls_id: int, sep_id: int) -> Rows:
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
        np.array([is_random for _, _, is_random, _ in rows], np.int32),
        np.array([owner for _, _, _, owner in rows], np.int64),
    )
