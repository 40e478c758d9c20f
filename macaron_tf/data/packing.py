"""From documents of ids to rows of a fixed length, of running text: pure functions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from macaron_tf.data.cache import TokenRows
from macaron_tf.special_ids import PAD


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
