"""Model versions, on disk and in a bucket, are written atomically, loaded, switched and removed.

Broken versions are skipped.
"""

import concurrent.futures
import itertools
import os
import shutil
import threading
import time
import types

import pytest
import tensorflow as tf

from export.server import versions
from export.server.errors import ServingError
from export.server.versions import Versions, find_versions
from macaron_tf.engines.saved_model import write_version
from macaron_tf.io import paths as storage
from tests.export.serving_toys import call, toy_server
from tests.harness import file_limit, refuses

pytestmark = pytest.mark.quick
PREDICT = "/v1/models/toy:predict"


def write(out):
    """Writes a version of a graph that doubles a number, with weights of 400 KB."""
    module = tf.Module()
    module.table = tf.Variable(tf.random.stateless_uniform([100_000], (1, 2)))

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, "x")])
    def double(x):
        return {"y": 2 * x + 0 * module.table[0]}

    def save(folder):
        storage.write_atomic(storage.as_path(folder) / "vocabulary.json", b"{}")

    certificate = types.SimpleNamespace(check=lambda *_: {"certificate": []})
    task = types.SimpleNamespace(name="double", texts=(), typical_texts=lambda: [""])
    task.network = types.SimpleNamespace(compute_dtype="float32")
    task.vocabulary = types.SimpleNamespace(hash="0", save=save)
    graph = types.SimpleNamespace(task=task, saved_module=lambda: module)
    graph.signatures = {"serving_default": double.get_concrete_function()}
    return write_version(graph, {"run": "toy"}, out, None, (), certificate, "")


def test_a_version_is_whole(disk_or_bucket, monkeypatch):
    out, order, copy = f"{disk_or_bucket}/served", [], tf.io.gfile.copy
    monkeypatch.setattr(tf.io.gfile, "copy", lambda a, b, **k: (order.append(b), copy(a, b, **k)))
    path = write(out)
    # In a bucket, the file that makes a folder a version comes last.
    assert order[-1:] == [f"{path}/saved_model.pb"] * disk_or_bucket.startswith("ram:")
    assert str(path) == f"{out}/1"
    assert str(write(out)) == f"{out}/2"
    loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
    assert loaded(x=tf.constant(3.0))["y"].numpy() == 6.0
    assert storage.read_bytes(path / "assets.extra" / "vocabulary.json") == b"{}"
    assert sorted(entry.name for entry in storage.as_path(out).iterdir()) == ["1", "2"]


def test_a_version_is_an_int64(tmp_path):
    refuses("a path is empty", write, "")
    (tmp_path / "\N{ARABIC-INDIC DIGIT SEVEN}").mkdir()
    (tmp_path / f"{10**20}").mkdir()
    assert write(tmp_path).name == "1"
    publish(tmp_path, 10**20)
    assert list(find_versions(tmp_path)) == [1]


def test_a_full_disk_leaves_the_older_version(tmp_path):
    write(tmp_path)
    with file_limit(100_000):
        refuses(r"cannot be written \(.*\): choose another path", write, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]
    assert tf.saved_model.load(str(tmp_path / "1")).signatures


class FakeServable:
    """A servable that fails to load if its saved_model.pb says "broken"."""

    def __init__(self, path, version):
        with open(os.path.join(path, "saved_model.pb")) as file:
            if file.read() == "broken":
                raise ValueError("truncated file")
        self.version = version

    def warm_up(self):
        pass


def publish(base, version, content="good"):
    (base / str(version)).mkdir(exist_ok=True)
    (base / str(version) / "saved_model.pb").write_text(content)


@pytest.fixture
def manager(tmp_path, monkeypatch):
    publish(tmp_path, 1)
    monkeypatch.setattr(versions, "Servable", FakeServable)
    made = Versions(str(tmp_path), 0.01)
    made.poll()
    return made


def settle(manager) -> int:
    """Polls twice, and returns the served version.

    The manager loads a version only if the version is unchanged between two polls.
    """
    manager.poll()
    manager.poll()
    return manager.current.version


