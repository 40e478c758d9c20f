"""Tests of stores: joined parts, rows by number, and a writer that is killed while it joins."""

import itertools
import mmap

import numpy as np
import pytest

from macaron_tf.data.rows import Store, read_rows, read_shards
from macaron_tf.io.paths import as_path
from macaron_tf.text.token_rows import TokenRows, fingerprint, map_arrays
from tests import ram_paths
from tests.harness import refuses
from tests.toys.corpora import ROWS, lists


@pytest.mark.parametrize("parts", [(ROWS,), (ROWS[:1], [], ROWS[1:]), ([], ROWS), ([],)])
def test_parts_of_rows_of_any_length_are_joined(tmp_path, parts):
    store = Store(as_path(tmp_path))
    for part in parts:
        offsets, ids = TokenRows.from_lists(part, 100).arrays()
        store.add("part", {"some_offsets": offsets, "some_ids": ids})
        store.save()
    store = Store.open(store.folder).check()
    store.join("train")
    [shard] = store.shards["train"]
    assert list(store.shards) == ["train"] and shard.rows == sum(map(len, parts))
    arrays = map_arrays(tmp_path / shard.name, shard.arrays)
    rows = TokenRows(arrays["some_ids"], arrays["some_offsets"])
    assert lists(rows) == list(itertools.chain(*parts)) and isinstance(rows.ids.base, mmap.mmap)
    assert shard.sha256 == fingerprint(rows.arrays())


@pytest.mark.parametrize("remote", [False, True])
def test_rows_by_number(tmp_path, remote):
    store = Store(as_path(ram_paths.folder(tmp_path) if remote else tmp_path))
    bounds = (0, 5, 5, 8, 12)
    whole = {"ids": np.arange(60, dtype="<u2").reshape(12, 5), "label": np.arange(12)[:, None]}
    for first, end in itertools.pairwise(bounds):
        store.add("train", {name: column[first:end] for name, column in whole.items()})
    store.save()
    shards = Store.open(store.folder).check().shards["train"]
    assert [(shard.first, shard.rows) for shard in shards] == [(0, 5), (5, 0), (5, 3), (8, 4)]
    np.testing.assert_equal(read_shards(store.folder, shards), whole)
    rows = np.array([[11, 0, 7], [4, 5, 4]])
    found = read_rows(store.folder, shards, rows)
    np.testing.assert_equal(found, {name: column[rows] for name, column in whole.items()})
    (store.folder / shards[2].name).write_bytes(b"cut")
    for function, *arguments in (store.check,), (read_rows, store.folder, shards, rows):
        refuses("train-00002.rows is missing or damaged: remove", function, *arguments)
