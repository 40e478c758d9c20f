"""Masks that a row keeps: the same in whatever batch it comes, in turn over the epochs."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.objectives import MaskingConfig, masked_dataset
from tests.objectives.masking_toy import CHOICES, ToyVocabulary, full_rows
from tests.objectives.test_masking import chosen, masked

VOCABULARY = ToyVocabulary()


def static_masks(duplicates, epochs=12, rows=12, seed=0):
    """`(epochs, rows, L)` bool, of batches of 3 rows that come in another order each epoch."""
    rng = np.random.default_rng(seed)
    numbers = np.concatenate([rng.permutation(rows) for _ in range(epochs)])
    batch = {
        "token_ids": full_rows(rows, 64)[numbers],
        "row_number": numbers.astype("int64"),
        "epoch": np.repeat(np.arange(epochs, dtype="int32"), rows),
    }
    dataset = tf.data.Dataset.from_tensor_slices(batch).batch(3, drop_remainder=True)
    config = MaskingConfig(duplicates=duplicates)
    dataset = masked_dataset(dataset, config, VOCABULARY, seed=1, start_step=5)
    assert dataset.element_spec["masked_positions"].shape == (3, 16)
    assert not {"row_number", "epoch"} & set(dataset.element_spec)
    masks = np.concatenate([chosen(one) for one in dataset.as_numpy_iterator()])
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
    original = full_rows(6, 64)
    seeds = np.stack([np.full(6, 3), np.arange(6)], axis=1)
    for choice in CHOICES:
        config = MaskingConfig(choice=choice, fate="span")
        whole = masked(original, config, seed=seeds)
        alone = [masked(original[i : i + 1], config, seed=seeds[i : i + 1]) for i in range(6)]
        for name in whole:
            np.testing.assert_array_equal(whole[name], np.concatenate([one[name] for one in alone]))


def test_static_masks_want_numbers_of_rows():
    dataset = tf.data.Dataset.from_tensors({"token_ids": full_rows(2, 64)})
    with pytest.raises(ValueError, match="need epoch and row_number in every batch"):
        masked_dataset(dataset, MaskingConfig(duplicates=10), VOCABULARY, 0)
