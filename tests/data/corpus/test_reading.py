"""Tests of the batches of a prepared corpus: static shapes, seeded order and exact restarts."""

import collections
import dataclasses
import functools
import itertools
import shutil

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.corpus import reading
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.reading import PretrainingCorpus, stream_dataset
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.data.rows import Shard
from macaron_tf.data.sampler import process_seed, row_groups
from macaron_tf.io.paths import as_path
from macaron_tf.text.wordpiece import SPECIAL_PIECES
from tests import ram_paths
from tests.harness import refuses
from tests.toys.corpora import config_of, numbers_of, rows_of
from tests.toys.marks import slow

ROWS = 90


def lines_corpus(folder, vocabulary, validation_every=10) -> PretrainingCorpus:
    """Returns a corpus of 100 one-row documents, 10 per shard. Document n is "n n n"."""
    (folder / "lines.txt").write_text("\n".join(f"{n} {n} {n}" for n in range(100)))
    shape = {"sequence_length": 8, "validation_every": validation_every, "rows_per_shard": 10}
    config = CorpusConfig((f"text-lines:{folder}/lines.txt",), **shape)
    return prepare(config, vocabulary, folder / f"out{validation_every}")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, vocabulary) -> PretrainingCorpus:
    corpus = lines_corpus(tmp_path_factory.mktemp("corpus"), vocabulary)
    assert corpus.rows("train") == ROWS and len(corpus.shards["train"]) == 10
    return corpus


def first_ids(dataset) -> list[list[int]]:
    return [(batch["token_ids"].numpy()[:, 1] - len(SPECIAL_PIECES)).tolist() for batch in dataset]


def joined(dataset) -> list[int]:
    return list(itertools.chain(*first_ids(dataset)))


@pytest.mark.parametrize("shuffled_rows", [1000, *slow(1, 30)])
def test_each_epoch_is_a_permutation(corpus, monkeypatch, shuffled_rows):
    monkeypatch.setattr(corpus, "shuffled_rows", shuffled_rows)
    rows = joined(corpus.dataset("train", 9, seed=3).take(20))
    everything = [number for number in range(100) if number % 10]
    assert sorted(rows[:ROWS]) == sorted(rows[ROWS:]) == everything
    assert rows[:ROWS] != rows[ROWS:] and rows[:ROWS] != everything
    assert joined(corpus.dataset("train", 9, seed=4).take(10)) != rows[:ROWS]
    if shuffled_rows == 1000:  # rows of one shard are spread over the whole epoch
        assert np.std([rows.index(number) for number in range(1, 10)]) > 12
    assert joined(corpus.dataset("train", 9, seed=None).take(10)) == everything


def test_sizes_of_batches(corpus):
    spec = corpus.dataset("train", 4).element_spec
    expected = tf.TensorSpec([4, 8], tf.int32)
    assert spec == {"token_ids": expected, "segment_ids": expected}
    spec = corpus.dataset("train", 4, drop_remainder=False, repeat=False).element_spec
    assert spec["token_ids"] == tf.TensorSpec([None, 8], tf.int32)
    for start, drop, sizes in (
        (0, True, [40, 40]),
        (0, False, [40, 40, 10]),
        (1, True, [40]),
        (2, False, [10]),
        (2, True, []),
        (9, False, []),
    ):
        dataset = corpus.dataset("train", 40, start_step=start, repeat=False, drop_remainder=drop)
        assert dataset.cardinality() == len(sizes)
        assert [len(batch["token_ids"]) for batch in dataset] == sizes
    assert corpus.dataset("train", 40).cardinality() == tf.data.INFINITE_CARDINALITY
    assert corpus.dataset("train", 40).options().autotune.enabled is False
    refuses("no split 'test': give one of train, validation", corpus.dataset, "test", 4)
    message = "has 10 rows in .*: give more text, or lower"
    refuses(message, corpus.dataset, "validation", 11, repeat=False)
    assert "90 training and 10 validation rows of 8 ids" in corpus.summary()


