"""Batches of sentences: whole epochs, determinism, resumption, few shapes; and the triplets."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.data.tasks.sentences import (
    SentenceData,
    SentenceSets,
    encode_sentences,
    encode_sets,
    read_triplets,
)
from macaron_tf.errors import UserError
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary

COUNT, LENGTH, ROWS = 43, 12, 8


@pytest.fixture(scope="module")
def vocabulary():
    return WordPieceVocabulary((*SPECIAL_PIECES, *"abcdefgh"))


def texts(count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 20))) for _ in range(count)]


@pytest.fixture(scope="module")
def sets():
    labels = np.random.default_rng(3).uniform(0, 5, COUNT).astype(np.float32)
    return SentenceSets((texts(COUNT, 1), texts(COUNT, 2)), labels)


@pytest.fixture(scope="module")
def data(sets, vocabulary):
    return SentenceData(encode_sets(vocabulary, sets, LENGTH), ROWS)


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_rows_are_those_of_training_and_serving(vocabulary):
    lines = [*texts(30, 5), "", " ", "unknown word", "\ud800"]
    rows, cut = encode_sentences(vocabulary, lines, LENGTH)
    raw = [line.encode("utf-8", "surrogatepass") for line in lines]
    expected = encode_pairs(vocabulary, tf.constant(raw), None, LENGTH)["token_ids"].numpy()
    found = rows.padded(np.arange(len(lines)), expected.shape[1])
    np.testing.assert_array_equal(found, expected)
    assert cut == sum(len(line.split()) > LENGTH - 2 for line in lines[:30]) > 0
    assert rows.lengths.max() == LENGTH and rows.lengths[30] == 2
    assert encode_sentences(vocabulary, [], LENGTH)[0].lengths.shape == (0,)
    with pytest.raises(UserError, match="at least 3"):
        encode_sentences(vocabulary, lines, 2)


def test_an_epoch_holds_each_example_once(data, sets, vocabulary):
    columns = [encode_sentences(vocabulary, column, LENGTH)[0] for column in sets.sentences]
    expected = []
    for i, label in enumerate(sets.labels):
        pair = [rows.padded(np.array([i]), LENGTH)[0] for rows in columns]
        expected.append((*(tuple(row[row != 0]) for row in pair), label))
    assert len(data) == COUNT and data.steps_per_epoch == 6
    for epoch in range(2):
        found = []
        for batch in itertools.islice(data.batches(3, 6 * epoch), 6):
            assert batch["token_ids"].shape in data.shapes
            for ids, weight, label in zip(
                batch["token_ids"], batch["weight"], batch["label"], strict=True
            ):
                if weight:
                    found.append((*(tuple(row[row != 0]) for row in ids), label))
                else:
                    assert not ids.any() and label == 0
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("start", [0, 5, 6, 13])
def test_start_step_equals_skipping(data, start):
    whole = list(itertools.islice(data.batches(5), start + 3))
    started = list(data.dataset(5, start).take(3).as_numpy_iterator())
    assert all(equal(a, b) for a, b in zip(whole[start:], started, strict=True))
    assert not equal(whole[0], next(data.batches(6)))


def test_shapes_are_few_and_static(data, sets, vocabulary):
    assert len(data.shapes) <= 4
    assert all(shape[:2] == (ROWS, 2) and shape[2] <= LENGTH for shape in data.shapes)
    dataset = data.dataset()
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    one = SentenceData(data.encoded, ROWS, shapes=1)
    assert one.dataset().element_spec["token_ids"].shape == (ROWS, 2, LENGTH)
    assert data.summary().startswith("43 examples, 6 steps an epoch, ")
    other = SentenceSets(sets.sentences, sets.labels[::-1].copy())
    changed = SentenceData(encode_sets(vocabulary, other, LENGTH), ROWS)
    assert changed.fingerprint() != data.fingerprint() == one.fingerprint()


def test_triplets_are_read_by_their_columns(tmp_path, vocabulary):
    file = tmp_path / "train.tsv"
    file.write_text("id\tnegative\tanchor\tpositive\n1\tc\ta a\tb\r\n2\tf\td\te e\n")
    sets = read_triplets(f"tsv:{tmp_path}/{{split}}.tsv", "train")
    assert sets.sentences == (["a a", "d"], ["b", "e e"], ["c", "f"]) and sets.labels is None
    data = SentenceData(encode_sets(vocabulary, sets, LENGTH), 2)
    batch = next(data.batches())
    assert set(batch) == {"token_ids", "weight"} and batch["token_ids"].shape == (2, 3, 8)
    assert set(data.dataset().element_spec) == {"token_ids", "weight"}


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "line 1: no column named 'anchor'"),
        (b"anchor\tpositive\tnegative\tanchor\n", "line 1: 2 column named 'anchor'"),
        (b"anchor\tpositive\tnegative\n", "holds no triplet"),
        (b"anchor\tpositive\tnegative\na\tb\n", "line 2: 2 columns, not the header's 3"),
        (b"anchor\tpositive\tnegative\na\t \tc\n", "line 2: the text in column 'positive'"),
        (b"anchor\tpositive\tnegative\na\tb\tcaf\xe9\n", "line 2: not UTF-8"),
    ],
)
def test_a_bad_table_is_one_sentence(tmp_path, content, words):
    file = tmp_path / "bad.tsv"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_triplets(f"tsv:{file}", "train")
    assert str(file) in str(caught.value) and words in str(caught.value)


def test_a_source_of_another_kind_is_refused(tmp_path):
    with pytest.raises(UserError, match="give --source tsv:FILE"):
        read_triplets("tfds:glue/stsb", "train")
    with pytest.raises(UserError, match="has no split 'validation'"):
        read_triplets(f"tsv:{tmp_path}/a.tsv", "validation")
