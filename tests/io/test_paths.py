"""Paths in a bucket, of which TensorFlow's file system in memory stands in for one."""

import gzip
import os

import pytest

from macaron_tf.data.sources.readers import documents, read_pairs, source_files, source_fingerprint
from macaron_tf.data.sources.tfds import open_set
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import cache_directory
from macaron_tf.text.token_rows import TokenizedPairs, TokenRows, load_tokens, save_tokens
from tests import ram_paths
from tests.harness import refuses


@pytest.fixture
def bucket(tmp_path) -> str:
    return ram_paths.folder(tmp_path)


def test_a_path_goes_where_it_is_said(tmp_path):
    assert not storage.is_remote(tmp_path)
    assert storage.as_path(tmp_path) / "x" == tmp_path / "x"
    path = storage.as_path("gs://bucket/run") / "checkpoints"
    assert storage.is_remote(path)
    assert str(path) == os.fspath(path) == "gs://bucket/run/checkpoints"
    with pytest.raises(UserError, match=r"nope:// is not supported; give a local path or gs://"):
        storage.as_path("nope://bucket/run")


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_file_is_replaced_as_a_whole(tmp_path, bucket, where):
    path = storage.as_path(tmp_path if where == "disk" else bucket) / "new" / "file"
    storage.write_aside(path, b"old")
    with pytest.raises(ZeroDivisionError), storage.renamed_aside(path) as aside:
        storage.as_path(aside).write_bytes(b"half")
        raise ZeroDivisionError
    assert storage.read_bytes(path) == b"old"
    storage.write_aside(path, b"whole")
    assert storage.read_bytes(path) == b"whole"
    assert storage.size(path) == 5
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    with pytest.raises(UserError, match=r"cannot read .*/nothing: .*check the path"):
        storage.read_bytes(path.with_name("nothing"))


def test_a_local_name_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage.write_aside("file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    refuses("cannot write file/x: ", storage.write_aside, "file/x", b"")


def test_a_copy_for_libraries_that_read_no_bucket(tmp_path, bucket):
    storage.write_aside(f"{bucket}/a.h5", b"content")
    with storage.local_copy(f"{bucket}/a.h5") as copy:
        assert copy.name == "a.h5"
        assert copy.read_bytes() == b"content"
    assert not copy.exists()
    (tmp_path / "b").write_bytes(b"")
    with storage.local_copy(tmp_path / "b") as copy:
        assert copy == tmp_path / "b"
    assert copy.exists()


def test_an_upload_ends_with_the_file_that_makes_it_valid(tmp_path, bucket, monkeypatch):
    for name in ("a/z", "manifest", "y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    order = []
    copy = storage.tf.io.gfile.copy
    monkeypatch.setattr(
        storage.tf.io.gfile, "copy", lambda a, b, **k: (order.append(b), copy(a, b, **k))
    )
    storage.upload(tmp_path, bucket, last="manifest")
    assert order == [f"{bucket}/{name}" for name in ("a/z", "y", "manifest")]
    assert storage.read_bytes(f"{bucket}/a/z") == b"a/z"


def test_text_of_a_bucket(bucket):
    storage.write_aside(f"{bucket}/train.en", b"one\ntwo\n")
    storage.write_aside(f"{bucket}/train.de.gz", gzip.compress(b"eins\nzwei\n"))
    storage.write_aside(f"{bucket}/train.tsv", b"one\teins\ntwo\tzwei\n")
    text = f"text:{bucket}/{{split}}.en,{bucket}/{{split}}.de.gz"
    pairs = [("one", "eins"), ("two", "zwei")]
    assert read_pairs(text, "train", "en", "de") == pairs
    assert read_pairs(f"tsv:{bucket}/train.tsv", "all", "en", "de") == pairs
    before = source_fingerprint(text, "train", "en", "de")
    assert before == source_fingerprint(text, "train", "en", "de")
    storage.write_aside(f"{bucket}/train.en", b"one\ntwo more\n")
    assert before != source_fingerprint(text, "train", "en", "de")
    with pytest.raises(UserError, match=r"cannot read ram://.*/nope\.tsv"):
        read_pairs(f"tsv:{bucket}/nope.tsv", "all", "en", "de")
    with pytest.raises(UserError, match=r"cannot read ram://.*/nope\.tsv"):
        source_fingerprint(f"tsv:{bucket}/nope.tsv", "all", "en", "de")
    for name in ("b", "a"):
        storage.write_aside(f"{bucket}/{name}.txt", f"of {name}\n".encode())
    assert list(documents(f"text:{bucket}/?.txt")) == ["of a", "of b"]
    refuses("no file matches", documents, f"text:{bucket}/*.nope")


def test_tfds_of_a_bucket(bucket, tfds_dir):
    name = "glue/stsb"
    pytest.importorskip("tensorflow_datasets")
    ram_paths.put(f"{tfds_dir}/{name}", f"{bucket}/{name}")
    found = open_set(name, "validation", bucket, download=False)
    assert str(found.folder).startswith(f"{bucket}/{name}")
    assert len(source_files(f"tfds:{name}", "validation", data_dir=bucket)) > 3
    [record] = found.builder.as_dataset(split="validation[:1]")
    assert "sentence1" in record


def test_memory_mapped_files_are_on_the_disk(bucket, monkeypatch):
    rows = TokenRows.from_lists([[5, 3]], 8)
    with pytest.raises(UserError, match="mapped into memory: give a local folder"):
        save_tokens(f"{bucket}/tokens", TokenizedPairs(rows, rows, rows.lengths, {}))
    assert load_tokens(f"{bucket}/tokens") is None
    monkeypatch.setenv("MACARON_TF_CACHE", bucket)
    refuses("MACARON_TF_CACHE is ram://.* local disk", cache_directory)