def test_the_files_of_several_processes(corpus, monkeypatch):
    """Three processes share ten shards, and their row counts differ by at most 10."""
    assert corpus.shard(0, 1).rows("train") == ROWS
    parts = [corpus.shard(index, 3) for index in range(3)]
    names = [{shard.name for shard in part.shards["train"]} for part in parts]
    assert set.union(*names) == {shard.name for shard in corpus.shards["train"]}
    assert sum(len(part) for part in names) == 10
    rows = [part.rows("train") for part in parts]
    assert sum(rows) == ROWS and max(rows) - min(rows) <= 10
    seen = [joined(part.dataset("train", 1, seed=4).take(part.rows("train"))) for part in parts]
    assert sorted(itertools.chain(*seen)) == [n for n in range(100) if n % 10]
    again = corpus.shard(1, 3).dataset("train", 1, seed=4).take(len(seen[1]))
    assert joined(again) == seen[1]
    assert parts[0].shards["validation"] == corpus.shards["validation"]
    refuses("has 10 training files, fewer than 11 processes: lower", corpus.shard, 0, 11)
    shards = tuple(Shard(str(rows), rows, "", {}) for rows in (9, 1, 0, 8, 2))
    monkeypatch.setattr(corpus, "shards", {"train": shards, "validation": ()})
    assert [corpus.shard(index, 2).rows("train") for index in (0, 1)] == [10, 10]


def test_each_process_draws_from_a_seed_of_its_own():
    seeds = [process_seed(7, process) for process in range(4)]
    assert seeds[0] == 7 and len(set(seeds)) == 4
    assert all(0 <= seed < 1 << 63 for seed in seeds)


@pytest.mark.parametrize("harm", ["cut", "cut between rows", "removed", "changed", "folder"])
def test_a_shard_that_is_lost_during_training_is_named(corpus, tmp_path, harm):
    shutil.copytree(corpus.folder, tmp_path / "copy")
    harmed = PretrainingCorpus.open(tmp_path / "copy")
    dataset = harmed.dataset("train", 10, seed=None, repeat=False)
    path = tmp_path / "copy" / harmed.shards["train"][3].name
    content = path.read_bytes()
    path.unlink()
    if harm == "folder":
        path.mkdir()
    elif harm == "changed":
        path.write_bytes(content[:20] + b"!" + content[21:])
    elif harm != "removed":
        row_bytes = len(content) // harmed.shards["train"][3].rows
        path.write_bytes(content[: row_bytes - (harm == "cut")])
    with pytest.raises(tf.errors.OpError, match=f"{path} is missing or damaged: remove {tmp_path}"):
        list(dataset)


