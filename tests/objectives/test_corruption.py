"""Tests of corrupted text: T5's span corruption with sentinels, and BART's denoising."""

import collections
import itertools
import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.decoding import BackTranslationObjective
from macaron_tf.objectives import corruption, denoising
from tests.harness import refuses
from tests.toys import objectives as toy

EOS, FIRST = 3, toy.VOCABULARY.size


def pair_of(objective, rows, vocabulary=toy.VOCABULARY):
    """Returns the encoder inputs and decoder targets that an objective makes from rows.

    Each row is `[CLS] text [SEP]`.
    """
    dataset = tf.data.Dataset.from_tensors({"token_ids": rows})
    [batch] = objective.dataset(dataset, vocabulary, seed=1)
    return batch["source"].numpy(), batch["target"].numpy()


def joined(source, target) -> list[int]:
    """Restores a text from T5's encoder input `source` and decoder target `target`.

    Each sentinel in `source` is replaced by the span after that sentinel in `target`.
    """
    source, target = (ids[ids != 0][:-1] for ids in (source, target))  # without EOS
    before, *spans = np.split(target, np.flatnonzero(target >= FIRST))
    spans = {span[0]: span[1:] for span in spans}
    whole = [spans.pop(one, [one]) for one in source]
    assert not len(before) and not spans
    return [*itertools.chain(*whole)]


def assert_equally_likely(outcomes, number: int) -> None:
    """Checks that there are `number` different outcomes, all equally likely."""
    counts = collections.Counter(outcomes).values()
    assert len(counts) == number and scipy.stats.chisquare([*counts]).pvalue > 1e-4


def test_lengths_are_those_of_the_paper():
    config = corruption.SpanCorruptionObjective()
    assert config.text_length(512) == 568
    assert config.lengths(568) == (512, 114)
    assert config.counts(568) == (85, 28)
    assert [config.counts(n) for n in (0, 1, 2, 3, 20)] == [(0, 0), (0, 0), (1, 1), (1, 1), (3, 1)]


def test_full_rows_fit_exactly_and_nothing_is_lost():
    text = toy.texts([568, 568], 568, first=10)
    source, target = pair_of(corruption.SpanCorruptionObjective(), toy.rows_of(text))
    assert source.shape == (2, 512) and target.shape == (2, 114)
    assert (source[:, -1] == EOS).all() and (target[:, -1] == EOS).all()
    assert (source[0] != source[1]).any()  # rows are independent
    small = toy.texts([60, 23, 2, 1, 0], 60, first=5)
    small[small != 0] = 5 + small[small != 0] % 50
    sources, targets = pair_of(corruption.SpanCorruptionObjective(), toy.rows_of(small))
    for source, target, text, length in zip(sources, targets, small, [60, 23, 2], strict=False):
        assert joined(source, target) == text[:length].tolist()
        hidden, spans = corruption.SpanCorruptionObjective().counts(length)
        assert (source != 0).sum() == length - hidden + spans + 1
        assert (target != 0).sum() == hidden + spans + 1
        for ids in (target, source):
            np.testing.assert_array_equal(ids[ids >= FIRST], FIRST + np.arange(spans))
    assert not sources[3:].any() and not targets[3:].any()


def test_every_partition_is_as_likely_on_100_000_draws():
    """With 4 masked and 8 visible tokens in 3 spans, all 63 partitions are equally likely."""
    config = corruption.SpanCorruptionObjective(rate=1 / 3, mean_span=4 / 3)
    assert config.counts(12) == (4, 3)
    text = tf.constant(toy.texts([12] * 100_000, 12))
    hidden = config.hidden_spans(text, tf.constant([3, 4]), 0).numpy()
    assert not hidden[:, 0].any() and hidden[:, -1].all()  # a visible span comes first

    def cuts(items):
        ends = itertools.combinations(range(1, items), 2)
        return [(a, b - a, items - b) for a, b in ends]

    known = {
        np.repeat([False, True] * 3, np.ravel([*zip(seen, gone, strict=True)])).tobytes()
        for seen, gone in itertools.product(cuts(8), cuts(4))
    }
    assert {*map(bytes, hidden)} == known
    assert_equally_likely(map(bytes, hidden), 63)


