"""Mixing documents of several sources."""

import collections

import numpy as np
import pytest

from macaron_tf.data.corpus.documents import mixed_documents


def reader(name: str, count: int):
    return lambda: (f"{name}{number}" for number in range(count))


def test_without_weights_every_document_comes_once():
    mixed = list(mixed_documents([reader("a", 30), reader("b", 3), reader("c", 1)], None, 0))
    texts = [document.text for document in mixed]
    assert sorted(texts) == sorted([*(f"a{n}" for n in range(30)), "b0", "b1", "b2", "c0"])
    assert not any(document.repeated for document in mixed)
    for name in "ab":  # each source in its own order
        own = [int(text[1:]) for text in texts if text[0] == name]
        assert own == sorted(own)
    assert texts[:3] != ["a0", "a1", "a2"] or texts.index("b0") < 20


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_are_shares_until_every_source_was_read(seed):
    counts = {"a": 20, "b": 1000}
    mixed = list(mixed_documents([reader(n, c) for n, c in counts.items()], [1.0, 4.0], seed))
    drawn = collections.Counter(document.text[0] for document in mixed)
    assert drawn["b"] == 1000  # the last to end ends the mixture
    assert abs(drawn["a"] - 250) < 60
    times = collections.Counter(document.text for document in mixed)
    assert {times[f"b{n}"] for n in range(1000)} == {1}
    assert max(times.values()) - min(times[f"a{n}"] for n in range(20)) <= 1
    seen = set()
    for document in mixed:
        assert document.text[0] == "ab"[document.source]
        assert document.repeated == (document.text in seen)
        seen.add(document.text)


def test_the_seed_decides():
    def order(seed):
        readers = [reader("a", 50), reader("b", 50)]
        return [document.text for document in mixed_documents(readers, [1, 1], seed)]

    assert order(3) == order(3) != order(4)


def test_one_source_keeps_its_order():
    for weights in (None, [2.0]):
        mixed = list(
            mixed_documents([reader("a", 5)], weights, np.random.default_rng(1).integers(9))
        )
        assert [document.text for document in mixed] == ["a0", "a1", "a2", "a3", "a4"]


@pytest.mark.parametrize("weights", [None, [1.0, 4.0]])
def test_a_document_that_is_held_out_stays_so(weights):
    readers = [reader("a", 20), reader("b", 300)]
    mixed = list(mixed_documents(readers, weights, 0, hold_out_every=50))
    sides = collections.defaultdict(set)
    for document in mixed:
        sides[document.text].add(document.held_out)
    assert len(sides) == 320 and all(len(found) == 1 for found in sides.values())
    first = list(sides)  # in the order in which they first come
    held_out = [number for number, text in enumerate(first) if True in sides[text]]
    assert held_out == [0, 2, 50, 100, 150, 200, 250, 300]
    plain = mixed_documents(readers, weights, 0)
    assert [d.text for d in plain] == [d.text for d in mixed]
    assert not any(d.held_out for d in mixed_documents(readers, weights, 0))
