import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.objectives import MaskingConfig
from macaron_tf.objectives.corruption import (
    SENTINELS,
    SpanCorruptionConfig,
    SpanCorruptionObjective,
    hidden_spans,
)
from tests.objectives.toy import TEXT_VOCABULARY, rows_of, texts

EOS, FIRST = 3, TEXT_VOCABULARY.size


def joined(source, target) -> list[int]:
    """The text again: each sentinel of the source gives way to what follows it in the target."""
    spans, key = {}, None
    for one in target[target != 0][:-1]:
        if one >= FIRST:
            key = int(one)
            spans[key] = []
        else:
            spans[key].append(int(one))
    whole = []
    for one in source[source != 0][:-1]:
        whole += spans.pop(int(one)) if one >= FIRST else [int(one)]
    assert not spans
    return whole


def pairs(text, seed=1, **options):
    rows = tf.data.Dataset.from_tensors({"token_ids": rows_of(text)}).repeat()
    objective = SpanCorruptionObjective(**options)
    return objective.dataset(rows, MaskingConfig(), TEXT_VOCABULARY, seed)


def test_lengths_are_those_of_the_paper():
    config = SpanCorruptionConfig()
    assert config.text_length(512) == 568
    assert config.lengths(568) == (512, 114)
    assert config.counts(568) == (85, 28)
    assert [config.counts(n) for n in (0, 1, 2, 3, 20)] == [(0, 0), (0, 0), (1, 1), (1, 1), (3, 1)]


def test_full_rows_fit_exactly_and_nothing_is_lost():
    text = texts([568, 568], 568, first=10)
    [batch] = pairs(text).take(1)
    source, target = batch["source"].numpy(), batch["target"].numpy()
    assert source.shape == (2, 512) and target.shape == (2, 114)
    assert (source[:, -1] == EOS).all() and (target[:, -1] == EOS).all()
    assert (source[0] != source[1]).any()  # each row by itself
    small = texts([60, 23, 2, 1, 0], 60, first=5)
    small[small != 0] = 5 + small[small != 0] % 50
    [batch] = pairs(small).take(1)
    for row, length in enumerate([60, 23, 2]):
        source, target = batch["source"].numpy()[row], batch["target"].numpy()[row]
        assert joined(source, target) == small[row, :length].tolist()
        hidden, spans = SpanCorruptionConfig().counts(length)
        assert (source != 0).sum() == length - hidden + spans + 1
        assert (target != 0).sum() == hidden + spans + 1
        np.testing.assert_array_equal(
            target[(target >= FIRST)], FIRST + np.arange(spans), "in their order"
        )
        np.testing.assert_array_equal(source[source >= FIRST], FIRST + np.arange(spans))
    assert not batch["source"].numpy()[3:].any() and not batch["target"].numpy()[3:].any()


def test_every_partition_is_as_likely_on_100_000_draws():
    """4 hidden and 8 seen tokens in 3 spans: 3 x 21 ways, each of them 1 in 63."""
    config = SpanCorruptionConfig(rate=1 / 3, mean_span=4 / 3)
    assert config.counts(12) == (4, 3)
    text = tf.constant(texts([12] * 100_000, 12))
    hidden = hidden_spans(text, tf.constant([3, 4]), config).numpy()
    assert not hidden[:, 0].any() and hidden[:, -1].all()  # a span that is seen first

    def cuts(items):
        ends = itertools.combinations(range(1, items), 2)
        return [(a, b - a, items - b) for a, b in ends]

    known = {}
    for seen, gone in itertools.product(cuts(8), cuts(4)):
        row = np.concatenate([[False] * a + [True] * b for a, b in zip(seen, gone, strict=True)])
        known[row.tobytes()] = 0
    assert len(known) == 63
    for row in hidden:
        known[row.tobytes()] += 1
    assert scipy.stats.chisquare(list(known.values())).pvalue > 1e-4


def test_bad_input_is_named():
    with pytest.raises(
        UserError, match=r"corruption\.rate=1.0 must be a number above 0 and below 1"
    ):
        SpanCorruptionConfig(rate=1.0)
    with pytest.raises(UserError, match="mean_span=.* must be a number of at least 1"):
        SpanCorruptionConfig(mean_span=0.5)
    long = SpanCorruptionObjective(config=SpanCorruptionConfig(mean_span=1))
    with pytest.raises(UserError, match=f"there are {SENTINELS} sentinels"):
        long.corruption(TEXT_VOCABULARY, 1000)
    other = type(TEXT_VOCABULARY)(cls_id=101)
    rows = tf.data.Dataset.from_tensors({"token_ids": rows_of(texts([3], 3))})
    with pytest.raises(UserError, match="at ids 101 and 3, an encoder-decoder needs 2 and 3"):
        SpanCorruptionObjective().dataset(rows, MaskingConfig(), other, 0)
