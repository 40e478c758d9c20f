import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.objectives import (
    DenoisingObjective,
    MaskedLanguageObjective,
    MaskingConfig,
    mask_tokens,
)
from macaron_tf.special import Special
from macaron_tf.text import BytePairVocabulary, SentencePieceVocabulary, WordPieceVocabulary
from tests.toys import objectives as toy
from tests.toys.marks import slow

SEED = (3, 7)


def masked_by(**settings) -> MaskedLanguageObjective:
    return MaskedLanguageObjective(masking=MaskingConfig(**settings))


def assert_share(hits, draws, probability, what):
    """Checks that a frequency is within 4.5 binomial standard deviations of `probability`.

    1 in 150,000 checks of a correct frequency fails.
    """
    tolerance = 4.5 * np.sqrt(probability * (1 - probability) / draws)
    assert abs(hits / draws - probability) < tolerance, what


@pytest.fixture(scope="module")
def many():
    """Returns 1,400 rows of 510 ordinary tokens, and their masked batch with over 10^5 masks."""
    original = toy.full_rows(1400, 512)
    return original, toy.masked(original)


def test_fates_are_80_10_10_on_100_000_draws(many):
    original, batch = many
    where = toy.masked_at(batch)
    now, before = batch["token_ids"][where], original[where]
    assert len(now) == 1400 * round(0.15 * 510) > 100_000
    assert_share((now == toy.MASK).sum(), len(now), 0.8, "[MASK]")
    # A random token equals the original once in 55.
    assert_share((now == before).sum(), len(now), 0.1 + 0.1 / 55, "kept")
    assert_share(((now != before) & (now != toy.MASK)).sum(), len(now), 0.1 * 54 / 55, "random")


def test_random_pieces_are_uniform_over_the_ordinary_ones():
    batch = toy.masked(toy.full_rows(1400, 512), MaskingConfig(mask=0.0, random=1.0))
    drawn = np.bincount(batch["token_ids"][toy.masked_at(batch)], minlength=64)
    assert drawn[: len(toy.SPECIAL)].sum() == 0
    assert drawn[toy.VOCABULARY.pieces :].sum() == 0  # rows that pad the table
    assert drawn.sum() > 100_000
    assert scipy.stats.chisquare(drawn[5:60]).pvalue > 1e-4


def test_every_ordinary_position_is_as_likely(many):
    _, batch = many
    counts = toy.masked_at(batch).sum(axis=0)
    assert counts[0] == counts[-1] == 0
    # Without replacement, counts vary 1 - 76/510 times as much as independent draws.
    share = 76 / 510
    statistic = ((counts[1:-1] - 1400 * share) ** 2).sum() / (1400 * share * (1 - share))
    assert 1e-4 < scipy.stats.chi2(509).sf(statistic) < 1 - 1e-4


def test_positions_labels_and_the_rest_of_the_row():
    original = toy.ragged_rows(range(30), 40)
    segments = tf.constant(np.arange(1200, dtype="int32").reshape(30, 40))
    batch = toy.masked(original, segment_ids=segments)
    np.testing.assert_array_equal(batch["segment_ids"], segments)
    where, weights = toy.masked_at(batch), batch["masked_weights"]
    np.testing.assert_array_equal(batch["token_ids"][~where], original[~where])
    assert weights.dtype == np.float32 and weights.shape == (30, 8)
    assert np.isin(weights, [0, 1]).all() and (np.diff(weights) <= 0).all()
    rows, positions, labels = toy.of_masks(batch, "masked_positions", "masked_labels")
    np.testing.assert_array_equal((rows, positions), np.nonzero(where))
    np.testing.assert_array_equal(labels, original[where])
    for name in ("masked_positions", "masked_labels"):
        assert not batch[name][weights == 0].any()


@pytest.mark.parametrize("rate", [0.15, 0.4, 1.0])
def test_the_number_masked_is_exact_and_never_a_special_token(rate):
    original = toy.ragged_rows(range(60), 64)
    original[40, 5:9] = [1, 4, 1, 4]  # [UNK] and [MASK] in the text
    ordinary = ~np.isin(original, toy.SPECIAL)
    config = MaskingConfig(rate=rate)
    for seed in range(5):
        where = toy.masked_at(toy.masked(original, config, seed=(0, seed)))
        assert not (where & ~ordinary).any()
        for count, n in zip(where.sum(axis=1), ordinary.sum(axis=1), strict=True):
            assert count == (max(1, round(rate * n)) if n else 0)


