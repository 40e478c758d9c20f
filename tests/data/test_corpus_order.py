"""The order of rows: every start is the middle of the whole, files of any size."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.corpus.reading import RowOrder

ROWS = (5, 1, 7, 7, 3, 7, 2)  # of seven shards
TOTAL = sum(ROWS)
FIRST_ROWS = (0, 5, 6, 13, 20, 23, 30)


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> tuple[str, ...]:
    """Shards whose records count on from one to the next."""
    folder = tmp_path_factory.mktemp("shards")
    number, paths = 0, []
    for shard, rows in enumerate(ROWS):
        paths.append(str(folder / f"{shard}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for _ in range(rows):
                writer.write(str(number).encode())
                number += 1
    return tuple(paths)


def numbers(order, start, repeat, count=-1, size=2) -> list[int]:
    """The first rows of batches of two, which do not divide the shards."""
    batches = order.batches(start, size, tf.strings.to_number, repeat, drop_remainder=False)
    rows = batches.unbatch().take(count).as_numpy_iterator()
    found, places = [], []
    for number, row_number, epoch in rows:
        assert number == row_number  # the records are their own numbers
        found.append(int(number))
        places.append(int(epoch) * TOTAL)
    # A row's epoch is that of its place.
    assert places == [(start + place) // TOTAL * TOTAL for place in range(len(found))]
    return found


@pytest.mark.parametrize(
    ("shuffled_rows", "groups", "seed"),
    [(1, 7, (3, 0)), (16, 4, None), (16, 4, (3, 0)), (10_000, 1, (3, 0))],
)
def test_every_start_is_the_middle_of_the_whole(paths, shuffled_rows, groups, seed):
    order = RowOrder(paths, ROWS, FIRST_ROWS, shuffled_rows, seed)
    assert order.groups == groups
    whole = numbers(order, 0, True, 3 * TOTAL)
    epochs = [whole[i : i + TOTAL] for i in range(0, len(whole), TOTAL)]
    assert all(sorted(epoch) == list(range(TOTAL)) for epoch in epochs)
    if seed is None:
        assert all(epoch == list(range(TOTAL)) for epoch in epochs)
    else:
        assert len({tuple(epoch) for epoch in epochs}) == 3
    for start in (9, TOTAL + 17):
        assert numbers(order, start, True, TOTAL) == whole[start:][:TOTAL]
    assert numbers(order, 20, False) == whole[20:TOTAL]


def test_a_start_reads_one_group_only(paths, tmp_path):
    (wanted,) = numbers(RowOrder(paths, ROWS, FIRST_ROWS, 1, (1, 0)), 2 * TOTAL - 1, True, 1)
    copies = tuple(str(tmp_path / str(number)) for number in range(len(paths)))
    shard = int(np.searchsorted(np.cumsum(ROWS), wanted, side="right"))
    tf.io.gfile.copy(paths[shard], copies[shard])  # no other is there
    assert numbers(RowOrder(copies, ROWS, FIRST_ROWS, 1, (1, 0)), 2 * TOTAL - 1, False) == [wanted]


def test_no_python_runs_while_rows_are_read(paths):
    order = RowOrder(paths, ROWS, FIRST_ROWS, 10, (1, 0))
    dataset = order.batches(3, 4, tf.strings.to_number, repeat=True, drop_remainder=True)
    graph = dataset._as_serialized_graph().numpy()
    assert b"TFRecordDataset" in graph and b"PyFunc" not in graph


def test_all_orders_are_equally_likely(paths):
    """Of the first of three rows, over 600 seeds: 200 times each, three deviations at most."""
    firsts = collections.Counter()
    order = RowOrder(paths[4:5], ROWS[4:5], FIRST_ROWS[4:5], 10, (0, 0))
    batches = order.batches(0, 3, tf.strings.to_number, repeat=True, drop_remainder=True)
    for _, row_numbers, _ in batches.take(600):
        firsts[int(row_numbers[0])] += 1
    assert sum(firsts.values()) == 600
    assert all(abs(count - 200) < 35 for count in firsts.values()) and len(firsts) == 3