# The paper's table 3: "Thank you for inviting me to your party last week ." as 10, 11, ... 20.
X, Y, Z, M = FIRST, FIRST + 1, FIRST + 2, FIRST
WHOLE, LAST = [*range(10, 21)], [16, 17, 18]
PAPER = [
    ("prefix_lm", [4, 5, 6, 7, 8, 9, 10], WHOLE[:4], WHOLE[4:]),
    ("mass_style", [2, 3, 8], [10, 11, M, M, 14, 15, 16, 17, M, 19, 20], WHOLE),
    ("iid_spans", [2, 3, 8], [10, 11, X, *WHOLE[4:8], Y, 19, 20], [X, 12, 13, Y, 18, Z]),
    ("iid_spans", [2, 3, 4, 6, 7, 8], [10, 11, X, 15, Y, 19, 20], [X, 12, 13, 14, Y, *LAST, Z]),
    ("iid_spans", [0, 10], [X, *WHOLE[1:10], Y], [X, 10, Y, 20]),  # the text begins hidden
    ("drop_tokens", [2, 3, 8], [10, 11, *WHOLE[4:8], 19, 20], [12, 13, 18]),
]


@pytest.mark.parametrize("kind, at, source, target", PAPER)
def test_sources_and_targets_are_those_of_the_papers_table(kind, at, source, target, monkeypatch):
    hidden = np.isin(np.arange(11), at)[None]
    objective_class = corruption.SpanCorruptionObjective
    monkeypatch.setattr(objective_class, "hidden_tokens", lambda *_: tf.constant(hidden))
    objective = objective_class(kind=kind, rate=len(at) / 11)
    found = pair_of(objective, toy.rows_of(toy.texts([11], 11)))
    for [ids], wanted in zip(found, (source, target), strict=True):
        np.testing.assert_array_equal(ids[ids != 0], [*wanted, EOS])


KINDS = ("iid_spans", "drop_tokens", "bert_style", "mass_style", "deshuffling", "prefix_lm")


@pytest.mark.parametrize("kind", KINDS)
def test_each_objective_draws_as_its_formula_says(kind):
    """Each objective corrupts texts with the probabilities of its definition.

    Short texts fit into their rows.
    """
    lengths, many = [12, 3, 2, 1, 0], 20_000
    text = toy.texts([12] * many + lengths, 12)
    objective = corruption.SpanCorruptionObjective(kind=kind, rate=0.25)
    sources, targets = pair_of(objective, toy.rows_of(text))
    assert (sources.shape[1], targets.shape[1]) == objective.lengths(12)
    assert not sources[-2:].any() and not targets[-2:].any()
    for source, target in zip(sources[-5:-2], targets[-5:-2], strict=True):
        assert source[source != 0][-1] == target[target != 0][-1] == EOS
    sources, targets = sources[:many], targets[:many]
    if kind in ("bert_style", "mass_style", "deshuffling"):
        assert (targets == [*range(10, 22), EOS]).all()
    if kind == "prefix_lm":  # cuts at 1 to 11 are equally likely
        assert scipy.stats.chisquare(np.bincount((sources != 0).sum(1))[2:]).pvalue > 1e-4
        whole = [[*s[s != 0][:-1], *t[t != 0]] for s, t in zip(sources, targets, strict=True)]
        assert (np.array(whole) == [*range(10, 22), EOS]).all()
        return
    if kind == "deshuffling":
        assert (np.sort(sources[:, :12]) == np.arange(10, 22)).all()
        for column in range(12):
            assert_equally_likely(sources[:, column], 12)
        return
    if kind == "bert_style":
        # A random token equals the hidden token once in the toy's 55 tokens.
        masks, text = (sources == M).sum(), np.arange(10, 22)
        other = ((sources[:, :12] != text) & (sources[:, :12] != M)).sum()
        assert scipy.stats.binomtest(int(masks), 3 * many, 0.9).pvalue > 1e-4
        assert scipy.stats.binomtest(int(other), 3 * many, 0.1 * 54 / 55).pvalue > 1e-4
        assert set(np.unique(sources)) == {EOS, M, *range(5, 60)}
        return
    said = targets if kind != "mass_style" else np.where(sources == M, targets, 0)
    hidden = np.array([row[(row > EOS) & (row < FIRST)] for row in said])  # `(N, 3)`
    assert_equally_likely(map(bytes, hidden), math.comb(12, 3))
    if kind == "iid_spans":
        for source, target in zip(sources[:500], targets[:500], strict=True):
            last = target[target != 0][-2]  # a sentinel unless the text ends hidden
            target = np.where(target == last, 0, target) if last >= FIRST else target
            assert joined(source, target) == [*range(10, 22)]


