import collections
import itertools
import math

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.models import EncoderDecoder, catalog
from macaron_tf.objectives import MaskingConfig
from macaron_tf.objectives.denoising import (
    DenoisingConfig,
    DenoisingObjective,
    draw_spans,
    infill,
    rotate,
    shuffle_sentences,
)
from macaron_tf.training.fit_model import FitModel
from tests.objectives.toy import (
    MASK,
    STOP,
    TEXT_VOCABULARY,
    TextVocabulary,
    floats,
    nll_of,
    rows_of,
    text_rows,
    texts,
)

EOS = 3


def test_lengths_follow_poissons_law_until_the_budget_is_spent():
    budget = 77  # of 256 words
    lengths, drawn = draw_spans(tf.fill([4_400], budget), tf.constant([1, 2]), 3.0, budget)
    lengths, drawn = lengths.numpy(), drawn.numpy()
    assert (lengths.sum(axis=1) == budget).all() and not lengths[~drawn].any()
    law = scipy.stats.poisson(3).pmf(np.arange(20))
    first = np.bincount(lengths[:, 0], minlength=20)[:12]
    assert scipy.stats.chisquare(first, first.sum() * law[:12] / law[:12].sum()).pvalue > 1e-4
    # The expected counts: lengths, 0 included, are drawn until the last one is cut off.
    counts = np.zeros((budget + 1, 20))
    for left in range(1, budget + 1):
        for length, probability in enumerate(law[1:], 1):
            counts[left] += probability * counts[max(left - length, 0)]
            counts[left, min(length, left)] += probability
        counts[left, 0] += law[0]
        counts[left] /= 1 - law[0]
    expected = (len(lengths) * counts[budget])[:12]
    found = np.bincount(lengths[drawn], minlength=20)[:12]
    assert found.sum() > 100_000
    statistic = ((found - expected) ** 2 / expected).sum()
    assert scipy.stats.chi2(11).sf(statistic) > 1e-4


def test_every_order_of_spans_and_words_is_as_likely():
    """7 words, 3 of them hidden in spans of 1 and 2: 10 pairs of slots apart, two orders."""
    text = texts([7] * 100_000, 8)
    starts = tf.ones(text.shape, tf.bool)
    out = infill(tf.constant(text), starts, tf.constant([5, 6]), 3 / 7, 3.0, MASK).numpy()
    found = collections.Counter()
    for row in out:
        slots = np.flatnonzero(row == MASK)
        if len(slots) == 2 and slots[1] > slots[0] + 1:
            kept = [9, *row[row > MASK], 17]  # words 10 to 16, and one to either side
            gaps = [b - a - 1 for a, b in itertools.pairwise(kept) if b - a > 1]
            if sorted(gaps) == [1, 2]:
                found[(*slots, *gaps)] += 1
    assert len(found) == 20 and sum(found.values()) > 5_000
    assert scipy.stats.chisquare(list(found.values())).pvalue > 1e-4


def words_in(ids) -> list[tuple]:
    """The words among the ids of a text, masks left out; pieces below 45 begin one."""
    starts = np.flatnonzero((ids < 45) | (np.r_[MASK, ids[:-1]] == MASK))
    words = [tuple(word) for word in np.split(ids, starts[1:])]
    return [word for word in words if word != (MASK,)]


def test_spans_are_of_whole_words_behind_one_mask_each():
    vocabulary = TextVocabulary(continuing=15)
    rows = text_rows(200, 66)
    rows[0, 5:] = 0
    rows[0, 4] = 3
    objective = DenoisingObjective(config=DenoisingConfig(shuffling=0))
    dataset = tf.data.Dataset.from_tensors({"token_ids": rows})
    [batch] = objective.dataset(dataset, MaskingConfig(), vocabulary, 3)
    assert batch["source"].shape == batch["target"].shape == (200, 65)
    hidden_words = masks = 0
    for row, source, target in zip(
        rows, batch["source"].numpy(), batch["target"].numpy(), strict=True
    ):
        text = row[row != 0][1:-1]
        np.testing.assert_array_equal(target[target != 0], [*text, EOS])
        assert source[source != 0][-1] == EOS
        words, kept = words_in(text), words_in(source[source != 0][:-1])
        assert len(words) - len(kept) == math.ceil(0.3 * len(words))
        rest = iter(words)
        assert all(word in rest for word in kept)  # whole words, in their order
        masks += (source == MASK).sum()
        hidden_words += len(words) - len(kept)
    assert 2.3 < hidden_words / masks < 3.1  # cut off at the budget, of about 14 words


