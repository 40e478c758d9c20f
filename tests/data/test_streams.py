import numpy as np
import pytest

from macaron_tf.data.corpus.reading import stream_dataset
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.errors import UserError
from tests.data.number_corpus import (
    config_of,
    number_vocabulary,
    numbers_of,
    rows_of,
    write_numbers,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = write_numbers(tmp_path_factory.mktemp("streams"))
    config = config_of(folder, packing="full_text", rows_per_shard=7, validation_every=9)
    return prepare(config, number_vocabulary(), folder / "out")


def batches(dataset, count):
    return [{name: t.numpy() for name, t in batch.items()} for batch in dataset.take(count)]


def test_row_b_goes_on_where_row_b_ended(corpus):
    rows = rows_of(corpus, "train")
    length = len(rows) // 4
    assert len(corpus.shards["train"]) > 4 and length > 5
    found = batches(stream_dataset(corpus, "train", 4), 2 * length + 1)
    for t, batch in enumerate(found):
        place = t % length
        expected = np.stack([rows[b * length + place] for b in range(4)])
        np.testing.assert_array_equal(batch["token_ids"], expected)
        np.testing.assert_array_equal(batch["starts"], [place == 0] * 4)
        previous = np.zeros_like(expected) if place == 0 else found[t - 1]["token_ids"]
        np.testing.assert_array_equal(batch["previous_ids"], previous)


def test_it_begins_at_any_step(corpus):
    length = corpus.rows("train") // 3
    whole = batches(stream_dataset(corpus, "train", 3), 2 * length + 4)
    for start in (1, 2, length - 1, length, length + 1, 2 * length):
        later = batches(stream_dataset(corpus, "train", 3, start), 3)
        for one, other in zip(whole[start : start + 3], later, strict=True):
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])


def test_without_repeat_it_ends(corpus):
    count = corpus.rows("validation")
    dataset = stream_dataset(corpus, "validation", 2, repeat=False)
    assert int(dataset.cardinality()) == len(list(dataset)) == count // 2
    with pytest.raises(UserError, match=f"has {count} rows, fewer than the {count + 1} texts"):
        stream_dataset(corpus, "validation", count + 1)


def test_rows_are_held_out_by_the_run(tmp_path):
    folder = write_numbers(tmp_path)
    config = config_of(folder, packing="full_text", validation_every=4, validation_run=3)
    corpus = prepare(config, number_vocabulary(), folder / "out")
    held_out, trained = rows_of(corpus, "validation"), rows_of(corpus, "train")
    assert len(held_out) >= 9
    for first in range(0, len(held_out) - 2, 3):
        numbers = numbers_of(corpus, held_out[first : first + 3])
        assert len(numbers) > 20 and set(np.diff(numbers)) == {1}  # they go on
    everything = [*numbers_of(corpus, held_out), *numbers_of(corpus, trained)]
    assert sorted(everything) == list(range(600))