def test_bad_input_is_named():
    dense = corruption.SpanCorruptionObjective(kind="iid_spans", rate=0.5)
    refuses("sentinels: lower objective.rate", dense.corruption, toy.VOCABULARY, 300)
    long = corruption.SpanCorruptionObjective(mean_span=1)
    refuses(f"of {corruption.SENTINELS} sentinels: raise", long.corruption, toy.VOCABULARY, 1000)


def test_lengths_follow_poissons_law_until_the_budget_is_spent():
    budget = 77  # of 256 words
    budgets = tf.fill([4_400], budget)
    lengths, drawn = denoising.draw_spans(budgets, tf.constant([1, 2]), 3.0, budget)
    lengths, drawn = lengths.numpy(), drawn.numpy()
    assert (lengths.sum(axis=1) == budget).all() and not lengths[~drawn].any()
    law = scipy.stats.poisson(3).pmf(np.arange(20))
    assert drawn.sum() > 100_000
    early = np.bincount(lengths[:, :5].ravel(), minlength=20)[:12]  # never cut by the budget
    assert scipy.stats.chisquare(early, early.sum() * law[:12] / law[:12].sum()).pvalue > 1e-4


def test_every_order_of_spans_and_words_is_as_likely():
    """With 7 words and masked spans of 1 and 2 words, all 20 placements are equally likely."""
    text = toy.texts([7] * 100_000, 8)
    starts = tf.ones(text.shape, tf.bool)
    noise = denoising.DenoisingConfig(infilling=3 / 7)
    special = toy.VOCABULARY.special
    out = denoising.infill(tf.constant(text), starts, tf.constant([5, 6]), noise, special).numpy()
    found = []
    for row in out:
        slots = np.flatnonzero(row == toy.MASK)
        if len(slots) == 2 and slots[1] > slots[0] + 1:
            kept = [9, *row[row > toy.MASK], 17]  # words 10 to 16, and a border on either side
            gaps = [b - a - 1 for a, b in itertools.pairwise(kept) if b - a > 1]
            if sorted(gaps) == [1, 2]:
                found.append((*slots, *gaps))
    assert len(found) > 5_000
    assert_equally_likely(found, 20)


def words_in(ids) -> list[tuple]:
    """Splits ids into words, without [MASK] ids.

    An id below 45, or an id after [MASK], begins a word.
    """
    starts = np.flatnonzero((ids < 45) | (np.r_[toy.MASK, ids[:-1]] == toy.MASK))
    words = [tuple(word) for word in np.split(ids, starts[1:])]
    return [word for word in words if word != (toy.MASK,)]


def test_spans_are_of_whole_words_behind_one_mask_each():
    rows = toy.text_rows(200, 66)
    rows[0, 5:] = 0
    rows[0, 4] = 3
    objective = denoising.DenoisingObjective(shuffling=0)
    sources, targets = pair_of(objective, rows, toy.WORD_VOCABULARY)
    assert sources.shape == targets.shape == (200, 65)
    hidden_words = masks = 0
    for row, source, target in zip(rows, sources, targets, strict=True):
        text = row[row != 0][1:-1]
        np.testing.assert_array_equal(target[target != 0], [*text, EOS])
        assert source[source != 0][-1] == EOS
        words, kept = words_in(text), words_in(source[source != 0][:-1])
        assert len(words) - len(kept) == math.ceil(0.3 * len(words))
        rest = iter(words)
        assert all(word in rest for word in kept)  # whole words, in order
        masks += (source == toy.MASK).sum()
        hidden_words += len(words) - len(kept)
    assert 2.3 < hidden_words / masks < 3.1  # truncated at a budget of about 14 words


def test_every_order_of_sentences_is_as_likely():
    sentences = [(10, 11, toy.STOP), (12, toy.STOP, toy.STOP), (13, 14, 15, toy.STOP), (16,)]
    text = np.array([[*itertools.chain(*sentences), 0, 0]], "int32")
    many = tf.constant(np.repeat(text, 100_000, axis=0))
    out = denoising.shuffle_sentences(many, many == toy.STOP, tf.constant([1, 1]), 0)
    found = [*map(bytes, out.numpy())]
    orders = {
        np.array([*itertools.chain(*order), 0, 0], "int32").tobytes()
        for order in itertools.permutations(sentences)
    }
    assert set(found) == orders
    assert_equally_likely(found, 24)


