"""Preparing: what is in the rows, what is held out, what is refused."""

import gzip
import io
import re

import numpy as np
import pytest

from macaron_tf.data.corpus.writing import prepare
from macaron_tf.errors import UserError
from macaron_tf.io import progress
from tests.data.number_corpus import (
    config_of,
    contents,
    numbers_of,
    rows_of,
    weighted,
)


def test_every_token_once_and_one_row_in_ten_held_out(texts, vocabulary, tmp_path):
    corpus = prepare(config_of(texts), vocabulary, tmp_path / "out")
    # 60 ids a document, 14 a row: 5 rows.
    assert corpus.rows("validation") == 6 and corpus.rows("train") == 54
    train, validation = rows_of(corpus, "train"), rows_of(corpus, "validation")
    assert train.shape == (54, 16) and train.dtype == np.int32
    assert sorted(numbers_of(corpus, train) + numbers_of(corpus, validation)) == list(range(600))
    for row in train:
        documents = {number // 50 for number in numbers_of(corpus, row)}
        assert len(documents) == 1
    assert corpus.sequence_length == 16 and corpus.vocabulary.hash == vocabulary.hash
    # A shard ends with the document that brings it to 12 rows: 15 of them, less those held out.
    assert [shard.rows for shard in corpus.shards["train"]] == [13, 14, 13, 14]
    assert sorted(contents(tmp_path / "out")) == [
        "corpus.json",
        *(f"train-0000{n}.tfrecord" for n in range(4)),
        "validation-00000.tfrecord",
        "vocabulary.json",
        "vocabulary.txt",
    ]


def test_rows_across_documents(texts, vocabulary, tmp_path):
    corpus = prepare(config_of(texts, packing="full_text"), vocabulary, tmp_path)
    rows = np.concatenate([rows_of(corpus, "train"), rows_of(corpus, "validation")])
    assert ((rows != 0).sum(axis=1) >= 15).mean() > 0.9
    assert sorted(numbers_of(corpus, rows)) == list(range(600))
    inner = (rows == 3).sum(axis=1) - 1
    assert inner.sum() >= 8  # a [SEP] between two documents, within the shards


def test_pairs(texts, vocabulary, tmp_path):
    corpus = prepare(config_of(texts, pairs="next_sentence"), vocabulary, tmp_path)
    labels = []
    for batch in corpus.dataset("train", 1, seed=None, repeat=False):
        ids, segments = batch["token_ids"].numpy()[0], batch["segment_ids"].numpy()[0]
        first, second = np.flatnonzero(ids == 3)
        assert segments.tolist() == [0] * (first + 1) + [1] * (second - first) + [0] * (15 - second)
        a, b = numbers_of(corpus, ids[:first]), numbers_of(corpus, ids[first:])
        same = not a or not b or a[0] // 50 == b[0] // 50
        assert same == (batch["pair_label"].numpy()[0] == 0)
        labels.append(not same)
    assert 0.35 < np.mean(labels) < 0.75


def test_sentence_order(texts, vocabulary, tmp_path):
    config = config_of(texts, pairs="sentence_order", sequence_length=32, validation_every=4)
    corpus = prepare(config, vocabulary, tmp_path)
    documents = {"train": set(), "validation": set()}
    labels = []
    for split, found in documents.items():
        for batch in corpus.dataset(split, 1, seed=None, repeat=False):
            ids, label = batch["token_ids"].numpy()[0], batch["pair_label"].numpy()[0]
            first, _ = np.flatnonzero(ids == 3)
            a, b = numbers_of(corpus, ids[:first]), numbers_of(corpus, ids[first:])
            assert len({number // 50 for number in a + b}) == 1
            if a and b:  # a half may be a full stop
                assert (a[-1] < b[0]) == (label == 0)
            labels.append(label)
            found.update(number // 50 for number in a + b)
    assert documents == {"train": {1, 3, 5, 6, 7, 9, 10, 11}, "validation": {0, 2, 4, 8}}
    assert 0.25 < np.mean(labels) < 0.75


def test_sentence_order_needs_one_document_on_either_side(texts, vocabulary, tmp_path):
    for count in (1, 2):
        sources = ",".join(f"{texts}/a/0{number}.txt" for number in range(count))
        config = config_of(texts, pairs="sentence_order", sources=(f"text:{sources}",))
        if count == 1:
            with pytest.raises(UserError, match="two documents or more with text, one of them"):
                prepare(config, vocabulary, tmp_path / "one")
        else:
            corpus = prepare(config, vocabulary, tmp_path / "two")
            assert corpus.rows("train") and corpus.rows("validation")


def test_a_last_document_that_is_held_out_alone(texts, vocabulary, tmp_path):
    # Shards of a document; of twelve, numbers 0, 2 and 11 are held out.
    config = config_of(texts, pairs="sentence_order", validation_every=11, rows_per_shard=1)
    corpus = prepare(config, vocabulary, tmp_path)
    assert len(corpus.shards["train"]) == 9
    held_out = numbers_of(corpus, rows_of(corpus, "validation"))
    assert {number // 50 for number in held_out} == {0, 2, 11}


@pytest.mark.parametrize("packing", ["doc_sentences", "full_sentences"])
def test_rows_of_sentences(texts, vocabulary, tmp_path, packing):
    config = config_of(texts, packing=packing, sequence_length=22)
    corpus = prepare(config, vocabulary, tmp_path)
    rows = np.concatenate([rows_of(corpus, "train"), rows_of(corpus, "validation")])
    assert sorted(numbers_of(corpus, rows)) == list(range(600))
    stop = corpus.vocabulary.pieces - 1
    for row in rows:  # three sentences of 6 ids fit
        last = np.flatnonzero(row == 3)[-1]
        assert row[last - 1] == stop and (row == stop).sum() <= 3
    inner = (rows == 3).sum(axis=1) - 1
    assert (len(rows), inner.sum()) == ((48, 0) if packing == "doc_sentences" else (42, 6))


def test_a_last_document_that_is_alone_finds_another(texts, vocabulary, tmp_path):
    # 9 documents of 5 rows to train on and one of one: the last shard would hold that one alone.
    (tmp_path / "z.txt").write_text("701 702 703. 704 705 706.\n707 708 709.")
    sources = (f"text:{texts}/a/*.txt,{tmp_path}/z.txt",)
    config = config_of(texts, pairs="next_sentence", sources=sources, rows_per_shard=15)
    corpus = prepare(config, vocabulary, tmp_path / "out")
    assert {701, 709} <= set(numbers_of(corpus, rows_of(corpus, "train")))
    assert len(corpus.shards["train"]) == 3


@pytest.mark.parametrize("weights", [None, (1.0, 1.0)], ids=["once", "again"])
def test_no_text_of_a_validation_pair_is_trained_on(texts, vocabulary, tmp_path, weights):
    changes = {"sources": weighted(texts, *weights)} if weights else {}
    config = config_of(
        texts, pairs="next_sentence", validation_every=4, sequence_length=48, **changes
    )
    corpus = prepare(config, vocabulary, tmp_path)
    train = [ids.tolist() for ids in rows_of(corpus, "train")]
    trained = {tuple(row[i : i + 8]) for row in train for i in range(41)}
    held_out = set(numbers_of(corpus, rows_of(corpus, "validation")))
    held_out = {number // 50 for number in held_out}
    found = set()
    for number, path in enumerate(sorted(texts.rglob("*.txt"))):
        ids = vocabulary.encode_rows([path.read_text()]).ids.tolist()
        eights = {tuple(ids[i : i + 8]) for i in range(len(ids) - 7)}
        if eights & trained:
            found.add(number)
    documents = set(range(15 if weights else 12))
    assert found == documents - held_out
    # Numbers 0, 2, 4, 8 and, of 15, 12; in a mixture in the order in which they first come.
    assert len(held_out) == (5 if weights else 4)
    if weights:
        times = np.bincount(numbers_of(corpus, rows_of(corpus, "train")), minlength=750)
        assert times[600:].max() > 3  # the second source's were read again
    labels = [
        batch["pair_label"].numpy()
        for batch in corpus.dataset("validation", 1, seed=None, repeat=False)
    ]
    assert 0.3 < np.mean(labels) < 0.8


def test_pairs_need_two_documents_on_either_side(texts, vocabulary, tmp_path):
    for count in range(1, 5):
        sources = ",".join(f"{texts}/a/0{number}.txt" for number in range(count))
        config = config_of(texts, pairs="next_sentence", sources=(f"text:{sources}",))
        out = tmp_path / str(count)
        if count < 4:
            with pytest.raises(UserError, match="need four documents or more with text, two of"):
                prepare(config, vocabulary, out)
        else:
            corpus = prepare(config, vocabulary, out)
            train, held_out = (
                {number // 50 for number in numbers_of(corpus, rows_of(corpus, split))}
                for split in ("train", "validation")
            )
            assert (train, held_out) == ({1, 3}, {0, 2})


def test_weights_repeat_but_hold_out(texts, vocabulary, tmp_path):
    sources = weighted(texts, 1.0, 1.0)
    corpus = prepare(config_of(texts, sources=sources), vocabulary, tmp_path)
    train = numbers_of(corpus, rows_of(corpus, "train"))
    held_out = numbers_of(corpus, rows_of(corpus, "validation"))
    assert set(train) | set(held_out) == set(range(750))
    assert not set(train) & set(held_out)
    times = np.bincount(train, minlength=750)
    assert times[600:].max() >= 2 and times[:600].max() == 1


def test_sources_that_cannot_be_read(texts, vocabulary, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"1 2 \xfc")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"1 2 3" * 1000)[:-9])
    (tmp_path / "blank.txt").write_text("\x00\u200b")
    for name, message in (
        ("nothing.txt", "no file matches"),
        ("latin.txt", "line 1: not UTF-8"),
        ("empty.txt", "holds no text"),
        ("cut.txt.gz", "not a whole gzip file"),
        ("blank.txt", "hold no text that the vocabulary can cut"),
    ):
        config = config_of(texts, sources=(f"text:{tmp_path}/{name}",))
        with pytest.raises(UserError, match=message):
            prepare(config, vocabulary, tmp_path / "out" / name)


def test_a_line_of_ten_megabytes(texts, vocabulary, tmp_path):
    (tmp_path / "long.txt").write_text("1 22 333 " * (10_000_000 // 9))
    config = config_of(texts, sources=(f"text:{tmp_path}/long.txt",), sequence_length=512)
    corpus = prepare(config, vocabulary, tmp_path / "out")
    assert corpus.rows("train") + corpus.rows("validation") == -(-(10_000_000 // 9 * 3) // 510)


def test_progress_is_shown(texts, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS", 0)
    stream = io.StringIO()
    prepare(config_of(texts), vocabulary, tmp_path / "lines", stream=stream)
    last = stream.getvalue().splitlines()[-1]
    assert re.fullmatch(r"12 of 12 documents  60 rows  840 tokens  [\d,]+ tokens/s", last)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    prepare(config_of(texts), vocabulary, tmp_path / "bar", stream=stream)
    assert "12 documents" in stream.getvalue()


def test_progress_counts_the_rows_that_come_again(texts, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS", 0)
    stream = io.StringIO()
    config = config_of(texts, sources=weighted(texts, 1.0, 1.0))
    corpus = prepare(config, vocabulary, tmp_path, stream=stream)
    rows = corpus.rows("train") + corpus.rows("validation")
    assert rows > 75
    assert f" documents  {rows} rows  " in stream.getvalue().splitlines()[-1]
