"""Static shapes: the best lengths, the budget, each row exactly once."""

import itertools

import numpy as np
import pytest

from macaron_tf.data.batches import Buckets, choose_lengths
from macaron_tf.errors import UserError

LENGTHS = np.minimum(2 + np.random.default_rng(0).poisson(9, 5000) * 2, 60)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_lengths_are_optimal(count, multiple):
    lengths = np.random.default_rng(1).integers(2, 14, 40)
    chosen = choose_lengths(lengths, count, multiple)

    def cost(boundaries):
        return sum(min(b for b in boundaries if b >= length) for length in lengths)

    longest = -(-int(lengths.max()) // multiple) * multiple
    shorter = range(multiple, longest, multiple)
    best = min(cost((*some, longest)) for some in itertools.combinations(shorter, count - 1))
    assert cost(chosen) == best
    assert chosen[-1] == longest and len(chosen) <= count


def test_more_lengths_than_needed():
    assert choose_lengths(np.array([3, 3, 8]), 8, 4) == [4, 8]
    assert choose_lengths(np.array([5]), 8, 2) == [6]


def test_rows_fill_the_budget():
    buckets = Buckets([12, 30, 1000, 4096], 4096)
    assert buckets.shapes == ((336, 12), (136, 30), (4, 1000), (1, 4096))
    with pytest.raises(UserError, match="a batch of 50 tokens cannot hold a row of 51"):
        Buckets([10, 51], 50)


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
@pytest.mark.parametrize("rows", [1, 7, 300, 5000])
def test_each_row_once_in_static_shapes(rng, rows):
    lengths = LENGTHS[:rows]
    buckets = Buckets(choose_lengths(LENGTHS, 6, 2), 512)
    plan = buckets.plan(lengths, rng)
    assert len(plan) == buckets.steps(lengths)
    dealt = np.concatenate([batch.rows for batch in plan])
    assert np.array_equal(np.sort(dealt[dealt >= 0]), np.arange(rows))
    assert {(len(batch.rows), batch.length) for batch in plan} <= set(buckets.shapes)
    assert sum(bool((batch.rows < 0).any()) for batch in plan) <= 1
    for batch in plan:
        assert lengths[batch.rows[batch.rows >= 0]].max() <= batch.length


def test_little_padding():
    buckets = Buckets(choose_lengths(LENGTHS, 8, 2), 512)
    plan = buckets.plan(LENGTHS, np.random.default_rng(0))
    assert LENGTHS.sum() / sum(len(b.rows) * b.length for b in plan) > 0.9


def test_without_a_seed_lengths_ascend():
    plan = Buckets([10, 30, 60], 512).plan(LENGTHS, None)
    rows = np.concatenate([batch.rows for batch in plan])
    assert (np.diff(LENGTHS[rows[rows >= 0]]) >= 0).all()