def test_special_tokens_have_the_ids_of_the_vocabulary():
    original = toy.ragged_rows([10, 20], 30)
    special = Special(pad=59, unk=None, begin=0, end=7, mask=30)
    theirs = np.arange(60)
    theirs[[0, toy.CLS, toy.SEP]] = special.pad, special.begin, special.end
    original = theirs[original]
    original[1, 5] = special.mask
    vocabulary = toy.ToyVocabulary(special=special)
    config = MaskingConfig(rate=1.0, mask=0.0, random=1.0)
    masked = toy.masked(original, config, vocabulary=vocabulary)
    where = toy.masked_at(masked)
    np.testing.assert_array_equal(where, ~np.isin(original, special.ids))
    assert not np.isin(masked["token_ids"][where], special.ids).any()


def test_the_number_masked_may_be_rounded_up():
    config = MaskingConfig(round_up=True)
    counts = toy.masked_at(toy.masked(toy.ragged_rows(range(1, 41), 43), config)).sum(axis=1)
    assert counts.tolist() == [-(-15 * n // 100) for n in range(1, 41)]
    # 0.07 * 100 > 7 in floating point.
    assert MaskingConfig(rate=0.07, round_up=True).counts(100)[100] == 7


@pytest.mark.parametrize("length, room", [(4, 8), (53, 8), (54, 16), (128, 24), (512, 80)])
def test_room_for_positions_is_a_static_multiple_of_8(length, room):
    assert MaskingConfig().counts(length).max() <= room
    spec = masked_by().dataset(toy.rows([1, 1], length), toy.VOCABULARY, 0).element_spec
    assert spec["token_ids"].shape == (2, length)
    for name in ("masked_positions", "masked_labels", "masked_weights"):
        assert spec[name].shape == (2, room), name
    assert toy.masked(toy.full_rows(2, length))["masked_positions"].shape == (2, room)


def test_a_span_has_one_fate_and_random_pieces_of_its_own():
    """All tokens of a span are masked, kept or replaced together.

    If a span is replaced, the random token at each position is drawn independently.
    """
    vocabulary = toy.ToyVocabulary(pieces=30_000)
    original = toy.full_rows(1400, 512, pieces=30_000)
    config = MaskingConfig(choice="spans", fate="span", round_up=True)
    batch = toy.masked(original, config, vocabulary=vocabulary)
    features = ("masked_positions", "span_positions")
    rows, positions, places = toy.of_masks(batch, *features)
    assert len(rows) > 100_000
    now, before = batch["token_ids"][rows, positions], original[rows, positions]
    firsts = np.flatnonzero(places == 0)
    every, some = np.logical_and.reduceat, np.logical_or.reduceat  # of the tokens of each span
    hidden, kept = every(now == toy.MASK, firsts), every(now == before, firsts)
    np.testing.assert_array_equal(hidden, some(now == toy.MASK, firsts))
    other = ~hidden & ~kept
    assert some(now == before, firsts)[other].mean() < 0.005
    assert_share(hidden.sum(), len(firsts), 0.8, "[MASK]")
    assert_share(kept.sum(), len(firsts), 0.1, "kept")
    assert_share(other.sum(), len(firsts), 0.1, "random")
    drawn = now[np.repeat(other, np.diff([*firsts, len(now)]))]
    assert len(np.unique(drawn)) > 0.8 * len(drawn)  # 12,000 of 29,995, drawn independently


def test_spans_say_what_is_around_them():
    original = toy.full_rows(40, 64)
    original[:, 30:33] = toy.SPECIAL[1]
    batch = toy.masked(original, MaskingConfig(rate=0.3, choice="spans"))
    where = toy.masked_at(batch)
    names = ("left_boundaries", "right_boundaries", "span_positions")
    for name in names:
        assert batch[name].dtype == np.int32 and not batch[name][batch["masked_weights"] == 0].any()
    masks = zip(*toy.of_masks(batch, "masked_positions", *names), strict=True)
    for row, position, left, right, place in masks:
        assert where[row, left + 1 : right].all() and not where[row, [left, right]].any()
        assert position == left + 1 + place


@pytest.mark.parametrize("choice", toy.CHOICES)
def test_batches_keep_their_number_and_may_be_one_row(choice):
    """Every choice masks a batch of one row with a static shape."""
    rows = tf.data.Dataset.from_tensors({"token_ids": toy.full_rows(1, 24)}).repeat(7)
    dataset = masked_by(choice=choice).dataset(rows, toy.VOCABULARY, 0)
    assert dataset.cardinality() == 7
    batch = next(iter(dataset))
    assert batch["masked_weights"].shape == (1, 8) and batch["masked_weights"][0, 0] == 1


def static_masks(duplicates, epochs=12, rows=12, seed=0):
    """Returns the static masks of the same rows in several epochs: `(epochs, rows, L)` bool.

    Each epoch reads the rows in another order. The result is sorted by row index.
    """
    rng = np.random.default_rng(seed)
    numbers = np.concatenate([rng.permutation(rows) for _ in range(epochs)])
    batch = {
        "token_ids": toy.full_rows(rows, 64)[numbers],
        "row_number": numbers.astype("int64"),
        "epoch": np.repeat(np.arange(epochs, dtype="int32"), rows),
    }
    dataset = tf.data.Dataset.from_tensor_slices(batch).batch(3, drop_remainder=True)
    objective = masked_by(duplicates=duplicates)
    dataset = objective.dataset(dataset, toy.VOCABULARY, seed=1, start_step=5)
    assert dataset.element_spec["masked_positions"].shape == (3, 16)
    assert not {"row_number", "epoch"} & set(dataset.element_spec)
    masks = np.concatenate([toy.masked_at(one) for one in dataset.as_numpy_iterator()])
    found = np.zeros((epochs, rows, 64), bool)
    found[batch["epoch"], numbers] = masks
    return found


def test_static_masks_follow_from_the_row_and_the_epoch():
    masks = static_masks(10)
    np.testing.assert_array_equal(masks[10:], masks[:2])
    np.testing.assert_array_equal(masks, static_masks(10, seed=1))
    assert (masks.sum(axis=-1) == round(0.15 * 62)).all()
    assert len({mask.tobytes() for mask in masks[:10].reshape(-1, 64)}) == 10 * 12
    once = static_masks(1)
    assert (once == once[0]).all()


def test_static_masks_of_every_choice_come_in_any_batch():
    original = toy.full_rows(6, 64)
    seeds = np.stack([np.full(6, 3), np.arange(6)], axis=1)
    for choice in toy.CHOICES:
        config = MaskingConfig(choice=choice, fate="span")
        whole = toy.masked(original, config, seed=seeds)
        alone = [toy.masked(original[i : i + 1], config, seed=seeds[i : i + 1]) for i in range(6)]
        for name in whole:
            np.testing.assert_array_equal(whole[name], np.concatenate([one[name] for one in alone]))


def test_shares_that_add_up_to_one_in_decimals_are_accepted():
    for mask in range(11):
        MaskingConfig(mask=mask / 10, random=round(1 - mask / 10, 1))


UNSPACED = {
    "Chinese": range(0x4E00, 0x4E96),
    "Japanese": (*range(0x3042, 0x3090), *range(0x4E00, 0x4E30)),
    "Thai": (*range(0xE01, 0xE2F), *range(0xE30, 0xE3A)),
}


@pytest.mark.parametrize("script", slow(*UNSPACED, but=("Chinese",)))
def test_words_of_scripts_without_spaces_are_masked(script):
    """Whole words, n-grams, spans and infilled words reach their share, up to one word."""
    rng = np.random.default_rng(0)
    letters = [*map(chr, UNSPACED[script])]
    words = ["".join(rng.choice(letters, rng.integers(1, 4))) for _ in range(150)]
    lines = ["".join(rng.choice(words, 25)) + "。" for _ in range(100)]
    trained = [
        SentencePieceVocabulary.train(lines, 400, character_coverage=1.0),
        BytePairVocabulary.train(lines, 500),
    ]
    for vocabulary in trained:
        texts = [row[:30] for row in vocabulary.encode_lines(lines)]
        ids = tf.ragged.constant(texts, dtype=tf.int32).to_tensor(shape=(None, 32)).numpy()
        lengths = (ids != 0).sum(axis=1)
        asked = np.maximum(1, np.rint(0.15 * lengths))
        for choice in toy.CHOICES:
            batch = mask_tokens({"token_ids": ids}, SEED, MaskingConfig(choice=choice), vocabulary)
            missing = asked - batch["masked_weights"].numpy().sum(axis=1)
            assert missing.min() >= 0 and missing.max() <= 2 and missing.mean() < 0.7, choice
        objective = DenoisingObjective(shuffling=0.0)
        source, _ = objective.corruption(vocabulary, 32)(ids, SEED)
        kept = (source.numpy() > 4).sum(axis=1)
        assert kept.min() > 0.4 * lengths.min()
        assert abs(kept.mean() - 0.7 * lengths.mean()) < 0.1 * lengths.mean()


def test_words_of_scripts_with_spaces_begin_where_their_pieces_say():
    lines = ["Le chat naïf, кот и собака; ένας σκύλος 2,5 € 한국어 띄어쓰기 हिन्दी में שלום"] * 9
    for vocabulary in (
        SentencePieceVocabulary.train(lines, 90, character_coverage=1.0),
        BytePairVocabulary.train(lines, 300),
        WordPieceVocabulary.train(lines, 150, lower_case=False),
    ):
        ids = sorted({*vocabulary.encode_lines(lines)[0]} - {*vocabulary.special.ids})
        expected = [vocabulary.starts_word(i) for i in ids]
        assert vocabulary.word_starts()[ids].tolist() == expected