def test_every_order_of_sentences_is_as_likely():
    text = np.array([[10, 11, STOP, 12, STOP, STOP, 13, 14, 15, STOP, 16, 0, 0]], "int32")
    sentences = [(10, 11, STOP), (12, STOP, STOP), (13, 14, 15, STOP), (16,)]
    many = np.repeat(text, 100_000, axis=0)
    out = shuffle_sentences(tf.constant(many), tf.constant(many == STOP), tf.constant([1, 1]))
    found = collections.Counter(map(bytes, out.numpy()))
    orders = {
        np.array([*itertools.chain(*order), 0, 0], "int32").tobytes()
        for order in itertools.permutations(sentences)
    }
    assert set(found) == orders and len(orders) == 24
    assert scipy.stats.chisquare(list(found.values())).pvalue > 1e-4


def test_rotation_begins_at_every_token_as_often():
    text = texts([5] * 50_000 + [0], 7)
    out = rotate(tf.constant(text), tf.constant([2, 1])).numpy()
    assert not out[-1].any() and not out[:, 5:].any()
    first = out[:-1, 0]
    np.testing.assert_array_equal(
        (out[:-1, :5] - 10 - (first[:, None] - 10)) % 5, [range(5)] * 50_000
    )
    assert scipy.stats.chisquare(np.bincount(first)[10:]).pvalue > 1e-4


ALONE = {
    "masking": lambda text, source: (source == MASK).sum() == math.ceil(0.3 * len(text)),
    "deletion": lambda text, source: (
        len(source) == len(text) - math.ceil(0.3 * len(text)) and set(source) <= set(text)
    ),
    "rotation": lambda text, source: any(
        np.array_equal(np.roll(text, by), source) for by in range(len(text))
    ),
    "shuffling": lambda text, source: sorted(source) == sorted(text),
    "infilling": lambda text, source: (source == MASK).any(),
}


def noised(text, **shares):
    config = DenoisingConfig(**{**dict.fromkeys(ALONE, 0.0), **shares})
    rows = tf.data.Dataset.from_tensors({"token_ids": rows_of(text)}).repeat()
    objective = DenoisingObjective(config=config)
    [batch] = objective.dataset(rows, MaskingConfig(), TEXT_VOCABULARY, 1).take(1)
    return batch["source"].numpy(), batch["target"].numpy()


@pytest.mark.parametrize("noise", [*ALONE, "all"])
def test_noises_alone_and_together(noise):
    text = texts([40, 21, 0], 40)
    text[0, [8, 20, 33]] = text[1, [7, 15]] = STOP
    share = {"masking": 0.3, "deletion": 0.3, "infilling": 0.3}
    if noise == "all":
        shares = {"rotation": 1.0, "shuffling": 1.0, **share}
    else:
        shares = {noise: share.get(noise, 1.0)}
    source, target = noised(text, **shares)
    np.testing.assert_array_equal(target[:, :-1][text != 0], text[text != 0])
    assert (target[[0, 1], [40, 21]] == EOS).all()
    assert not source[2].any() and not target[2].any()
    for row in range(2):
        found = source[row][source[row] != 0]
        assert found[-1] == EOS
        if noise != "all":
            assert ALONE[noise](text[row][text[row] != 0], found[:-1])
    assert (source[:, :-1] != text).any()
    same, _ = noised(text, **shares)
    np.testing.assert_array_equal(source, same)


@pytest.mark.parametrize("trained", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sums_are_those_of_the_target_and_training_lowers_the_loss(trained):
    shapes = {"vocab_size": 64, "hidden_dim": 16, "feed_forward_dim": 96, "num_heads": 2}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0}
    config = catalog.config("bart_tiny", **shapes, **layers, attention_dropout=0.0)
    network = EncoderDecoder(config)
    network.build()
    text = texts([20, 13, 0], 20)
    rows = tf.data.Dataset.from_tensors({"token_ids": rows_of(text)}).repeat()
    objective = DenoisingObjective(skip_padding=False)
    dataset = objective.dataset(rows, MaskingConfig(), TEXT_VOCABULARY, 1)
    [batch] = dataset.take(1)
    found = floats(objective(network, batch, training=False))
    target = batch["target"].numpy()
    before = np.concatenate([np.full((3, 1), 2), target[:, :-1]], axis=1)
    logits = network({"source": batch["source"], "target": before})
    nll = nll_of(logits, target)[target != 0].sum()
    assert found["loss_sum"] == pytest.approx(nll, rel=1e-4)
    assert found["weight"] == 21 + 14
    if not trained:
        return
    model = FitModel(network, objective)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=True)  # all shapes are static
    history = model.fit(dataset, steps_per_epoch=8, epochs=2, verbose=0).history
    assert history["nll"][1] < history["nll"][0]


def test_bad_shares_are_named():
    with pytest.raises(UserError, match="rotation=2 must be a number of at least 0 and at most 1"):
        DenoisingConfig(rotation=2)
    with pytest.raises(UserError, match="or there is no noise"):
        DenoisingConfig(infilling=0, shuffling=0)
