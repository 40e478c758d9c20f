"""Tests of token rows, in memory and memory-mapped."""

import mmap

import numpy as np
import pytest

from macaron_tf.text.token_rows import TokenRows, fingerprint, map_array
from tests.toys.corpora import ROWS, lists


@pytest.fixture
def rows():
    return TokenRows.from_lists(ROWS, 100)


def test_selecting_and_ending(rows):
    assert lists(rows) == ROWS
    assert lists(rows.take(np.array([2, 1, 0]))) == ROWS[::-1]
    assert lists(rows.take(np.array([], np.int64))) == []
    assert lists(rows.with_end(4)) == [[*row, 4] for row in ROWS]


def test_mapped_rows_are_rows(rows, tmp_path):
    arrays = []
    for name, array in {"ids": rows.ids, "offsets": rows.offsets}.items():
        array.tofile(tmp_path / name)
        arrays.append(map_array(tmp_path / name, array.dtype))
        assert isinstance(arrays[-1].base, mmap.mmap)
    mapped, digests = TokenRows(*arrays), []
    for each in (rows, mapped, mapped):
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
