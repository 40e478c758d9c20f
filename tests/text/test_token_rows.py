"""Tests of token rows in one part, and in several parts that are read as one."""

import mmap

import numpy as np
import pytest

from macaron_tf.data.token_shards import TokenizedPairs, load_tokens, save_tokens
from macaron_tf.text.token_rows import JoinedRows, TokenRows, fingerprint
from tests.toys.corpora import ROWS, lists


@pytest.fixture
def rows():
    return TokenRows.from_lists(ROWS, 100)


@pytest.fixture(params=["in memory", "mapped"])
def joined(request, tmp_path):
    parts = [TokenRows.from_lists(part, 100) for part in (ROWS[:1], [], ROWS[1:2], ROWS[2:], [])]
    if request.param == "mapped":
        for number, part in enumerate(parts):
            tokens = TokenizedPairs(part, part, [np.arange(len(part))], {})
            save_tokens(tmp_path / f"{number}", tokens)
        parts = [load_tokens(tmp_path / f"{number}").source for number in range(len(parts))]
        assert all(isinstance(part.ids.base, mmap.mmap) for part in parts)
    return JoinedRows(parts)


def test_selecting_and_ending(rows):
    assert lists(rows) == ROWS
    assert lists(rows.take(np.array([2, 1, 0]))) == ROWS[::-1]
    assert lists(rows.take(np.array([], np.int64))) == []
    assert lists(rows.with_end(4)) == [[*row, 4] for row in ROWS]


def test_joined_rows_are_rows(rows, joined):
    digests = []
    for each in (rows, joined, joined):
        assert len(each) == 3 and each.size == 9
        assert each.lengths.tolist() == [3, 1, 5]
        padded = each.padded(np.array([1, -1, 2, 0]), 6)
        assert padded.dtype == np.int32
        assert padded.tolist() == [
            [3, 0, 0, 0, 0, 0],
            [0] * 6,
            [7, 8, 9, 10, 3, 0],
            [5, 6, 3, 0, 0, 0],
        ]
        digests.append(fingerprint(each.arrays()))
    assert len(set(digests)) == 1


def test_two_bytes_an_id_where_they_suffice():
    assert TokenRows.from_lists([[65535]], 65536).ids.dtype == np.uint16
    assert TokenRows.from_lists([[65536]], 65544).ids.tolist() == [65536]
