import errno
import json
import os
import pathlib

import pytest

from macaron_tf.errors import UserError
from macaron_tf.training import checkpoints
from macaron_tf.training.checkpoints import CheckpointDirectory, find_damage, read_manifest


def write_two_files(directory):
    (directory / "a.bin").write_bytes(b"a" * 1000)
    (directory / "b.bin").write_bytes(b"b" * 1000)


@pytest.fixture
def directory(tmp_path):
    directory = CheckpointDirectory(tmp_path)
    directory.save(10, write_two_files, {"vocabulary": "v"})
    return directory


def test_a_saved_checkpoint_is_whole(directory):
    path = directory.latest()
    assert path.name == "step-00000010"
    manifest = read_manifest(path)
    assert manifest["step"] == 10
    assert manifest["vocabulary"] == "v"
    assert sorted(manifest["files"]) == ["a.bin", "b.bin"]


class Killed(BaseException):
    """Stands for the end of the process: nothing that handles errors may run after it."""


@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step again"])
@pytest.mark.parametrize("call", range(12))
def test_killed_at_any_moment_of_a_save(directory, monkeypatch, call, again):
    """The process ends at the call-th change of the disk; the next start finds all whole."""
    step = 10 if again else 20
    calls = 0

    def dying(function):
        def wrapper(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > call:
                raise Killed
            return function(*args, **kwargs)

        return wrapper

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", dying(os.replace))
        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(pathlib.Path, "mkdir", dying(pathlib.Path.mkdir))
        patch.setattr(pathlib.Path, "write_text", dying(pathlib.Path.write_text))
        patch.setattr(checkpoints, "_remove", dying(checkpoints._remove))
        directory.save(step, write_two_files, {"vocabulary": "new"})
        raise Killed  # the save was over before the call-th change
    directory.clean()
    newest = directory.latest()
    assert newest is not None
    assert find_damage(newest) is None
    assert find_damage(directory.of_step(10)) is None
    assert [entry.name for entry in directory.path.iterdir() if entry.name[0] == "."] == []


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("h5")]
)
def test_a_full_disk_is_one_clear_sentence(directory, error):
    def write(path):
        (path / "a.bin").write_bytes(b"half")
        raise error

    with pytest.raises(UserError, match=r"cannot write checkpoint .*older checkpoints are intact"):
        directory.save(20, write)
    assert directory.steps() == [10]
    assert [entry.name for entry in directory.path.iterdir()] == ["step-00000010"]


def flip_a_byte(path):
    content = bytearray((path / "a.bin").read_bytes())
    content[500] ^= 1
    (path / "a.bin").write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        lambda path: os.truncate(path / "b.bin", 999),
        lambda path: (path / "b.bin").unlink(),
        lambda path: (path / "manifest.json").unlink(),
        lambda path: os.truncate(path / "manifest.json", 30),
        lambda path: (path / "manifest.json").write_text("[]"),
    ],
)
def test_a_damaged_newest_one_is_reported_and_skipped(directory, capsys, damage):
    directory.save(20, write_two_files)
    damage(directory.of_step(20))
    assert directory.latest() == directory.of_step(10)
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "step-00000020" in warning
    with pytest.raises(UserError, match="step-00000020"):
        read_manifest(directory.of_step(20))


def test_rotation_keeps_the_last_and_the_best(directory):
    directory.mark_best(10, "bleu", 30.5)
    for step in (20, 30, 40):
        directory.save(step, write_two_files)
        directory.rotate(keep_last=2)
    assert directory.steps() == [10, 30, 40]
    assert directory.best() == {"step": 10, "metric": "bleu", "score": 30.5}
    directory.mark_best(40, "bleu", 31.0)
    directory.rotate(keep_last=2)
    assert directory.steps() == [30, 40]


def test_best_of_nothing(tmp_path):
    directory = CheckpointDirectory(tmp_path)
    assert directory.best() is None
    assert directory.latest() is None
    directory.save(1, write_two_files)
    (directory.path / "best.json").write_text("{")
    assert directory.best() is None


def test_refuses_a_later_format(directory):
    path = directory.of_step(10) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(UserError, match="newer"):
        read_manifest(directory.of_step(10))
