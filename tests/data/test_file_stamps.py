"""Stamps of files: what changes them and what does not."""

import hashlib
import os

import pytest

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import content_stamps, same_contents, state_stamp
from tests import ram_paths

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


def test_stamps_of_earlier_versions(tmp_path):
    (tmp_path / "a").write_text("one")
    now = content_stamps([tmp_path / "a"])
    assert same_contents([["/elsewhere/a", 3, 1234]], now)
    assert not same_contents([["/elsewhere/b", 3, 1234]], now)
    assert not same_contents([["/elsewhere/a", 4, 1234]], now)
    assert same_contents(["5" * 64], now)


def test_a_missing_file_is_named(tmp_path):
    for stamp in (state_stamp, lambda path: content_stamps([path])):
        with pytest.raises(UserError, match=r"cannot read .*/nope: .*; check the path") as caught:
            stamp(tmp_path / "nope")
        assert "\n" not in str(caught.value)
