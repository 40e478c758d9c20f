"""Batches of a task: whole epochs, determinism, resumption, few shapes."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.tasks.classification import (
    ClassificationData,
    Examples,
    encode_examples,
    read_examples,
)
from macaron_tf.data.tasks.definitions import TASKS
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.errors import UserError
from tests.data.word_vocabulary import WordVocabulary

COUNT, LENGTH, ROWS = 203, 24, 8


@pytest.fixture(scope="module")
def vocabulary():
    return WordVocabulary("abcdefgh")


@pytest.fixture(scope="module")
def examples():
    """Pairs of 1 to 20 words; 203 = 25 x 8 + 3."""
    rng = np.random.default_rng(0)

    def texts():
        return [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 21))) for _ in range(COUNT)]

    labels = rng.integers(0, 2, COUNT).astype(np.int32)
    return Examples(texts(), texts(), labels, np.arange(COUNT) * 10, None)


@pytest.fixture(scope="module")
def data(examples, vocabulary):
    return ClassificationData.from_examples(examples, vocabulary, LENGTH, ROWS)


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def rows(batches):
    """(ids, segments, label) of the rows that count, without padding."""
    found = []
    for batch in batches:
        for ids, segments, label, weight in zip(
            batch["token_ids"], batch["segment_ids"], batch["label"], batch["weight"], strict=True
        ):
            if weight:
                length = int((ids != 0).sum())
                assert not segments[length:].any()
                found.append((tuple(ids[:length]), tuple(segments[:length]), float(label)))
            else:
                assert weight == 0 and not ids.any() and not segments.any() and label == 0
    return found


def expected(examples, vocabulary):
    second = None if examples.second is None else tf.constant(examples.second)
    encoded = encode_pairs(vocabulary, tf.constant(examples.first), second, LENGTH)
    rest = {"label": examples.labels, "weight": np.ones(len(examples))}
    return rows([{name: ids.numpy() for name, ids in encoded.items()} | rest])


def test_an_epoch_holds_each_example_once(data, examples, vocabulary):
    assert len(data) == COUNT and data.steps_per_epoch == 26
    for epoch in range(2):
        batches = itertools.islice(data.batches(3, epoch * 26), 26)
        assert sorted(rows(batches)) == sorted(expected(examples, vocabulary))


def test_seed_and_epoch_decide_the_order(data):
    first = next(data.batches(1))
    assert equal(first, next(data.batches(1)))
    assert not equal(first, next(data.batches(2)))
    assert not equal(first, next(data.batches(1, start_step=26)))


@pytest.mark.parametrize("start", [0, 1, 25, 26, 40])
def test_start_step_equals_skipping(data, start):
    whole = list(itertools.islice(data.batches(5), start + 3))
    started = list(data.dataset(5, start).take(3).as_numpy_iterator())
    assert all(equal(a, b) for a, b in zip(whole[start:], started, strict=True))


def test_few_static_shapes(data):
    assert 1 < len(data.shapes) <= 4
    shapes = {batch["token_ids"].shape for batch in itertools.islice(data.batches(), 26)}
    assert shapes <= set(data.shapes)
    assert all(size == ROWS and length % 8 == 0 for size, length in data.shapes)
    dataset = data.dataset(repeat=False)
    assert len(dataset) == 26 and len(data.dataset(start_step=27, repeat=False)) == 25
    assert data.dataset().cardinality() == tf.data.INFINITE_CARDINALITY
    assert {name: spec.shape.as_list() for name, spec in dataset.element_spec.items()} == {
        "token_ids": [ROWS, None],
        "segment_ids": [ROWS, None],
        "label": [ROWS],
        "weight": [ROWS],
    }
    assert data.summary().startswith("203 examples, 26 steps an epoch, ")


def test_evaluation_keeps_the_way_back(data, examples, vocabulary):
    found, lengths = {}, []
    for batch in data.evaluation_dataset().as_numpy_iterator():
        assert np.array_equal(batch["index"] >= 0, batch["weight"] == 1)
        real = rows([batch])
        for row, index in zip(real, batch["index"][batch["index"] >= 0], strict=True):
            found[int(index)] = row
            lengths.append(len(row[0]))
    assert [found[i] for i in range(COUNT)] == expected(examples, vocabulary)
    assert lengths == sorted(lengths)


def test_batch_sizes_share_the_rows(data):
    other = ClassificationData(data.encoded, 32)
    assert other.encoded is data.encoded and other.steps_per_epoch == 7
    assert sorted(rows(itertools.islice(other.batches(), 7))) == sorted(
        rows(itertools.islice(data.batches(), 26))
    )


def test_shared_lengths(data, examples, vocabulary):
    few = dataclasses.replace(
        examples, first=["a"], second=["b"], labels=examples.labels[:1], indices=np.array([0])
    )
    short = ClassificationData.from_examples(few, vocabulary, LENGTH, ROWS, lengths=data.lengths)
    assert short.lengths == data.lengths and short.steps_per_epoch == 1
    long = ClassificationData(data.encoded, ROWS, lengths=[8, 16])
    assert long.lengths == (8, 16, 24)


def test_no_batch_is_longer_than_the_model(examples, vocabulary):
    data = ClassificationData.from_examples(examples, vocabulary, 21, ROWS)
    assert data.lengths[-1] == 21
    assert max(batch["token_ids"].shape[1] for batch in data.evaluation_dataset()) == 21


def test_one_text_and_scores(examples, vocabulary):
    scores = np.linspace(0, 5, COUNT, dtype=np.float32)
    examples = dataclasses.replace(examples, second=None, labels=scores)
    data = ClassificationData.from_examples(examples, vocabulary, LENGTH, ROWS)
    batches = list(data.dataset(repeat=False).as_numpy_iterator())
    assert batches[0]["label"].dtype == np.float32
    assert not any(batch["segment_ids"].any() for batch in batches)
    assert sorted(rows(batches)) == sorted(expected(examples, vocabulary))


def test_without_labels(examples, vocabulary):
    secret = dataclasses.replace(examples, labels=None)
    data = ClassificationData.from_examples(secret, vocabulary, LENGTH, ROWS)
    batch = next(data.evaluation_dataset().as_numpy_iterator())
    assert set(batch) == {"token_ids", "segment_ids", "weight", "index"}
    with pytest.raises(UserError, match="no labels to learn from"):
        data.dataset()


def test_fingerprint(data, examples, vocabulary):
    def fingerprint(**changes):
        changed = dataclasses.replace(examples, **changes)
        return ClassificationData.from_examples(changed, vocabulary, LENGTH, 16).fingerprint()

    assert fingerprint() == data.fingerprint()
    assert fingerprint(labels=1 - examples.labels) != data.fingerprint()
    assert fingerprint(first=examples.second, second=examples.first) != data.fingerprint()


def test_progress_is_told(examples, vocabulary):
    told = []

    def progress(parts, total):
        for size, part in parts:
            told.append((size, total))
            yield part

    many = dataclasses.replace(
        examples, first=examples.first * 6, second=examples.second * 6, labels=None
    )
    encoded = encode_examples(vocabulary, many, LENGTH, progress)
    assert told == [(1024, 6 * COUNT), (6 * COUNT - 1024, 6 * COUNT)]
    assert encoded.rows.ids.tolist() == encode_examples(vocabulary, many, LENGTH).rows.ids.tolist()


def test_bad_settings(data, examples, vocabulary):
    with pytest.raises(UserError, match="batch_size is 0"):
        ClassificationData(data.encoded, 0)
    with pytest.raises(UserError, match="max_length is 4"):
        encode_examples(vocabulary, examples, 4)
    empty = Examples([], None, None, np.array([], np.int64), None)
    with pytest.raises(UserError, match="no example"):
        encode_examples(vocabulary, empty, LENGTH)


def test_real_pairs_with_berts_vocabulary(tfds_dir, shared_data):
    from macaron_tf.text.wordpiece import WordPieceVocabulary

    path = shared_data / "vocabularies" / "bert-base-uncased-vocab.txt"
    vocabulary = WordPieceVocabulary.from_file(path, lower_case=True)
    examples = read_examples(TASKS["rte"], "validation", tfds_dir)
    data = ClassificationData.from_examples(examples, vocabulary, 64, 16)
    assert len(data.shapes) <= 4 and data.lengths[-1] == 64
    seen = 0
    for batch in data.evaluation_dataset().as_numpy_iterator():
        for ids, segments, index in zip(
            batch["token_ids"], batch["segment_ids"], batch["index"], strict=True
        ):
            if index < 0:
                continue
            length = int((ids != 0).sum())
            assert ids[0] == 101 and ids[length - 1] == 102 and (ids == 102).sum() == 2
            boundary = length - segments.sum()
            assert ids[boundary - 1] == 102
            first, second = vocabulary.encode_lines([examples.first[index], examples.second[index]])
            assert ids[1 : boundary - 1].tolist() == first[: boundary - 2]
            assert ids[boundary : length - 1].tolist() == second[: length - 1 - boundary]
            assert length == min(64, len(first) + len(second) + 3)
            seen += 1
    assert seen == 250
