import errno
import json
import os

import pytest
import tensorflow as tf

from macaron_tf.training import checkpoints
from macaron_tf.training.checkpoints import CheckpointDirectory, find_damage, read_manifest
from tests import ram_paths
from tests.harness import refuses
from tests.toys.training import flip_a_byte

FILES = ("a.bin", "b.bin", "manifest.json")


def write_two_files(directory):
    (directory / "a.bin").write_bytes(b"a" * 1000)
    (directory / "b.bin").write_bytes(b"b" * 1000)


def with_one(folder) -> CheckpointDirectory:
    directory = CheckpointDirectory(folder)
    directory.save(10, write_two_files, {"vocabulary": "v"})
    return directory


@pytest.fixture
def directory(tmp_path):
    return with_one(tmp_path)


@pytest.fixture
def anywhere(disk_or_bucket):
    return with_one(disk_or_bucket)


def test_a_saved_checkpoint_is_whole(anywhere):
    path = anywhere.latest()
    assert path.name == "step-00000010"
    manifest = read_manifest(path)
    assert manifest["step"] == 10
    assert manifest["vocabulary"] == "v"
    assert sorted(manifest["files"]) == ["a.bin", "b.bin"]
    anywhere.save(10, write_two_files, {"vocabulary": "new"})
    assert read_manifest(path)["vocabulary"] == "new"


class Killed(BaseException):
    """An exception that simulates a killed process; `except Exception` does not catch it."""


def dying(function, calls_left: list[int]):
    """Returns a function that raises `Killed` once `calls_left` calls are used up."""

    def wrapper(*args, **kwargs):
        calls_left[0] -= 1
        if calls_left[0] < 0:
            raise Killed
        return function(*args, **kwargs)

    return wrapper


# Operations at which a process may die.
OPERATIONS = {
    "disk": [
        *((os, name) for name in ("replace", "fsync", "mkdir")),
        *((checkpoints, name) for name in ("_manifest_digest", "_remove")),
    ],
    "bucket": [(tf.io.gfile, name) for name in ("copy", "remove", "rename", "rmtree")],
}


@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step again"])
@pytest.mark.parametrize("call", range(12))
@pytest.mark.parametrize("place", OPERATIONS)
def test_killed_at_any_moment_of_a_save(place, tmp_path, monkeypatch, call, again, capsys):
    """A half-written checkpoint does not count. The next start removes or completes it."""
    directory = CheckpointDirectory(tmp_path if place == "disk" else ram_paths.folder(tmp_path))
    for step in (10, 20):
        directory.save(step, write_two_files)
    left = [call]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        for module, name in OPERATIONS[place]:
            patch.setattr(module, name, dying(getattr(module, name), left))
        directory.save(20 if again else 30, write_two_files)
        raise Killed  # the save was over before that call
    steps = directory.steps()
    assert steps in ([10], [10, 20], [10, 20, 30])
    assert directory.latest() == directory.of_step(steps[-1])
    assert capsys.readouterr().err == ""
    directory.clean()
    assert directory.steps() in ([[10, 20]] if again else [steps, [10, 20, 30]])
    assert all(find_damage(directory.of_step(step)) is None for step in directory.steps())
    assert not (directory.of_step(30) / "a.bin").exists() or 30 in directory.steps()
    assert [entry.name for entry in directory.path.iterdir() if entry.name[0] == "."] == []


def test_a_failed_upload_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    directory = with_one(ram_paths.folder(tmp_path))

    def fail(source, target, overwrite):
        raise tf.errors.UnavailableError(None, None, "the connection was lost")

    monkeypatch.setattr(tf.io.gfile, "copy", fail)
    refuses("connection was lost", directory.save, 10, write_two_files, {"vocabulary": "new"})
    assert read_manifest(directory.latest())["vocabulary"] == "v"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), RuntimeError("h5")])
def test_a_full_disk_is_one_clear_sentence(anywhere, error):
    def write(path):
        (path / "a.bin").write_bytes(b"half")
        raise error

    refuses(r"cannot write checkpoint .*other checkpoints are intact", anywhere.save, 20, write)
    assert anywhere.steps() == [10]
    assert find_damage(anywhere.of_step(10)) is None
    assert [entry.name for entry in anywhere.path.iterdir()] == ["step-00000010"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flip_a_byte, cut, lambda path: path.unlink()])
def test_a_damaged_one_is_reported_and_skipped(anywhere, capsys, damage, name):
    anywhere.save(20, write_two_files)
    damage(anywhere.of_step(20) / name)
    assert anywhere.latest() == anywhere.of_step(10)
    warning = capsys.readouterr().err
    unfinished = name == "manifest.json" and not (anywhere.of_step(20) / name).exists()
    if unfinished and "ram:" in str(anywhere.path):
        assert warning == ""  # unfinished uploads cause no warning
    else:
        assert warning.count("\n") == 1
        assert f"step-00000020/{name}" in warning
        assert "skipped a damaged checkpoint" in warning
    refuses("step-00000020", read_manifest, anywhere.of_step(20))


def test_any_bit_of_a_manifest_counts(directory):
    """Each flipped bit in a manifest is detected, or leaves the manifest's values unchanged."""
    path = directory.of_step(10) / "manifest.json"
    content = path.read_bytes()
    whole = json.loads(content)
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(bytes(flipped))
        if find_damage(path.parent) is None:
            found = json.loads(bytes(flipped))
            assert {name: found[name] for name in whole if name != "sha256"} == {
                name: value for name, value in whole.items() if name != "sha256"
            }


def test_rotation_keeps_the_last_and_the_best(anywhere):
    anywhere.mark_best(10, "bleu", 30.5)
    for step in (20, 30, 40):
        anywhere.save(step, write_two_files)
        anywhere.rotate(keep_last=2)
    assert anywhere.steps() == [10, 30, 40]
    assert anywhere.best() == {"step": 10, "metric": "bleu", "score": 30.5}
    anywhere.mark_best(40, "bleu", 31.0)
    anywhere.rotate(keep_last=2)
    assert anywhere.steps() == [30, 40]
    (anywhere.path / "best.json").write_text("{")
    assert anywhere.best() is None


def test_a_damaged_one_takes_no_whole_ones_place(anywhere):
    """A damaged checkpoint does not count for `keep_last`, so intact checkpoints are kept."""
    anywhere.save(20, write_two_files)
    flip_a_byte(anywhere.of_step(20) / "a.bin")
    assert anywhere.latest() == anywhere.of_step(10)
    anywhere.save(15, write_two_files)
    anywhere.rotate(keep_last=1)
    assert anywhere.latest() == anywhere.of_step(15)
    anywhere.save(20, write_two_files)
    anywhere.rotate(keep_last=1)
    assert anywhere.steps() == [20]
    assert anywhere.latest() == anywhere.of_step(20)


def test_refuses_a_later_format(directory, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "FORMAT", 2)
        directory.save(10, write_two_files)
    refuses("a newer format than 1", read_manifest, directory.of_step(10))
