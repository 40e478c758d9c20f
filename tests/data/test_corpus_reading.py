"""Batches of a prepared corpus: static, seeded, the same after a restart."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.corpus_config import CorpusConfig
from macaron_tf.data.corpus_files import RecordFormat
from macaron_tf.data.packing import Rows
from macaron_tf.data.pretraining_corpus import PretrainingCorpus, prepare
from macaron_tf.data.wordpiece import WordPieceVocabulary
from macaron_tf.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROWS = 90


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> PretrainingCorpus:
    """100 documents of one row, 10 a shard; the numbers of a row are its own."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [f"{number} {number} {number}" for number in range(100)]
    (folder / "lines.txt").write_text("\n".join(lines))
    vocabulary = WordPieceVocabulary([*SPECIAL, *map(str, range(100))])
    config = CorpusConfig(
        (f"text-lines:{folder}/lines.txt",),
        sequence_length=8,
        validation_every=10,
        rows_per_shard=10,
    )
    corpus = prepare(config, vocabulary, folder / "out")
    assert corpus.rows("train") == ROWS and len(corpus.shards["train"]) == 10
    return corpus


def first_ids(dataset) -> list[list[int]]:
    return [(batch["token_ids"].numpy()[:, 1] - len(SPECIAL)).tolist() for batch in dataset]


@pytest.mark.parametrize("shuffled_rows", [1, 30, 1000])
def test_each_epoch_is_a_permutation(corpus, monkeypatch, shuffled_rows):
    monkeypatch.setattr(corpus, "shuffled_rows", shuffled_rows)
    rows = sum(first_ids(corpus.dataset("train", 9, seed=3).take(20)), [])  # noqa: RUF017
    everything = [number for number in range(100) if number % 10]
    assert sorted(rows[:ROWS]) == sorted(rows[ROWS:]) == everything
    assert rows[:ROWS] != rows[ROWS:] and rows[:ROWS] != everything
    if shuffled_rows == 1000:  # rows of one shard are dealt over the whole epoch
        assert np.std([rows.index(number) for number in range(1, 10)]) > 12
    in_order = first_ids(corpus.dataset("train", 9, seed=None).take(10))
    assert sum(in_order, []) == everything  # noqa: RUF017


def test_the_seed_decides(corpus):
    def rows(seed):
        return first_ids(corpus.dataset("train", 9, seed=seed).take(10))

    assert rows(1) == rows(1) != rows(2)


@pytest.mark.parametrize("batch_size", [7, 100])
@pytest.mark.parametrize("shuffled_rows", [25, 1000])
def test_a_restart_gives_the_same_batches(corpus, monkeypatch, batch_size, shuffled_rows):
    monkeypatch.setattr(corpus, "shuffled_rows", shuffled_rows)
    through = first_ids(corpus.dataset("train", batch_size, seed=5).take(16))
    for step in (1, 9, 13):
        restarted = corpus.dataset("train", batch_size, seed=5, start_step=step)
        assert first_ids(restarted.take(3)) == through[step : step + 3]


def test_static_shapes(corpus):
    spec = corpus.dataset("train", 4).element_spec
    expected = tf.TensorSpec([4, 8], tf.int32)
    assert spec == {"token_ids": expected, "segment_ids": expected}
    spec = corpus.dataset("train", 4, drop_remainder=False, repeat=False).element_spec
    assert spec["token_ids"] == tf.TensorSpec([None, 8], tf.int32)


def test_one_epoch(corpus):
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


def test_a_restart_far_ahead_reads_one_group_only(corpus, monkeypatch):
    monkeypatch.setattr(corpus, "shuffled_rows", 1)
    dataset = corpus.dataset("train", 9, seed=0, start_step=10_007)
    (batch,) = first_ids(dataset.take(1))
    assert batch == first_ids(corpus.dataset("train", 9, seed=0, start_step=10_000).take(8))[7]


def test_what_cannot_be_asked_for(corpus):
    with pytest.raises(UserError, match="no split 'test': it has train, validation"):
        corpus.dataset("test", 4)
    with pytest.raises(UserError, match="has 10 rows, too few for a batch of 11"):
        corpus.dataset("validation", 11, repeat=False)
    with pytest.raises(UserError, match="batch_size is 0"):
        corpus.dataset("train", 0)
    assert "90 training and 10 validation rows of 8 ids" in corpus.summary()


@pytest.mark.parametrize("vocabulary_size", [1 << 16, 70_000])
def test_a_record_comes_back(vocabulary_size):
    record = RecordFormat.of(6, True, vocabulary_size)
    top = vocabulary_size - 1
    token_ids = np.array([[2, 5, 3, top, 3, 0], [2, top, top, 3, 6, 3]], np.int32)
    rows = Rows(token_ids, np.array([3, 4]), np.array([1, 0]), np.array([0, 0]))
    encoded = record.encoded(rows)
    assert {len(r) + 16 for r in encoded} == {record.file_bytes}
    found = record.decoded(tf.constant(encoded))
    assert found["token_ids"].numpy().tolist() == token_ids.tolist()
    assert found["segment_ids"].numpy().tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
    assert found["next_sentence"].numpy().tolist() == [1, 0]


def test_the_fingerprint_is_of_the_rows(corpus, tmp_path):
    (tmp_path / "lines.txt").write_text(
        "\n".join(f"{number} {number} {number}" for number in range(100))
    )
    fields = {"sequence_length": 8, "validation_every": 10, "rows_per_shard": 10}
    source = f"text-lines:{tmp_path}/lines.txt"
    same = prepare(CorpusConfig((source,), **fields), corpus.vocabulary, tmp_path / "same")
    assert same.fingerprint == corpus.fingerprint
    fields["validation_every"] = 20
    other = prepare(CorpusConfig((source,), **fields), corpus.vocabulary, tmp_path / "other")
    assert other.fingerprint != corpus.fingerprint