def test_barts_best_noise_is_infilling_of_shuffled_sentences():
    """Lewis et al. 2020, section 5.1: 30% of the words are hidden, and all sentences shuffled."""
    text = toy.texts([40], 40, first=10)  # sentence n has the ids 10 (n + 1) and so on
    text[0, 9::10] = toy.STOP
    many = toy.rows_of(np.repeat(text, 20_000, axis=0))
    sources, _ = pair_of(denoising.DenoisingObjective(), many)
    orders, masks = [], 0
    for source in sources:
        visible = source[source > toy.MASK]
        assert len(visible) == 40 - 12
        words = visible[visible != toy.STOP]
        order = [*dict.fromkeys(words // 10)]
        assert words.tolist() == sorted(words, key=lambda word: (order.index(word // 10), word))
        orders += [tuple(order)] if len(order) == 4 else []
        masks += (source == toy.MASK).sum()
    assert_equally_likely(orders, 24)
    assert 2.3 < 12 * len(sources) / masks < 3.1


def test_rotation_begins_at_every_token_as_often():
    text = toy.texts([5] * 50_000 + [0], 7)
    out = denoising.rotate(tf.constant(text), tf.constant([2, 1]), 0).numpy()
    assert not out[-1].any() and not out[:, 5:].any()
    first = out[:-1, 0]
    np.testing.assert_array_equal((out[:-1, :5] - first[:, None]) % 5, [range(5)] * 50_000)
    assert_equally_likely(first, 5)


ALONE = {
    "masking": lambda text, source: (source == toy.MASK).sum() == math.ceil(0.3 * len(text)),
    "deletion": lambda text, source: (
        len(source) == len(text) - math.ceil(0.3 * len(text)) and set(source) <= set(text)
    ),
    "rotation": lambda text, source: any(
        np.array_equal(np.roll(text, by), source) for by in range(len(text))
    ),
    "shuffling": lambda text, source: sorted(source) == sorted(text),
    "infilling": lambda text, source: (source == toy.MASK).any(),
}


@pytest.mark.parametrize("noise", [*ALONE, "all"])
def test_noises_alone_and_together(noise):
    text = toy.texts([40, 21, 0], 40)
    text[0, [8, 20, 33]] = text[1, [7, 15]] = toy.STOP
    share = {"masking": 0.3, "deletion": 0.3, "infilling": 0.3}
    if noise == "all":
        shares = {"rotation": 1.0, "shuffling": 1.0, **share}
    else:
        shares = {noise: share.get(noise, 1.0)}
    objective = denoising.DenoisingObjective(**{**dict.fromkeys(ALONE, 0.0), **shares})
    source, target = pair_of(objective, toy.rows_of(text))
    np.testing.assert_array_equal(target[:, :-1][text != 0], text[text != 0])
    assert (target[[0, 1], [40, 21]] == EOS).all()
    assert not source[2].any() and not target[2].any()
    for row in range(2):
        found = source[row][source[row] != 0]
        assert found[-1] == EOS
        if noise != "all":
            assert ALONE[noise](text[row][text[row] != 0], found[:-1])
    assert (source[:, :-1] != text).any()
    same, _ = pair_of(objective, toy.rows_of(text))
    np.testing.assert_array_equal(source, same)


def test_noise_leaves_a_token_and_the_end():
    alone = dict.fromkeys(ALONE, 0.0)
    objective = denoising.DenoisingObjective(**{**alone, "deletion": 0.1})
    source, _ = pair_of(objective, toy.rows_of(toy.texts([1, 2, 3], 4)))
    assert (source != 0).sum(axis=1).tolist() == [2, 2, 3]
    # Empty spans make the texts longer than their rows.
    spans = {**alone, "infilling": 0.2}
    text = np.pad(toy.texts([8] * 20, 8), ((0, 0), (0, 1)), constant_values=EOS)
    objective = BackTranslationObjective(**spans, mean_span=0.1, length=16)
    dataset = tf.data.Dataset.from_tensors({"source": text, "target": text})
    [batch] = objective.dataset(dataset, toy.VOCABULARY, seed=1)
    for row in batch["noised_source"].numpy():
        assert row.shape == (9,) and row[row != 0][-1] == EOS and (row == EOS).sum() == 1
    assert batch["noised_source"].numpy().all(axis=1).any()
