"""Preparing: what is in the rows, the same bytes after any kill, what is refused."""

import gzip
import io
import json
import os
import re

import numpy as np
import pytest

from macaron_tf.data import storage
from macaron_tf.data.corpus_config import CorpusConfig, CorpusSource
from macaron_tf.data.pretraining_corpus import PretrainingCorpus, prepare
from macaron_tf.data.wordpiece import WordPieceVocabulary
from macaron_tf.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def vocabulary():
    """A piece for each number, so that every id of a row tells where it comes from."""
    return WordPieceVocabulary([*SPECIAL, *map(str, range(1000)), "."])


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two folders: 12 documents of 0 to 599 in sentences of 5, 3 of 600 to 749."""
    folder = tmp_path_factory.mktemp("texts")
    for name, first, documents in (("a", 0, 12), ("b", 600, 3)):
        (folder / name).mkdir()
        for document in range(documents):
            numbers = np.arange(50).reshape(10, 5) + first + 50 * document
            sentences = (" ".join(map(str, row)) + "." for row in numbers)
            (folder / name / f"{document:02d}.txt").write_text("\n".join(sentences))
    return folder


def config_of(texts, **settings) -> CorpusConfig:
    settings = {
        "sources": (f"text:{texts}/a/*.txt",),
        "sequence_length": 16,
        "validation_every": 10,
        "rows_per_shard": 12,
        **settings,
    }
    return CorpusConfig(**settings)


def rows_of(corpus, split) -> np.ndarray:
    dataset = corpus.dataset(split, 7, seed=None, repeat=False, drop_remainder=False)
    return np.concatenate([batch["token_ids"].numpy() for batch in dataset])


def numbers_of(corpus, rows) -> list[int]:
    ids = rows[(rows >= len(SPECIAL)) & (rows < corpus.vocabulary.pieces - 1)]
    return (ids - len(SPECIAL)).tolist()


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


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
    corpus = prepare(config_of(texts, cross_documents=True), vocabulary, tmp_path)
    rows = np.concatenate([rows_of(corpus, "train"), rows_of(corpus, "validation")])
    assert ((rows != 0).sum(axis=1) >= 15).mean() > 0.9
    assert sorted(numbers_of(corpus, rows)) == list(range(600))
    inner = (rows == 3).sum(axis=1) - 1
    assert inner.sum() >= 8  # a [SEP] between two documents, within the shards


def test_pairs(texts, vocabulary, tmp_path):
    corpus = prepare(config_of(texts, next_sentence=True), vocabulary, tmp_path)
    labels = []
    for batch in corpus.dataset("train", 1, seed=None, repeat=False):
        ids, segments = batch["token_ids"].numpy()[0], batch["segment_ids"].numpy()[0]
        first, second = np.flatnonzero(ids == 3)
        assert segments.tolist() == [0] * (first + 1) + [1] * (second - first) + [0] * (15 - second)
        a, b = numbers_of(corpus, ids[:first]), numbers_of(corpus, ids[first:])
        same = not a or not b or a[0] // 50 == b[0] // 50
        assert same == (batch["next_sentence"].numpy()[0] == 0)
        labels.append(not same)
    assert 0.35 < np.mean(labels) < 0.75


def test_a_last_document_that_is_alone_finds_another(texts, vocabulary, tmp_path):
    # 12 documents of 5 rows and one of one: the last shard would hold that one alone.
    (tmp_path / "z.txt").write_text("701 702 703. 704 705 706.\n707 708 709.")
    sources = (f"text:{texts}/a/*.txt,{tmp_path}/z.txt",)
    config = config_of(texts, next_sentence=True, sources=sources, rows_per_shard=10)
    corpus = prepare(config, vocabulary, tmp_path / "out")
    rows = np.concatenate([rows_of(corpus, "train"), rows_of(corpus, "validation")])
    assert {701, 709} <= set(numbers_of(corpus, rows))
    assert len(corpus.shards["train"]) == 6
    config = config_of(texts, next_sentence=True, sources=(f"text:{tmp_path}/z.txt",))
    with pytest.raises(UserError, match="need two documents or more"):
        prepare(config, vocabulary, tmp_path / "alone")


def test_weights_repeat_but_hold_out(texts, vocabulary, tmp_path):
    sources = (
        CorpusSource(f"text:{texts}/a/*.txt", weight=1.0),
        CorpusSource(f"text:{texts}/b/*.txt", weight=1.0),
    )
    corpus = prepare(config_of(texts, sources=sources), vocabulary, tmp_path)
    train = numbers_of(corpus, rows_of(corpus, "train"))
    held_out = numbers_of(corpus, rows_of(corpus, "validation"))
    assert set(train) | set(held_out) == set(range(750))
    assert not set(train) & set(held_out)
    times = np.bincount(train, minlength=750)
    assert times[600:].max() >= 2 and times[:600].max() == 1


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
        {"next_sentence": True, "rows_per_shard": 25},
        {"weights": (1.0, 2.0), "rows_per_shard": 40},
    ],
    ids=["text", "pairs", "mixture"],
)
def test_a_kill_at_any_moment_leaves_the_same_bytes(
    texts, vocabulary, tmp_path, monkeypatch, settings
):
    settings = dict(settings)
    if weights := settings.pop("weights", None):
        settings["sources"] = tuple(
            CorpusSource(f"text:{texts}/{name}/*.txt", weight=weight)
            for name, weight in zip("ab", weights, strict=True)
        )
    config = config_of(texts, **settings)
    prepare(config, vocabulary, tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    rename, remove = storage.tf.io.gfile.rename, storage.remove
    left = 0  # file operations until the kill

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

    out, kills = tmp_path / "killed", 0
    while True:
        # Each life gets one or two operations further than the last one, then is killed.
        left = 3 + kills % 2
        monkeypatch.setattr(storage.tf.io.gfile, "rename", dies(rename, after=kills % 3 == 0))
        monkeypatch.setattr(storage, "remove", dies(remove, after=kills % 3 == 1))
        try:
            corpus = prepare(config, vocabulary, out, stream=io.StringIO())
            break
        except KeyboardInterrupt:
            kills += 1
            assert kills < 100
            assert not (out / "corpus.json").exists() or contents(out).items() >= whole.items()
    assert kills >= 3
    assert contents(out) == whole
    assert corpus.fingerprint == PretrainingCorpus.open(tmp_path / "whole").fingerprint


def test_going_on_does_not_tokenize_again(texts, vocabulary, tmp_path, monkeypatch):
    from macaron_tf.data import corpus_state, pretraining_corpus

    config = config_of(texts)
    written = []

    def counted(*args):
        corpus_state.write_state(*args)
        written.append(args)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(pretraining_corpus, "write_state", counted)
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
        "has sources": config_of(texts, sources=(f"text:{texts}/b/*.txt",)),
    }
    for message, config in changes.items():
        with pytest.raises(UserError, match=message):
            prepare(config, vocabulary, tmp_path / "out")
    other = WordPieceVocabulary(vocabulary.words[:-1])
    with pytest.raises(UserError, match="vocabulary mismatch: the corpus in"):
        prepare(config_of(texts), other, tmp_path / "out")


def test_changed_files_are_noticed(texts, vocabulary, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text("1 2 3")
    config = config_of(texts, sources=(f"text:{tmp_path}/in/*.txt",))
    prepare(config, vocabulary, tmp_path / "out")
    (tmp_path / "in" / "1.txt").write_text("1 2 3 4")
    with pytest.raises(UserError, match="files of the sources have changed"):
        prepare(config, vocabulary, tmp_path / "out")


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
    from macaron_tf.data import pretraining_corpus

    monkeypatch.setattr(pretraining_corpus, "remove_leftovers", lambda out: None)
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
    with pytest.raises(UserError, match="cannot write .*file/.*; choose another place"):
        prepare(config_of(texts), vocabulary, tmp_path / "file" / "out")
    if os.geteuid():  # root may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(UserError, match="cannot write"):
            prepare(config_of(texts), vocabulary, tmp_path / "locked")


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 7}, "sequence_length is 7: it must be 8 or more"),
        ({"validation_every": 1}, "validation_every is 1"),
        ({"rows_per_shard": 0}, "rows_per_shard is 0"),
        ({"sources": ()}, "needs a source"),
        ({"next_sentence": True, "cross_documents": True}, "exclude each other"),
        ({"sentence_splitter": "axe"}, "sentence_splitter is 'axe'"),
        ({"sources": ("text:a", CorpusSource("text:b", weight=1.0))}, "text:a has no weight"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(UserError, match=message):
        CorpusConfig(**{"sources": ("text:a",), **settings})


def test_a_weight_that_cannot_be():
    for weight in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="it must be a number above 0"):
            CorpusSource("text:a", weight=weight)


def test_progress_is_shown(texts, vocabulary, tmp_path, monkeypatch):
    from macaron_tf.data import corpus_progress

    monkeypatch.setattr(corpus_progress, "_SECONDS", 0)
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
