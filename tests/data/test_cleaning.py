"""Limits on words, and the count of what they remove."""

import pytest

from macaron_tf.data import CleaningConfig, clean_pairs
from macaron_tf.errors import UserError

PAIRS = [
    ("a b c", "x y z"),
    ("", "x"),
    ("a", " \t "),
    ("a", "x"),
    ("a b c d", "x y"),
    ("a b c", "x y z"),
    ("a b c d e f", "u v w x y z"),
]


def test_each_reason_is_counted():
    config = CleaningConfig(min_length=2, max_length=5, max_ratio=1.5, deduplicate=True)
    kept, removed = clean_pairs(PAIRS, config)
    assert kept.tolist() == [0]
    assert removed == {"empty": 2, "too short": 1, "too long": 1, "ratio": 1, "duplicate": 1}


def test_defaults_remove_empty_pairs_only():
    kept, removed = clean_pairs(PAIRS, CleaningConfig())
    assert kept.tolist() == [0, 3, 4, 5, 6]
    assert sum(removed.values()) == removed["empty"] == 2


def test_the_ratio_itself_is_kept():
    kept, _ = clean_pairs([("a b c", "x y"), ("a b", "x y z")], CleaningConfig(max_ratio=1.5))
    assert kept.tolist() == [0, 1]


@pytest.mark.parametrize(
    "limits",
    [{"min_length": 0}, {"min_length": 9, "max_length": 8}, {"max_ratio": 0.5}, {"max_tokens": 1}],
)
def test_impossible_limits(limits):
    with pytest.raises(UserError, match=next(iter(limits))):
        CleaningConfig(**limits)
