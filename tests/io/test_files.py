"""Stamps of files, and the lock of a folder."""

import hashlib
import os
import signal
import subprocess
import sys

import pytest

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import content_stamps, only_writer, same_contents, state_stamp
from tests import ram_paths
from tests.harness import refuses

MEBIBYTE = 1 << 20


@pytest.mark.parametrize("size", [0, 5, MEBIBYTE, MEBIBYTE + 7, 2 * MEBIBYTE, 3 * MEBIBYTE + 1])
@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_both_ends_are_read(size, place, tmp_path):
    text = os.urandom(size)
    folder = tmp_path if place == "disk" else ram_paths.folder(tmp_path)
    path = f"{folder}/file-{size}"
    storage.write_aside(path, text)
    read = text if size < 2 * MEBIBYTE else text[:MEBIBYTE] + text[-MEBIBYTE:]
    digest = hashlib.sha256(read).hexdigest()
    assert content_stamps([path]) == [(f"file-{size}", size, digest)]


def test_names_and_times_do_not_count(tmp_path):
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("one")
    os.utime(tmp_path / "b", (1, 1))
    one, same = content_stamps([tmp_path / "a"]), content_stamps([tmp_path / "b"])
    assert same_contents(one, same)
    assert state_stamp(tmp_path / "a") != state_stamp(tmp_path / "b")
    (tmp_path / "b").write_text("two")
    assert not same_contents(one, content_stamps([tmp_path / "b"]))
    assert not same_contents(one, one + same)
    for stamp in (state_stamp, lambda path: content_stamps([path])):
        refuses(r"cannot read .*/nope: .*; check the path", stamp, tmp_path / "nope")


HOLDER = """
import filelock, os, sys, time
os.makedirs(sys.argv[1])
with filelock.FileLock(sys.argv[1] + "/.lock"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_and_a_killed_one_frees_the_folder(tmp_path):
    folder = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        message = f"another process is training in {folder}: wait for it or choose another folder"
        with pytest.raises(UserError, match=f"^{message}$"), only_writer(folder, "training"):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    for _ in range(2):
        with (
            only_writer(folder, "training"),
            pytest.raises(UserError, match="another process is preparing in"),
            only_writer(folder, "preparing"),
        ):
            pass
    (tmp_path / "file").write_text("in the way")
    unwritable = pytest.raises(UserError, match="cannot write .*; choose another place")
    with unwritable, only_writer(tmp_path / "file", "training"):
        pass
    with only_writer(ram_paths.folder(tmp_path), "training"):  # a bucket has no locks
        pass
