"""Versions: found, loaded, switched under load, dropped; broken ones passed over."""

import http.client
import json
import os
import shutil
import threading
import time

import pytest

from export.server.config import ServerConfig
from export.server.errors import ServingError
from export.server.model_server import ModelServer
from export.server.versions import VersionManager, find_versions
from macaron_tf.errors import UserError
from tests.export.serving_toys import call

PREDICT = "/v1/models/toy:predict"


def wait_for(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class FakeServable:
    """Loads unless its saved_model.pb says "broken"."""

    def __init__(self, path, version):
        with open(os.path.join(path, "saved_model.pb")) as file:
            if file.read() == "broken":
                raise ValueError("truncated file")
        self.version = version
        self.closed = False

    def warm_up(self):
        pass

    def close(self):
        self.closed = True


def write_version(base, version, content="good"):
    (base / str(version)).mkdir(exist_ok=True)
    (base / str(version) / "saved_model.pb").write_text(content)


@pytest.fixture
def manager(tmp_path):
    write_version(tmp_path, 1)
    made = VersionManager(str(tmp_path), "toy", poll_seconds=0.01, loader=FakeServable)
    made.poll()
    return made


def states(manager):
    return {status.version: status.state for status in manager.statuses()}


def test_only_complete_integer_folders_are_versions(tmp_path):
    for name in ("1", "0002", "x", ".tmp-3", "-4", "²"):
        write_version(tmp_path, name)
    (tmp_path / "5").mkdir()
    (tmp_path / "6").write_text("a file")
    assert sorted(find_versions(str(tmp_path))) == [1, 2]


def test_the_newest_version_is_taken_up_once_its_copy_has_settled(manager, tmp_path):
    write_version(tmp_path, 2)
    manager.poll()
    assert manager.current == 1  # seen for the first time: perhaps still being copied
    manager.poll()
    assert manager.current == 2
    assert states(manager) == {2: "AVAILABLE", 1: "END"}
    with pytest.raises(ServingError, match=r"Specific\(toy, 1\)"):
        manager.acquire(1)


def test_an_old_version_is_closed_after_its_last_request(manager, tmp_path):
    lease = manager.acquire()
    write_version(tmp_path, 2)
    manager.poll()
    manager.poll()
    assert states(manager) == {2: "AVAILABLE", 1: "UNLOADING"} and not lease.servable.closed
    lease.release()
    lease.release()  # a second release is nothing
    assert states(manager)[1] == "END" and lease.servable.closed


def test_a_broken_version_is_reported_skipped_and_tried_again_when_it_changes(manager, tmp_path):
    write_version(tmp_path, 3, "broken")
    for _ in range(3):
        manager.poll()
    (status,) = manager.statuses(3)
    assert (manager.current, status.state) == (1, "END") and "truncated file" in status.message
    write_version(tmp_path, 2)  # an intact one below the broken one is better than version 1
    manager.poll()
    manager.poll()
    assert manager.current == 2
    write_version(tmp_path, 3, "mended")
    manager.poll()
    manager.poll()
    assert manager.current == 3


def test_a_removed_version_is_dropped_only_if_another_exists(manager, tmp_path):
    write_version(tmp_path, 2)
    manager.poll()
    manager.poll()
    shutil.rmtree(tmp_path / "2")
    manager.poll()
    manager.poll()
    assert manager.current == 1
    shutil.rmtree(tmp_path / "1")
    manager.poll()
    assert manager.current == 1
    shutil.rmtree(tmp_path)
    manager.poll()
    assert manager.current == 1


def test_nothing_loaded_yet_is_unavailable(tmp_path):
    manager = VersionManager(str(tmp_path), "toy", 1.0, loader=FakeServable)
    with pytest.raises(ServingError, match="not loaded yet") as caught:
        manager.acquire()
    assert caught.value.http_status == 503


def test_a_folder_of_which_no_version_loads_is_one_sentence(tmp_path):
    write_version(tmp_path, 1)
    config = ServerConfig(str(tmp_path), "toy", rest_port=0, grpc_port=0)
    with pytest.raises(UserError, match=r"no version in .* loads \(version 1: "):
        ModelServer(config).start()


def test_versions_come_and_go_under_load_without_an_error(model_folder, toy_versions):
    """Version 2 is published, a broken 3 follows, 2 is removed again: no request fails."""
    config = ServerConfig(
        str(model_folder), "toy", rest_port=0, grpc_port=0, poll_seconds=0.05, workers=2
    )
    with ModelServer(config) as server:
        stop, wrong, seen = threading.Event(), [], set()

        def converse(client: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=60)
            count = 0
            while not stop.is_set():
                count += 1
                text = f"client {client} line {count}"
                connection.request("POST", PREDICT, json.dumps({"instances": [text]}).encode())
                response = connection.getresponse()
                answer = json.loads(response.read())
                try:
                    version, result = answer["predictions"][0]["translations"][0].split(":", 1)
                    seen.add(version)
                    if result != text.upper():
                        wrong.append(answer)
                except (KeyError, IndexError):
                    wrong.append(answer)
            connection.close()

        clients = [threading.Thread(target=converse, args=(i,)) for i in range(8)]
        for client in clients:
            client.start()
        try:
            wait_for(lambda: "v1" in seen)
            shutil.copytree(toy_versions / "2", model_folder / ".tmp-2")
            os.rename(model_folder / ".tmp-2", model_folder / "2")
            wait_for(lambda: "v2" in seen)
            (model_folder / "3").mkdir()
            (model_folder / "3" / "saved_model.pb").write_bytes(b"half of a file")
            path = "/v1/models/toy/versions/3"
            wait_for(lambda: call(server.rest_port, "GET", path)[0] == 200)
            wait_for(
                lambda: (
                    call(server.rest_port, "GET", path)[1]["model_version_status"][0]["state"]
                    == "END"
                )
            )
            assert server.versions.current == 2
            seen.clear()
            shutil.rmtree(model_folder / "2")
            wait_for(lambda: "v1" in seen)
        finally:
            stop.set()
            for client in clients:
                client.join()
        assert not wrong
