"""Rows of running text and BERT's sentence pairs."""

import itertools

import numpy as np
import pytest

from macaron_tf.data.cache import TokenRows
from macaron_tf.data.packing import pack_pairs, pack_rows

CLS, SEP = 2, 3


def numbered(*lengths: int) -> list[np.ndarray]:
    """Documents of the ids 10, 11, 12, ... one after another."""
    bounds = 10 + np.cumsum([0, *lengths])
    return [np.arange(a, b) for a, b in itertools.pairwise(bounds)]


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
    assert rows.boundaries.tolist() == [5] * 6 and rows.next_sentence.tolist() == [0] * 6


def test_rows_across_documents():
    rows = pack_rows(numbered(4, 1, 3, 1, 1, 9), 8, CLS, SEP, cross_documents=True)
    assert rows.token_ids.tolist() == [
        [2, 10, 11, 12, 13, 3, 14, 3],
        [2, 15, 16, 17, 3, 18, 3, 0],
        [2, 19, 3, 20, 21, 22, 23, 3],
        [2, 24, 25, 26, 27, 28, 3, 0],
    ]
    assert rows.owners.tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize("cross_documents", [False, True])
@pytest.mark.parametrize("length", [3, 4, 17])
def test_no_id_is_lost_and_rows_are_full(cross_documents, length):
    lengths = np.random.default_rng(0).integers(0, 40, 50)
    documents = numbered(*lengths)
    rows = pack_rows(documents, length, CLS, SEP, cross_documents)
    ids = rows.token_ids
    assert ids[ids >= 10].tolist() == np.concatenate(documents).tolist()
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


def book(rng, number: int, sentences: int) -> TokenRows:
    """Ids 1000 * number + 10 and up, in sentences of 1 to 20."""
    lengths = rng.integers(1, 21, sentences)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return TokenRows(np.arange(offsets[-1]) + 1000 * number + 10, offsets)


def halves(row: np.ndarray, boundary: int) -> tuple[np.ndarray, np.ndarray]:
    return row[1 : boundary - 1], row[boundary : np.flatnonzero(row == SEP)[-1]]


def test_pairs_are_berts():
    rng = np.random.default_rng(1)
    # Sentences of 5 ids and pairs of 61: chunks of a single sentence are rare.
    documents = [
        TokenRows(np.arange(500) + 1000 * n + 10, np.arange(0, 501, 5)) for n in range(1, 41)
    ]
    rows = pack_pairs(documents, 64, CLS, SEP, rng)
    assert len(rows.token_ids) > 400
    real = (rows.token_ids != 0).sum(axis=1)
    follows = np.zeros(len(real), bool)
    for number, (row, boundary) in enumerate(zip(rows.token_ids, rows.boundaries, strict=True)):
        assert row[0] == CLS and row[boundary - 1] == SEP and row[real[number] - 1] == SEP
        assert (row == SEP).sum() == 2 and (row == CLS).sum() == 1
        a, b = halves(row, boundary)
        assert len(a) and len(b)
        for half in (a, b):  # each a stretch of one document
            assert (np.diff(half) == 1).all()
        same = a[0] // 1000 == b[0] // 1000
        assert a[0] // 1000 == rows.owners[number] + 1
        assert same == (rows.next_sentence[number] == 0)
        if same:
            # Nothing but what trimming took, a sentence's worth, may lie between the halves.
            assert 0 < b[0] - a[-1] <= 5 + 1
            follows[number] = True
    assert abs(follows.mean() - 0.5) < 0.06
    short = (real < 60).mean()  # a target of 10% of the rows, and the ends of documents
    assert 0.05 < short < 0.25


def test_every_sentence_of_a_document_is_used():
    rng = np.random.default_rng(2)
    documents = [book(rng, n, 30) for n in range(1, 6)]
    rows = pack_pairs(documents, 512, CLS, SEP, rng, short_probability=0.0)
    found = set(rows.token_ids[rows.token_ids >= 10].tolist())
    assert found == set(np.concatenate([d.ids for d in documents]).tolist())


def test_the_longer_half_is_trimmed_at_either_end():
    one = TokenRows(np.arange(10, 1010), np.array([0, 1000]))  # a book without a full stop
    two = TokenRows(np.arange(5000, 5020), np.array([0, 10, 20]))
    fronts = set()
    for seed in range(20):
        rows = pack_pairs([one, two], 35, CLS, SEP, np.random.default_rng(seed), 0.0)
        a, b = halves(rows.token_ids[0], rows.boundaries[0])
        assert rows.owners[0] == 0 and rows.next_sentence[0] == 1  # it has no second half
        assert len(a) + len(b) == 32 and len(b) in (10, 16)
        assert a[0] > 10 and a[-1] < 1009
        fronts.add(int(a[0]))
    assert len(fronts) > 10


def test_the_same_seed_gives_the_same_pairs():
    def pairs(seed):
        documents = [book(np.random.default_rng(n), n, 20) for n in range(1, 4)]
        return pack_pairs(documents, 32, CLS, SEP, np.random.default_rng(seed)).token_ids

    assert np.array_equal(pairs(1), pairs(1))
    assert pairs(1).shape != pairs(2).shape or not np.array_equal(pairs(1), pairs(2))


def test_pairs_need_two_documents():
    empty = TokenRows(np.zeros(0, np.int64), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="two documents"):
        pack_pairs([book(np.random.default_rng(0), 1, 5), empty], 32, CLS, SEP, None)