def states(manager):
    return {version: state for version, state, _ in manager.states()}


def test_only_complete_integer_folders_are_versions(tmp_path):
    for name in ("1", "0002", "x", ".tmp-3", "-4", "²"):
        publish(tmp_path, name)
    (tmp_path / "5").mkdir()
    (tmp_path / "6").write_text("a file")
    assert sorted(find_versions(tmp_path)) == [1, 2]


def test_the_newest_version_is_taken_up_once_its_copy_has_settled(manager, tmp_path):
    publish(tmp_path, 2)
    manager.poll()
    assert manager.current.version == 1  # seen once; a copy may be in progress
    manager.poll()
    assert manager.current.version == 2
    assert states(manager) == {2: "AVAILABLE", 1: "END"}
    with pytest.raises(ServingError, match="version 1 is not served, only version 2"):
        manager.get("1")


def test_a_broken_version_is_reported_skipped_and_tried_again_when_it_changes(manager, tmp_path):
    publish(tmp_path, 3, "broken")
    for _ in range(3):
        manager.poll()
    [(_, state, message)] = manager.states("3")
    assert (manager.current.version, state) == (1, "END") and "truncated file" in message
    publish(tmp_path, 2)  # an intact version below the broken one replaces version 1
    assert settle(manager) == 2
    publish(tmp_path, 3, "mended")
    assert settle(manager) == 3


def test_a_removed_version_is_dropped_only_if_another_exists(manager, tmp_path):
    publish(tmp_path, 2)
    settle(manager)
    shutil.rmtree(tmp_path / "2")
    assert settle(manager) == 1
    shutil.rmtree(tmp_path / "1")
    manager.poll()
    assert manager.current.version == 1
    shutil.rmtree(tmp_path)
    manager.poll()
    assert manager.current.version == 1


def test_a_folder_of_which_no_version_loads_is_one_sentence(tmp_path):
    publish(tmp_path, 1)
    refuses(r"no version in .* loads \(version 1: ", toy_server(tmp_path).start)


def change_versions(folder, toy_versions, stop) -> None:
    """Adds whole and broken versions of the toy model and removes old ones, until `stop` is set."""
    for version in itertools.count(2):
        aside = folder / ".tmp"
        shutil.copytree(toy_versions / str(1 + version % 2), aside)
        if version % 3 == 0:
            (aside / "saved_model.pb").write_bytes(b"half of a file")
        aside.rename(folder / str(version))
        shutil.rmtree(folder / str(version - 3), ignore_errors=True)
        if stop.wait(0.3):
            return


def test_no_answer_is_lost_or_wrong_while_versions_change_under_load(model_folder, toy_versions):
    """800 requests of 8 clients, garbage of a ninth, and a new version every 0.3 s."""
    garbage = [b"{", b"[]", b"\xff", b'{"instances": [NaN]}', b'{"instances": ' + b"[" * 5000, b""]
    with (
        toy_server(model_folder, poll_seconds=0.05) as server,
        concurrent.futures.ThreadPoolExecutor(10) as pool,
    ):
        stop = threading.Event()

        def converse(number: int) -> set[str]:
            seen = set()
            for count in range(100):
                text = f"client {number} line {count}"
                status, said = call(server.port, "POST", PREDICT, {"instances": [text]})
                assert status == 200, said
                version, result = said["predictions"][0]["translations"][0].split(":", 1)
                assert result == text.upper()
                seen.add(version)
                time.sleep(0.02)
            return seen

        def talk_nonsense() -> set[int]:
            statuses = set()
            while not stop.is_set():
                statuses |= {call(server.port, "POST", PREDICT, body)[0] for body in garbage}
            return statuses

        others = [pool.submit(change_versions, model_folder, toy_versions, stop)]
        others.append(pool.submit(talk_nonsense))
        try:
            seen = [*pool.map(converse, range(8))]
        finally:
            stop.set()
        assert set.union(*seen) == {"v1", "v2"}
        assert others[1].result() == {400} and others[0].result() is None
        while server.versions.current.version <= 2:
            time.sleep(0.02)