def test_a_row_keeps_its_number(corpus, monkeypatch):
    """A row has the same index in every epoch, after a restart and in a shard of the corpus.

    Static masks are seeded by the row index.
    """
    monkeypatch.setattr(corpus, "shuffled_rows", 30)

    def numbered(corpus, **settings):
        dataset = corpus.dataset("train", 7, seed=5, numbered=True, **settings)
        assert dataset.element_spec["row_number"] == tf.TensorSpec([7], tf.int64)
        assert dataset.element_spec["epoch"] == tf.TensorSpec([7], tf.int64)
        for batch in dataset.take(30).as_numpy_iterator():
            yield from zip(
                batch["epoch"].tolist(),
                batch["row_number"].tolist(),
                (batch["token_ids"][:, 1] - len(SPECIAL_PIECES)).tolist(),
                strict=True,
            )

    through = list(numbered(corpus))
    # Every tenth row is held out, so training row n has the text n + n // 9 + 1.
    assert all(text == row + row // 9 + 1 for _, row, text in through)
    assert [epoch for epoch, _, _ in through] == [place // ROWS for place in range(210)]
    assert sorted(row for epoch, row, _ in through if epoch == 1) == list(range(ROWS))
    assert list(numbered(corpus, start_step=9))[: 210 - 63] == through[63:]
    for part in (corpus.shard(0, 3), corpus.shard(2, 3).shard(0, 1)):
        found = list(numbered(part))
        assert all(text == row + row // 9 + 1 for _, row, text in found)
        epochs = [epoch for epoch, _, _ in found]
        assert epochs == [place // part.rows("train") for place in range(210)]
    validation = corpus.dataset("validation", 10, None, repeat=False, numbered=True)
    (batch,) = validation.as_numpy_iterator()
    assert batch["row_number"].tolist() == list(range(10)) and not batch["epoch"].any()


def test_a_corpus_in_a_bucket(corpus, tmp_path):
    remote = PretrainingCorpus.open(ram_paths.put(corpus.folder, ram_paths.folder(tmp_path)))
    assert str(remote.folder).startswith("ram://")
    expected = first_ids(corpus.dataset("train", 9, seed=3, start_step=4).take(12))
    assert first_ids(remote.dataset("train", 9, seed=3, start_step=4).take(12)) == expected
    part = remote.shard(1, 2)
    lost = str(remote.folder / part.shards["train"][2].name)
    tf.io.gfile.remove(lost)
    with pytest.raises(tf.errors.OpError, match=f"{lost} is missing or damaged"):
        list(part.dataset("train", 9, repeat=False))


def test_the_fingerprint_is_of_the_rows(corpus, vocabulary, tmp_path):
    assert lines_corpus(tmp_path, vocabulary).fingerprint == corpus.fingerprint
    assert lines_corpus(tmp_path, vocabulary, 20).fingerprint != corpus.fingerprint


SHARDS = (5, 1, 7, 7, 3, 7, 2)  # rows of each of seven shards
TOTAL = sum(SHARDS)


def order_of(shuffled_rows, seed, start, repeat=True, count=None) -> list[tuple[int, int]]:
    """Returns the shard and the place in it of the first `count` rows from position `start` on.

    Asserts that each row has the epoch that follows from its position.
    """
    groups = row_groups(SHARDS, shuffled_rows, seed, start, repeat)
    placed = (
        ([(shard, row) for shard in group for row in range(SHARDS[shard])][place], epoch)
        for group, places, epoch in groups
        for place in places
    )
    found = list(itertools.islice(placed, count))
    assert [epoch for _, epoch in found] == [(start + n) // TOTAL for n in range(len(found))]
    return [row for row, _ in found]


@pytest.mark.parametrize(
    ("shuffled_rows", "seed"),
    [(16, None), (16, (3, 0)), *slow((1, (3, 0)), (10_000, (3, 0)))],
)
def test_every_start_is_the_middle_of_the_whole(shuffled_rows, seed):
    order = functools.partial(order_of, shuffled_rows, seed)
    whole = order(0, count=3 * TOTAL)
    epochs = [whole[i : i + TOTAL] for i in range(0, len(whole), TOTAL)]
    everything = [(shard, row) for shard, rows in enumerate(SHARDS) for row in range(rows)]
    assert all(sorted(epoch) == everything for epoch in epochs)
    if seed is None:
        assert all(epoch == everything for epoch in epochs)
    else:
        assert len({tuple(epoch) for epoch in epochs}) == 3
    for start in (9, TOTAL + 17):
        assert order(start, count=TOTAL) == whole[start:][:TOTAL]
    far = 3000 * TOTAL
    assert order(far + 9, count=8) == order(far, count=17)[9:]
    assert order(20, False) == whole[20:TOTAL]


def test_a_start_reads_one_group_only(corpus, tmp_path):
    start = {"seed": 1, "start_step": 2 * ROWS - 1, "numbered": True}
    corpus = dataclasses.replace(corpus, shuffled_rows=1)
    (batch,) = corpus.dataset("train", 1, **start).take(1).as_numpy_iterator()
    firsts = {shard.name: shard.first for shard in corpus.filled("train")}
    wanted = max((name for name in firsts if firsts[name] <= batch["row_number"]), key=firsts.get)
    shutil.copy(corpus.folder / wanted, tmp_path / wanted)  # the other shards do not exist
    alone = dataclasses.replace(corpus, folder=as_path(tmp_path))
    (found,) = alone.dataset("train", 1, **start).take(1).as_numpy_iterator()
    np.testing.assert_equal(found, batch)


def test_all_orders_are_equally_likely():
    """Each of three rows comes first in 200 of 600 epochs, within three standard deviations."""
    groups = itertools.islice(row_groups([3], 10, (0, 0), 0, True), 600)
    firsts = collections.Counter(int(places[0]) for _, places, _ in groups)
    assert firsts.total() == 600
    assert all(abs(count - 200) < 35 for count in firsts.values()) and len(firsts) == 3


@pytest.fixture(scope="module")
def stream_corpus(texts, vocabulary, tmp_path_factory):
    config = config_of(texts, packing="full_text", rows_per_shard=7, validation_every=9)
    return prepare(config, vocabulary, tmp_path_factory.mktemp("streams"))


def batches(dataset, count):
    return [{name: t.numpy() for name, t in batch.items()} for batch in dataset.take(count)]


def test_row_b_goes_on_where_row_b_ended(stream_corpus):
    rows = rows_of(stream_corpus, "train")
    length = len(rows) // 4
    assert len(stream_corpus.shards["train"]) > 4 and length > 5
    found = batches(stream_dataset(stream_corpus, "train", 4), 2 * length + 1)
    for t, batch in enumerate(found):
        place = t % length
        expected = np.stack([rows[b * length + place] for b in range(4)])
        np.testing.assert_array_equal(batch["token_ids"], expected)
        np.testing.assert_array_equal(batch["starts"], [place == 0] * 4)
        previous = np.zeros_like(expected) if place == 0 else found[t - 1]["token_ids"]
        np.testing.assert_array_equal(batch["previous_ids"], previous)
    count = stream_corpus.rows("validation")
    dataset = stream_dataset(stream_corpus, "validation", 2, repeat=False)
    assert int(dataset.cardinality()) == len(list(dataset)) == count // 2
    message = f"has {count} rows?, fewer than the {count + 1} texts"
    refuses(message, stream_dataset, stream_corpus, "validation", count + 1)


def test_half_of_the_rows_read_their_text_backwards(stream_corpus):
    rows = rows_of(stream_corpus, "train")
    length = len(rows) // 2
    found = batches(stream_dataset(stream_corpus, "train", 4, bidirectional=True), length + 2)
    for t, batch in enumerate(found):
        place = t % length
        np.testing.assert_array_equal(batch["backward"], [False, False, True, True])
        np.testing.assert_array_equal(batch["starts"], [place == 0] * 4)
        for b in range(2):
            np.testing.assert_array_equal(batch["token_ids"][b], rows[b * length + place])
            row = rows[(b + 1) * length - 1 - place]
            last = np.flatnonzero(row)[-1]
            turned = [row[0], *row[1:last][::-1], *row[last:]]
            np.testing.assert_array_equal(batch["token_ids"][2 + b], turned)
    odd = "batch_size=3 must be even"
    refuses(odd, stream_dataset, stream_corpus, "train", 3, bidirectional=True)


@pytest.mark.parametrize("both", [True, *slow(False)])
def test_it_begins_at_any_step(stream_corpus, both):
    size = 4 if both else 3
    length = stream_corpus.rows("train") // (2 if both else 3)
    whole = stream_dataset(stream_corpus, "train", size, bidirectional=both)
    whole = batches(whole, 2 * length + 4)
    for start in (1, length - 1, length + 1):
        later = stream_dataset(stream_corpus, "train", size, start, bidirectional=both)
        np.testing.assert_equal(batches(later, 3), whole[start : start + 3])


@pytest.mark.parametrize("start", [0, 5])
def test_an_update_s_batches_have_texts_of_their_own(stream_corpus, start):
    """Three micro-batches of two rows contain the same rows as one batch of six rows."""
    whole = batches(stream_dataset(stream_corpus, "train", 6), 5)
    dataset = stream_dataset(stream_corpus, "train", 2, start, micro_batches=3)
    assert int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    for number, batch in enumerate(batches(dataset, 8), start):
        step, turn = divmod(number, 3)
        for name in batch:
            expected = whole[step][name][2 * turn : 2 * turn + 2]
            np.testing.assert_array_equal(batch[name], expected)


@pytest.fixture
def languages(make, sources):
    """Returns a corpus of two languages and their translation pairs."""
    return make(sources=sources, batch_alpha=0.5, packing="full_text")


def language_of(batch) -> tuple[int, ...]:
    """Returns the ids of the one or two languages in a batch; asserts that all rows agree."""
    [found] = {tuple(dict.fromkeys(row)) for row in batch["language_ids"].tolist()}
    return found


@pytest.mark.thorough
def test_each_batch_is_of_one_language_drawn_by_its_share(languages, monkeypatch):
    """Each batch has one language or one language pair.

    Updates alternate between text and translation pairs. A reader that starts at a later batch
    returns the same batches.
    """
    monkeypatch.setattr(reading, "_DRAWS_PER_CHUNK", 64)
    made = reading.language_batches(languages, 4, seed=3, per_update=2, numbered=True)
    whole = batches(made, 600)
    drawn = [language_of(batch) for batch in whole]
    assert all((len(one) == 2) == bool(number // 2 % 2) for number, one in enumerate(drawn))
    rows = {(0,): 0, (1,): 0, (1, 0): 0}
    for shard in languages.shards["train"]:
        rows[tuple(dict.fromkeys(shard.languages))] += shard.rows
    assert sum(rows.values()) == languages.rows("train") and min(rows.values()) > 0
    share = rows[0,] ** 0.5 / (rows[0,] ** 0.5 + rows[1,] ** 0.5)
    assert drawn.count((0,)) / 300 == pytest.approx(share, abs=0.08)
    assert drawn.count((1, 0)) == 300
    for language, count in rows.items():  # each row of a language occurs once per epoch
        mine = [b for b, one in zip(whole, drawn, strict=True) if one == language]
        numbers = np.concatenate([batch["row_number"] for batch in mine])
        assert len(set(numbers[:count])) == count and set(numbers) == set(numbers[:count])
    for start in (1, 63, 64, 131):
        later = batches(reading.language_batches(languages, 4, 3, start, 2, numbered=True), 5)
        np.testing.assert_equal(later, whole[start : start + 5])
    another = batches(reading.language_batches(languages, 4, seed=4), 60)
    assert [language_of(batch) for batch in another] != drawn[:60]


def test_an_alpha_of_0_draws_all_languages_alike(make, sources):
    corpus = make(sources=sources[:2], batch_alpha=0.0)
    drawn = [language_of(batch) for batch in batches(reading.language_batches(corpus, 2), 300)]
    assert 120 < drawn.count((0,)) < 180 and drawn.count((0,)) + drawn.count((1,)) == 300


def test_rows_are_held_out_by_the_run(make):
    corpus = make(packing="full_text", validation_every=4, validation_run=3)
    held_out = rows_of(corpus, "validation")
    assert len(held_out) >= 9
    for first in range(0, len(held_out) - 2, 3):
        numbers = numbers_of(corpus, held_out[first : first + 3])
        assert len(numbers) > 20 and set(np.diff(numbers)) == {1}  # rows continue the text
    assert sorted(numbers_of(corpus, rows_of(corpus))) == list(range(600))
