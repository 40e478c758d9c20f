"""Token rows, in one array and in several that are read as one."""

import numpy as np
import pytest

from macaron_tf.text.token_rows import JoinedArrays, TokenRows, fingerprint

ROWS = [[5, 6, 3], [3], [7, 8, 9, 10, 3]]


def lists(rows):
    ids = np.asarray(rows.ids)
    return [ids[a:b].tolist() for a, b in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)]


@pytest.fixture(params=["one", "several"])
def rows(request):
    if request.param == "one":
        return TokenRows.from_lists(ROWS, 100)
    parts = [ROWS[:1], [], ROWS[1:2], ROWS[2:], []]
    return TokenRows.joined([TokenRows.from_lists(part, 100) for part in parts])


def test_packing_selecting_and_padding(rows):
    assert lists(rows) == ROWS
    assert lists(rows.taken(np.array([2, 1, 0]))) == ROWS[::-1]
    assert lists(rows.taken(np.array([], np.int64))) == []
    assert lists(rows.ended(4)) == [[*row, 4] for row in ROWS]
    assert rows.lengths.tolist() == [3, 1, 5]
    padded = rows.padded(np.array([1, -1, 2, 0]), 6)
    assert padded.dtype == np.int32
    assert padded.tolist() == [
        [3, 0, 0, 0, 0, 0],
        [0] * 6,
        [7, 8, 9, 10, 3, 0],
        [5, 6, 3, 0, 0, 0],
    ]
    assert fingerprint(rows.arrays()) == fingerprint(TokenRows.from_lists(ROWS, 100).arrays())


def test_two_bytes_an_id_where_they_suffice():
    assert TokenRows.from_lists([[65535]], 65536).ids.dtype == np.uint16
    assert TokenRows.from_lists([[65536]], 65544).ids.tolist() == [65536]


def test_joined_arrays_are_an_array():
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 99, size, np.uint16) for size in (5, 0, 1, 40, 0)]
    joined, whole = JoinedArrays(parts), np.concatenate(parts)
    assert len(joined) == len(whole) and joined.dtype == np.uint16
    positions = rng.integers(0, len(whole), 200)
    assert np.array_equal(joined[positions], whole[positions])
    assert np.array_equal(np.asarray(joined), whole)
