"""A model's folder, on the disk and in a bucket: each version whole or not there."""

import resource

import pytest
import tensorflow as tf

from export.module import write_version
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from tests import ram_paths


class Doubled(tf.Module):
    """Twice a number, by a table that fills 400 KB."""

    def __init__(self):
        super().__init__()
        self.vocabulary = NoVocabulary()
        self.table = tf.Variable(tf.random.stateless_uniform([100_000], (1, 2)))

    def signatures(self):
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, "x")])
        def double(x):
            return {"y": 2 * x + 0 * self.table[0]}

        return {"serving_default": double.get_concrete_function()}


class NoVocabulary:
    """As much of a vocabulary as `write_version` needs."""

    hash = "0"

    def save(self, folder):
        storage.write_aside(storage.as_path(folder) / "vocabulary.json", b"{}")


def write(out, version=None):
    return write_version(Doubled(), {"run": "toy"}, out, version)


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_version_is_whole(tmp_path, where):
    out = tmp_path / "served" if where == "disk" else ram_paths.folder(tmp_path) + "/served"
    path = write(out)
    assert str(path) == f"{out}/1"
    assert str(write(out)) == f"{out}/2"
    loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
    assert loaded(x=tf.constant(3.0))["y"].numpy() == 6.0
    assert storage.read_bytes(path / "assets.extra" / "vocabulary.json") == b"{}"
    assert sorted(entry.name for entry in storage.as_path(out).iterdir()) == ["1", "2"]
    with pytest.raises(UserError, match="--version 2 exists"):
        write(out, version=2)


def test_in_a_bucket_the_model_file_comes_last(tmp_path, monkeypatch):
    order, copy = [], tf.io.gfile.copy
    monkeypatch.setattr(tf.io.gfile, "copy", lambda a, b, **k: (order.append(b), copy(a, b, **k)))
    path = write(ram_paths.folder(tmp_path))
    assert order[-1] == f"{path}/saved_model.pb" and len(order) > 4


def test_a_full_disk_leaves_the_older_version(tmp_path):
    write(tmp_path)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))
    try:
        with pytest.raises(UserError, match=r"cannot be written: .*; choose another place"):
            write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]
    assert tf.saved_model.load(str(tmp_path / "1")).signatures
