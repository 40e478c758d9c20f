"""Tests of token rows, in memory and memory-mapped."""

import numpy as np
import pytest

from macaron_tf.text.token_rows import TokenRows
from tests.toys.corpora import ROWS, lists


@pytest.fixture
def rows():
    return TokenRows.from_lists(ROWS, 100)


def test_selecting_and_ending(rows):
    assert lists(rows) == ROWS
    assert lists(rows.take(np.array([2, 1, 0]))) == ROWS[::-1]
    assert lists(rows.take(np.array([], np.int64))) == []
    assert lists(rows.with_end(4)) == [[*row, 4] for row in ROWS]


def test_two_bytes_an_id_where_they_suffice():
    assert TokenRows.from_lists([[65535]], 65536).ids.dtype == np.uint16
    assert TokenRows.from_lists([[65536]], 65544).ids.tolist() == [65536]
