"""A corpus's folder: the same bytes after any kill, one writer, damage and other settings."""

import io
import json
import os
import shutil

import pytest

from macaron_tf.data.corpus import writing
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import only_writer
from macaron_tf.text.wordpiece import WordPieceVocabulary
from tests.data.number_corpus import (
    config_of,
    contents,
    rows_of,
    weighted,
)


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
