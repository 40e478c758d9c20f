"""Rows of running text: cut anywhere or at the ends of sentences, within documents or across."""

import itertools

import numpy as np
import pytest

from macaron_tf.data.corpus.packing import pack_rows
from macaron_tf.text.token_rows import TokenRows

CLS, SEP = 2, 3


def numbered(*lengths: int) -> list[TokenRows]:
    """Documents of one sentence each, of the ids 10, 11, 12, ... one after another."""
    return in_sentences(*([length] for length in lengths))


def in_sentences(*documents: list[int]) -> list[TokenRows]:
    """Documents of sentences of these lengths, of the ids 10, 11, 12, ... one after another."""
    bounds = 10 + np.cumsum([0, *map(sum, documents)])
    return [
        TokenRows(np.arange(a, b), np.unique(np.cumsum([0, *lengths])))
        for (a, b), lengths in zip(itertools.pairwise(bounds), documents, strict=True)
    ]


def test_rows_within_documents():
    rows = pack_rows(numbered(7, 0, 2, 6), 5, CLS, SEP, cross_documents=False)
    assert rows.token_ids.tolist() == [
        [2, 10, 11, 12, 3],
        [2, 13, 14, 15, 3],
        [2, 16, 3, 0, 0],
        [2, 17, 18, 3, 0],
        [2, 19, 20, 21, 3],
        [2, 22, 23, 24, 3],
    ]
    assert rows.owners.tolist() == [0, 0, 0, 2, 3, 3]
    assert rows.boundaries.tolist() == [5] * 6 and rows.pair_label.tolist() == [0] * 6


def test_rows_across_documents():
    rows = pack_rows(numbered(4, 1, 3, 1, 1, 9), 8, CLS, SEP, cross_documents=True)
    assert rows.token_ids.tolist() == [
        [2, 10, 11, 12, 13, 3, 14, 3],
        [2, 15, 16, 17, 3, 18, 3, 0],
        [2, 19, 3, 20, 21, 22, 23, 3],
        [2, 24, 25, 26, 27, 28, 3, 0],
    ]
    assert rows.owners.tolist() == [0, 2, 4, 5]


def test_full_sentences():
    documents = in_sentences([2, 3], [1, 4, 1], [3])
    rows = pack_rows(documents, 9, CLS, SEP, cross_documents=True, whole_sentences=True)
    assert rows.token_ids.tolist() == [
        [2, 10, 11, 12, 13, 14, 3, 15, 3],
        [2, 16, 17, 18, 19, 20, 3, 0, 0],
        [2, 21, 22, 23, 3, 0, 0, 0, 0],
    ]
    assert rows.owners.tolist() == [0, 1, 2]


def test_doc_sentences():
    documents = in_sentences([2, 3], [1, 4, 1], [3])
    rows = pack_rows(documents, 8, CLS, SEP, cross_documents=False, whole_sentences=True)
    assert rows.token_ids.tolist() == [
        [2, 10, 11, 12, 13, 14, 3, 0],
        [2, 15, 16, 17, 18, 19, 20, 3],
        [2, 21, 22, 23, 3, 0, 0, 0],
    ]


@pytest.mark.parametrize("cross_documents", [False, True])
def test_a_sentence_longer_than_a_row_is_cut(cross_documents):
    documents = in_sentences([2, 7, 1, 2])
    rows = pack_rows(documents, 6, CLS, SEP, cross_documents, whole_sentences=True)
    assert rows.token_ids.tolist() == [
        [2, 10, 11, 3, 0, 0],
        [2, 12, 13, 14, 15, 3],
        [2, 16, 17, 18, 19, 3],  # its rest, and the next sentence
        [2, 20, 21, 3, 0, 0],
    ]


@pytest.mark.parametrize("cross_documents", [False, True])
@pytest.mark.parametrize("length", [3, 17, 40])
def test_rows_of_sentences_end_with_them_and_lose_no_id(cross_documents, length):
    rng = np.random.default_rng(1)
    lengths = [rng.integers(1, 30, rng.integers(0, 9)).tolist() for _ in range(60)]
    documents = in_sentences(*lengths)
    rows = pack_rows(documents, length, CLS, SEP, cross_documents, whole_sentences=True)
    ids = [row[row >= 10] for row in rows.token_ids]
    assert np.concatenate(ids).tolist() == np.concatenate([d.ids for d in documents]).tolist()
    ends = 10 + np.cumsum([length for document in lengths for length in document]) - 1
    sentences = dict(zip(ends.tolist(), [n for d in lengths for n in d], strict=True))
    for row in ids:
        if row[-1] not in sentences:  # inside one that fills all of the row
            end = ends[np.searchsorted(ends, row[-1])]
            assert len(row) == length - 2 and sentences[int(end)] > length - 2
            assert row[0] > end - sentences[int(end)]
    documents_of = np.repeat(np.arange(60), [sum(d) for d in lengths])
    crossing = sum(len(set(documents_of[row - 10])) > 1 for row in ids)
    assert (crossing > 0) == (cross_documents and length > 3)
    if length == 40 and cross_documents:  # nothing that fits is left for the next row
        for row, following in itertools.pairwise(ids):
            sentence = sentences[int(ends[np.searchsorted(ends, following[0])])]
            borders = len(set(documents_of[row - 10])) - 1
            new = documents_of[following[0] - 10] != documents_of[row[-1] - 10]
            assert len(row) + borders + new + sentence > length - 2


@pytest.mark.parametrize("cross_documents", [False, True])
@pytest.mark.parametrize("length", [3, 4, 17])
def test_no_id_is_lost_and_rows_are_full(cross_documents, length):
    lengths = np.random.default_rng(0).integers(0, 40, 50)
    documents = numbered(*lengths)
    rows = pack_rows(documents, length, CLS, SEP, cross_documents)
    ids = rows.token_ids
    assert ids[ids >= 10].tolist() == np.concatenate([d.ids for d in documents]).tolist()
    assert (ids[:, 0] == CLS).all()
    real = (ids != 0).sum(axis=1)
    assert (ids[np.arange(len(ids)), real - 1] == SEP).all()
    if cross_documents:
        assert (real[:-1] >= length - 1).all()
    else:
        assert (real < length).sum() <= len(documents)


def test_no_document_gives_no_row():
    for cross_documents in (False, True):
        assert pack_rows([], 8, CLS, SEP, cross_documents).token_ids.shape == (0, 8)
        assert len(pack_rows(numbered(0, 0), 8, CLS, SEP, cross_documents).token_ids) == 0
