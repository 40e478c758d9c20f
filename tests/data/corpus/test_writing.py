"""Preparing: rows, held-out text, the same bytes after any kill, one writer, damage, languages."""

import gzip
import io
import json
import os
import re
import shutil

import numpy as np
import pytest

from macaron_tf.data.corpus import writing
from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io import progress
from macaron_tf.io.files import only_writer
from macaron_tf.text.wordpiece import WordPieceVocabulary
from tests.data.corpus.number_corpus import (
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


@pytest.mark.parametrize(
    ("pairs", "least", "message", "sides"),
    [
        ("next_sentence", 4, "need four documents or more with text, two of", ({1, 3}, {0, 2})),
        ("sentence_order", 2, "need two documents or more with text, one of them", ({1}, {0})),
    ],
)
def test_pairs_need_documents_on_either_side(
    texts, vocabulary, tmp_path, pairs, least, message, sides
):
    for count in range(1, least + 1):
        sources = ",".join(f"{texts}/a/0{number}.txt" for number in range(count))
        config = config_of(texts, pairs=pairs, sources=(f"text:{sources}",))
        if count < least:
            with pytest.raises(UserError, match=message):
                prepare(config, vocabulary, tmp_path / str(count))
    corpus = prepare(config, vocabulary, tmp_path / "enough")
    found = ({n // 50 for n in numbers_of(corpus, rows_of(corpus, s))} for s in corpus.shards)
    assert tuple(found) == sides


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


def prepared_with_kills(monkeypatch, config, vocabulary, out, check=lambda: None):
    """Prepares a corpus, killed after every few file operations; returns it and the kills."""
    rename, remove = storage.tf.io.gfile.rename, storage.remove
    left = kills = 0  # `left`: file operations until the kill

    def dies(operation, after):
        def wrapped(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0 and not after:
                raise KeyboardInterrupt
            operation(*args, **kwargs)
            if left < 0:
                raise KeyboardInterrupt

        return wrapped

    while True:
        # Each life gets one or two operations further than the last one, then is killed.
        left = 3 + kills % 2
        monkeypatch.setattr(storage.tf.io.gfile, "rename", dies(rename, after=kills % 3 == 0))
        monkeypatch.setattr(storage, "remove", dies(remove, after=kills % 3 == 1))
        try:
            return prepare(config, vocabulary, out, stream=io.StringIO()), kills
        except KeyboardInterrupt:
            kills += 1
            assert kills < 100
            check()


def test_nothing_is_done_twice(texts, vocabulary, tmp_path, monkeypatch):
    corpus = prepare(config_of(texts), vocabulary, tmp_path)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    monkeypatch.setattr(WordPieceVocabulary, "encode_rows", None)
    again = prepare(config_of(texts), vocabulary, tmp_path)
    assert again.fingerprint == corpus.fingerprint == PretrainingCorpus.open(tmp_path).fingerprint
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pairs": "next_sentence", "rows_per_shard": 12},
        {"pairs": "sentence_order", "rows_per_shard": 6},
        {"packing": "full_sentences"},
        {"weights": (1.0, 2.0), "rows_per_shard": 40},
        {"weights": (1.0, 2.0), "rows_per_shard": 25, "pairs": "next_sentence"},
    ],
    ids=["text", "pairs", "order", "sentences", "mixture", "mixture of pairs"],
)
def test_a_kill_at_any_moment_leaves_the_same_bytes(
    texts, vocabulary, tmp_path, monkeypatch, settings
):
    settings = dict(settings)
    if weights := settings.pop("weights", None):
        settings["sources"] = weighted(texts, *weights)
    config = config_of(texts, **settings)
    prepare(config, vocabulary, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    out = tmp_path / "killed"

    def check():
        assert not (out / "corpus.json").exists() or contents(out).items() >= whole.items()

    corpus, kills = prepared_with_kills(monkeypatch, config, vocabulary, out, check)
    assert kills >= 3
    assert contents(out) == whole
    assert corpus.fingerprint == PretrainingCorpus.open(tmp_path / "whole").fingerprint


def test_going_on_does_not_tokenize_again(texts, vocabulary, tmp_path, monkeypatch):
    config = config_of(texts)
    written, write_state = [], writing.write_state

    def counted(*args):
        write_state(*args)
        written.append(args)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(writing, "write_state", counted)
    with pytest.raises(KeyboardInterrupt):
        prepare(config, vocabulary, tmp_path)
    with pytest.raises(UserError, match="is not finished: give the command"):
        PretrainingCorpus.open(tmp_path)
    lines = []
    encode_rows = vocabulary.encode_rows
    monkeypatch.setattr(vocabulary, "encode_rows", lambda x: lines.extend(x) or encode_rows(x))
    prepare(config, vocabulary, tmp_path)
    assert lines[0].startswith("300 ") and len(lines) == 60  # documents 6 to 11


def test_another_folder_is_asked_for(texts, vocabulary, tmp_path):
    prepare(config_of(texts), vocabulary, tmp_path / "out")
    (tmp_path / "more.txt").write_text("1 2 3")
    changes = {
        "has sequence_length 16, not 32": config_of(texts, sequence_length=32),
        "has seed 0, not 1": config_of(texts, seed=1),
        "has sources": config_of(texts, sources=(f"text-lines:{texts}/a/*.txt",)),
        "are not those that the corpus": config_of(texts, sources=(f"text:{texts}/b/*.txt",)),
    }
    for message, config in changes.items():
        with pytest.raises(UserError, match=message):
            prepare(config, vocabulary, tmp_path / "out")
    other = WordPieceVocabulary(vocabulary.words[:-1])
    with pytest.raises(UserError, match="vocabulary mismatch: the corpus in"):
        prepare(config_of(texts), other, tmp_path / "out")


@pytest.fixture
def moved(texts, vocabulary, tmp_path):
    """A corpus, and what asks for it again with its files elsewhere and written today."""
    shutil.copytree(texts / "a", tmp_path / "elsewhere")
    out, config = tmp_path / "out", config_of(texts)
    prepare(config, vocabulary, out)
    elsewhere = config_of(texts, sources=(f"text:{tmp_path}/elsewhere/*.txt",))
    return out, lambda: prepare(elsewhere, vocabulary, out)


def test_copied_files_are_the_same(moved, tmp_path, monkeypatch):
    out, again = moved
    for file in (tmp_path / "elsewhere").iterdir():
        os.utime(file, (1, 1))
    monkeypatch.setattr(WordPieceVocabulary, "encode_rows", None)
    assert again().fingerprint == PretrainingCorpus.open(out).fingerprint


def test_changed_files_are_noticed(moved, tmp_path):
    _, again = moved
    file = tmp_path / "elsewhere" / "01.txt"
    text = file.read_text()
    file.write_text(text.replace("50 51", "51 50"))
    assert len(file.read_text()) == len(text)
    with pytest.raises(UserError, match="the files of the sources are not those") as caught:
        again()
    assert "\n" not in str(caught.value)
    file.write_text(text)
    again()
    (tmp_path / "elsewhere" / "more.txt").write_text("1 2 3")
    with pytest.raises(UserError, match="the files of the sources are not those"):
        again()


def test_damage_is_named(texts, vocabulary, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"no corpus in .*corpus\.json"):
        PretrainingCorpus.open(out)
    prepare(config_of(texts), vocabulary, out)
    whole = contents(out)
    shard = whole["train-00001.tfrecord"]
    flipped = bytes([*shard[:40], shard[40] ^ 1, *shard[41:]])
    index = json.loads(whole["corpus.json"])
    index["settings"]["vocabulary"] = "0" * 64
    damage = [
        ("train-00001.tfrecord", None, r"train-00001\.tfrecord is missing or damaged"),
        ("train-00001.tfrecord", shard[:-1], "missing or damaged"),
        ("train-00001.tfrecord", flipped, "missing or damaged"),
        ("validation-00000.tfrecord", b"", r"validation-00000\.tfrecord is missing or damaged"),
        ("corpus.json", whole["corpus.json"][:-9], r"corpus\.json is damaged"),
        ("corpus.json", b"{}", r"corpus\.json is damaged"),
        ("corpus.json", json.dumps({**index, "format": 99}).encode(), "of format 99, not 1"),
        ("corpus.json", json.dumps(index).encode(), "vocabulary mismatch"),
        ("vocabulary.txt", None, r"cannot read .*vocabulary\.txt"),
    ]
    for name, content, message in damage:
        if content is None:
            (out / name).unlink()
        else:
            (out / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            PretrainingCorpus.open(out)
        (out / name).write_bytes(whole[name])
    # Sizes alone do not show a flipped bit: the record's own checksum does, when it is read.
    (out / "train-00001.tfrecord").write_bytes(flipped)
    corpus = PretrainingCorpus.open(out, verify=False)
    with pytest.raises(Exception, match="corrupted record"):
        rows_of(corpus, "train")


def test_an_unfinished_folder_that_is_damaged(texts, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "remove_leftovers", lambda out: None)
    prepare(config_of(texts), vocabulary, tmp_path)
    monkeypatch.undo()
    (tmp_path / "corpus.json").unlink()
    whole = (tmp_path / "progress.json").read_bytes()
    for content, message in ((whole[:-20], "damaged"), (b"[]", "damaged")):
        (tmp_path / "progress.json").write_bytes(content)
        with pytest.raises(UserError, match=rf"progress\.json is {message}"):
            prepare(config_of(texts), vocabulary, tmp_path)
    (tmp_path / "progress.json").write_bytes(whole)
    (tmp_path / "train-00002.tfrecord").write_bytes(b"")
    with pytest.raises(UserError, match=r"train-00002\.tfrecord is missing or damaged: remove"):
        prepare(config_of(texts), vocabulary, tmp_path)
    with pytest.raises(UserError, match="has seed 0, not 7"):
        prepare(config_of(texts, seed=7), vocabulary, tmp_path)


def test_a_folder_that_cannot_be_written(texts, vocabulary, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write .*file/out: .*; choose another place"):
        prepare(config_of(texts), vocabulary, tmp_path / "file" / "out")
    if os.geteuid():  # root may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(UserError, match="cannot write"):
            prepare(config_of(texts), vocabulary, tmp_path / "locked")


def test_a_second_process_waits_for_its_turn(texts, vocabulary, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with (
        only_writer(out, "preparing a corpus"),
        pytest.raises(UserError, match=f"process is preparing a corpus in {out}: wait for it or"),
    ):
        prepare(config_of(texts), vocabulary, out)
    assert contents(out) == {}
    corpus = prepare(config_of(texts), vocabulary, out)
    with only_writer(out, "preparing a corpus"):  # a finished one is only read
        assert prepare(config_of(texts), vocabulary, out).fingerprint == corpus.fingerprint

    # The first one ends while the second one asks for the lock.
    exists, asked = storage.exists, []
    monkeypatch.setattr(
        storage, "exists", lambda path: asked.append(path) or (len(asked) > 1 and exists(path))
    )
    monkeypatch.setattr(writing, "_write", None)
    assert prepare(config_of(texts), vocabulary, out).fingerprint == corpus.fingerprint


def sources_of(texts, tmp_path) -> tuple[CorpusSource, ...]:
    """Numbers to 599 in "a", from 600 in "b", and 40 pairs n, n + 600, one of them too long."""
    pairs = [(f"{n} {n + 1}", f"{n + 600}") for n in range(40)]
    pairs[7] = (" ".join(["7"] * 20), "607")
    (tmp_path / "pairs.tsv").write_text("\n".join("\t".join(pair) for pair in pairs))
    return (
        CorpusSource(f"text:{texts}/a/*.txt", language="a"),
        CorpusSource(f"text:{texts}/b/*.txt", language="b"),
        CorpusSource(f"tsv:{tmp_path}/pairs.tsv", language=("b", "a")),
    )


@pytest.mark.parametrize("packing", ["doc_text", "doc_sentences", "full_text", "full_sentences"])
def test_rows_of_several_languages(texts, vocabulary, tmp_path, packing):
    config = config_of(texts, sources=sources_of(texts, tmp_path), packing=packing)
    corpus = prepare(config, vocabulary, tmp_path / "out")
    assert corpus.config.languages == ("a", "b")
    assert " in a, b, " in corpus.summary()
    translations, found = [], []
    for split in ("train", "validation"):
        for batch in corpus.dataset(split, 1, seed=None, repeat=False):
            row = {name: value.numpy()[0] for name, value in batch.items()}
            ids, languages = row["token_ids"], row["language_ids"]
            numbers = numbers_of(corpus, ids)
            if row["segment_ids"].any():
                boundary = int(np.flatnonzero(row["segment_ids"])[0])
                assert ids[boundary - 1] == 3 and (ids == 3).sum() == 2
                assert languages.tolist() == [1] * boundary + [0] * (16 - boundary)
                expected = [*range(boundary), *range(16 - boundary)]
                assert row["position_ids"].tolist() == expected
                translations.append(tuple(numbers))
            else:
                assert set(languages) == {int(numbers[0] >= 600)}
                assert len({number >= 600 for number in numbers}) == 1
                assert row["position_ids"].tolist() == list(range(16))
                found += numbers
    assert sorted(translations) == [(n, n + 1, n + 600) for n in range(40) if n != 7]
    assert sorted(found) == list(range(750))


def test_sentence_order_of_several_languages(texts, vocabulary, tmp_path):
    sources = sources_of(texts, tmp_path)[:2]
    corpus = prepare(
        config_of(texts, sources=sources, pairs="sentence_order"), vocabulary, tmp_path / "out"
    )
    seen = set()
    for batch in corpus.dataset("train", 1, seed=None, repeat=False):
        assert "position_ids" not in batch
        numbers = numbers_of(corpus, batch["token_ids"].numpy()[0])
        assert set(batch["language_ids"].numpy()[0]) == {int(numbers[0] >= 600)}
        seen.add(numbers[0] >= 600)
    assert seen == {False, True}


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_languages_come_again_but_hold_out(texts, vocabulary, tmp_path, monkeypatch, alpha):
    """And a kill leaves the same bytes."""
    config = config_of(
        texts, sources=sources_of(texts, tmp_path), language_alpha=alpha, rows_per_shard=40
    )
    corpus = prepare(config, vocabulary, tmp_path / "whole", stream=io.StringIO())
    rows = {
        split: {
            tuple(row)
            for batch in corpus.dataset(split, 1, seed=None, repeat=False)
            for row in batch["token_ids"].numpy().tolist()
        }
        for split in ("train", "validation")
    }
    assert rows["validation"] and not rows["train"] & rows["validation"]
    assert corpus.rows("train") > len(rows["train"])  # some come again
    _, kills = prepared_with_kills(monkeypatch, config, vocabulary, tmp_path / "killed")
    assert kills >= 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert PretrainingCorpus.open(tmp_path / "killed").config == config


def test_what_cannot_be_read(texts, vocabulary, tmp_path):
    (tmp_path / "blank.tsv").write_text("1\t \n")
    for source, message in (
        (CorpusSource("tsv:x.tsv"), "tsv:x.tsv holds translation pairs: name its two languages"),
        (CorpusSource(f"tsv:{tmp_path}/x.tsv", language=("a", "b")), "cannot read .*x.tsv"),
        (
            CorpusSource(f"tsv:{tmp_path}/blank.tsv", language=("a", "b")),
            "blank.tsv holds no pair with text on both sides",
        ),
        (
            CorpusSource("homeassistant:de", language=("en", "fr")),
            "homeassistant:de cannot give 'en' to 'fr'",
        ),
        (
            CorpusSource("homeassistant:de", language="fr"),
            "homeassistant:de is not in 'fr': give it the language 'de'",
        ),
    ):
        config = config_of(texts, sources=(source,))
        with pytest.raises(UserError, match=message):
            prepare(config, vocabulary, tmp_path / re.sub(r"\W", "", str(source)))


def test_an_embedded_corpus_in_one_language(tmp_path, vocabulary, monkeypatch):
    from macaron_tf.data.sources import homeassistant as corpora

    documents = {"train": ["1 2 3\n4", "5"], "validation": ["6"], "test": ["7"]}
    monkeypatch.setattr(corpora, "fetch_homeassistant", lambda: "wheel")
    monkeypatch.setattr(corpora, "wheel_documents", lambda wheel, language: documents)
    config = CorpusConfig(
        (CorpusSource("homeassistant:de", language="de"),), sequence_length=8, validation_every=2
    )
    corpus = prepare(config, vocabulary, tmp_path)
    assert (corpus.rows("train"), corpus.rows("validation")) == (1, 1)
    assert prepare(config, vocabulary, tmp_path).fingerprint == corpus.fingerprint
