"""Tests of paths, files, buckets, locks and progress displays."""

import hashlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import pytest
import tensorflow as tf

from macaron_tf import errors
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.data.sources.readers import source_files
from macaron_tf.data.sources.tfds import Tfds, open_set
from macaron_tf.errors import UserError
from macaron_tf.io import files, progress
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress, track
from macaron_tf.io.signals import announced
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


def test_a_file_is_replaced_as_a_whole(disk_or_bucket):
    path = storage.as_path(disk_or_bucket) / "new" / "file"
    storage.write_atomic(path, b"old")
    with pytest.raises(ZeroDivisionError), storage.atomic_output_path(path) as aside:
        storage.as_path(aside).write_bytes(b"half")
        raise ZeroDivisionError
    assert storage.read_bytes(path) == b"old"
    storage.write_atomic(path, b"whole")
    assert storage.read_bytes(path) == b"whole"
    assert storage.size(path) == 5
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    refuses(r"cannot read .*/no \(.*check the path", storage.read_bytes, path.with_name("no"))


def test_a_link_stays_and_a_pipe_is_written(tmp_path):
    (tmp_path / "link").symlink_to("target")
    storage.write_atomic(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"content"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    storage.write_atomic(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert len([*tmp_path.iterdir()]) == 3


def test_work_that_fails_is_not_called_a_file_that_cannot_be_written(tmp_path):
    error = tf.errors.ResourceExhaustedError(None, None, "no memory")
    with pytest.raises(tf.errors.ResourceExhaustedError), storage.open_atomic(tmp_path / "x"):
        raise error
    assert not [*tmp_path.iterdir()]
    full = pytest.raises(UserError, match="cannot write /dev/full \\(No space left")
    with full, storage.open_atomic("/dev/full") as file:
        file.write(bytes(100_000))


def test_tfds_of_a_bucket(bucket, tfds_dir):
    name = "glue/stsb"
    pytest.importorskip("tensorflow_datasets")
    ram_paths.put(f"{tfds_dir}/{name}", f"{bucket}/{name}")
    found = open_set(name, "validation", Tfds(bucket))
    assert str(found.folder).startswith(f"{bucket}/{name}")
    assert len(source_files(f"tfds:{name}", "validation", tfds=Tfds(bucket))) > 3
    [record] = found.builder.as_dataset(split="validation[:1]")
    assert "sentence1" in record


OTHER_STORES = "nope://b/x gs:/b/x gs:// GS://b/x s3://b/x tsv:gs:/b/x.tsv a,s3://b NAME=gs:/b/x"


@pytest.mark.parametrize("path", OTHER_STORES.split())
def test_other_stores_are_one_sentence(path):
    sentence = re.escape(f"{path} is not a supported path: give a local path")
    refuses(f"{sentence} or gs://BUCKET/NAME$", errors.check_path, path)
    refuses(f"{sentence} or gs://BUCKET/NAME$", storage.as_path, path)
    refuses(f"{sentence}$", errors.check_path, path, 1)
    refuses("for a model hub:OWNER/NAME$", errors.check_path, "hf://keras/bert")


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "Expecting value"),
        (b"[]", "not a dict"),
        (b"{}", "'step' is missing or not of type int"),
        (b'{"step": "1"}', "'step' is missing or not of type int"),
        (b"\xff\xfe\xff", ".*codec can't decode"),
        (DEEP, "brackets are nested too deeply"),
        (b'{"step": 1}x', "Extra data"),
    ],
)
def test_a_damaged_json_file_is_one_sentence(content, why, tmp_path):
    (file := tmp_path / "x.json").write_bytes(content)
    pattern = rf"{file} is damaged \({why}[^\n]*\): make it again$"
    refuses(pattern, lambda: storage.read_json(file, mend="make it again", step=int))


def test_a_json_file(tmp_path, disk_or_bucket):
    file = storage.as_path(disk_or_bucket) / "x.json"
    refuses(f"cannot read {file} \\(.*\\): check the path", storage.read_json, file)
    storage.write_atomic(file, b'{"step": 1, "more": [[]]}')
    assert storage.read_json(file, step=int, more=list) == {"step": 1, "more": [[]]}
    refuses(r"damaged \(not a list\): restore it", storage.read_json, file, list)
    refuses(f"cannot read {tmp_path}", storage.read_json, tmp_path)


READERS = (
    lambda path: [*files.lines_of(path)],
    lambda path: [*files.table_rows(path)],
    lambda path: files.content_stamps([path]),
    storage.file_digest,
    storage.read_bytes,
)


@pytest.mark.parametrize("read", READERS)
def test_what_may_never_end_is_not_read(read, tmp_path):
    """A reader of a source neither waits for a pipe nor fills the memory from a device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "link.csv").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))  # a longer path is refused
        for name in ("pipe", "zero", "link.csv", "socket"):
            refuses(f"{name} is a device or a pipe: ", read, storage.as_path(tmp_path / name))
    if read is storage.file_digest:  # its callers describe other errors
        return
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, reason in (("loop", "symbolic links"), (".", "directory"), ("none", "No such file")):
        refuses(f"cannot read .*{reason}", read, storage.as_path(tmp_path / name))


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_not_read_as_utf_8(coding, tmp_path):
    path = storage.as_path(tmp_path / "x")
    path.write_bytes("one\ntwo\n".encode(coding))
    message = f"{path} is UTF-16, not UTF-8: convert it, as by `iconv -f UTF-16 -t UTF-8"
    refuses(message, lambda: [*files.lines_of(path)])
    path.write_bytes(b"one\n\0two\n")  # a lone zero byte further on is text
    assert [*files.lines_of(path)] == ["one", "\0two"]


MEBIBYTE = 1 << 20


@pytest.mark.parametrize("size", [0, 5, MEBIBYTE, MEBIBYTE + 7, 2 * MEBIBYTE, 3 * MEBIBYTE + 1])
def test_both_ends_are_read(size, disk_or_bucket):
    text, path = os.urandom(size), f"{disk_or_bucket}/file-{size}"
    storage.write_atomic(path, text)
    read = text if size < 2 * MEBIBYTE else text[:MEBIBYTE] + text[-MEBIBYTE:]
    digest = hashlib.sha256(read).hexdigest()
    assert files.content_stamps([path]) == [(f"file-{size}", size, digest)]


def test_names_and_times_do_not_count(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("one")
    b.write_text("one")
    os.utime(b, (1, 1))
    one, same = files.content_stamps([a]), files.content_stamps([b])
    assert files.same_contents(one, same) and not files.same_contents(one, one + same)
    assert files.state_stamp(a) != files.state_stamp(b)
    b.write_text("two")
    assert not files.same_contents(one, files.content_stamps([b]))
    for stamp in (files.state_stamp, lambda path: files.content_stamps([path])):
        refuses(r"cannot read .*/nope \(.*\): check the path", stamp, tmp_path / "nope")


HOLDER = """
import filelock, os, sys, time
os.makedirs(sys.argv[1])
with filelock.FileLock(sys.argv[1] + "/.lock"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_and_a_killed_one_frees_the_folder(tmp_path, bucket):
    def lock(folder, activity="training"):
        with files.only_writer(folder, activity):
            pass

    folder = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        refuses(f"^another process is training in {folder}: wait", lock, folder)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    for _ in range(2):
        with files.only_writer(folder, "training"):
            refuses("another process is preparing in", lock, folder, "preparing")
    (tmp_path / "file").write_text("in the way")
    refuses("cannot write .* \\(.*\\): choose another path", lock, tmp_path / "file")
    lock(bucket)  # a bucket has no locks


def test_a_bucket_that_refuses_a_request(capsys):
    text = "Error executing an HTTP request: HTTP response code 403\n\t when reading gs://b/x"
    error = tf.errors.PermissionDeniedError(None, None, text)

    @exit_on_user_error
    def main(arguments):
        raise error

    assert main([]) == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: a request to a bucket failed \(.* 403\): check the path.*\n", said)

    def write():
        with storage.clear_errors("cannot write it"):
            raise error

    refuses(r"cannot write it \(Error executing .* 403\): check", write)


def test_a_bucket_that_does_not_exist(monkeypatch):
    monkeypatch.setattr(storage.tf.io.gfile, "exists", lambda path: path != "gs://nothing/")
    made = []
    monkeypatch.setattr(storage.tf.io.gfile, "makedirs", made.append)
    said = "there is no bucket gs://nothing: create it"
    refuses(said, storage.make_folders, "gs://nothing/a/b")
    refuses(said, storage.write_atomic, "gs://nothing/a", b"")
    storage.make_folders("gs://bucket/a")
    assert made == ["gs://bucket/a"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(params=[Terminal, io.StringIO])
def stream(request, monkeypatch):
    """Returns a stream that replaces stderr; progress is shown for work of 0.01 seconds or more."""
    for seconds in ("_PATIENCE", "_SECONDS"):
        monkeypatch.setattr(progress, seconds, 0.01)
    stream = request.param()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))
    return stream


def wait_for(stream, words: str) -> None:
    """Waits without a time limit until the stream contains `words`."""
    while words not in stream.getvalue():
        time.sleep(0.005)


def test_counted_work(stream):
    for _ in track(((5, "part") for _ in range(2)), 10, "tokenizing", "lines"):
        wait_for(stream, "tokenizing")
    shown = stream.getvalue()
    if stream.isatty():
        assert "10/10" in shown and "lines" in shown and "tokenizing" in shown
    else:
        pattern = r"tokenizing  5 of 10 lines  \d:\d\d:\d\d elapsed, \d:\d\d:\d\d left"
        assert re.fullmatch(pattern, shown.splitlines()[0])


def test_uncounted_work_that_says_nothing_itself(stream):
    with Progress("compiling"):
        wait_for(stream, "compiling")
        wait_for(stream, "0:00:0")
    shown = stream.getvalue()
    if not stream.isatty():
        assert re.match(r"compiling  \d:\d\d:\d\d elapsed\n", shown)
    time.sleep(0.05)
    assert stream.getvalue() == shown  # nothing after the end


def test_the_time_left_follows_the_average_rate(monkeypatch):
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=io.StringIO()))
    work, now = Progress("2 at once", "tasks", 6), [0.0]
    work._bar.get_time = lambda: now[0]
    with work:
        for now[0] in (288.0, 290.0):  # two tasks in parallel
            work.advance()
        assert work._line().endswith(" elapsed, 0:09:40 left")


def test_work_that_fails_ends_its_progress(stream):
    with pytest.raises(ValueError), Progress("averaging"):
        raise ValueError
    with Progress("scoring"):
        wait_for(stream, "scoring")


def test_soon_done_work_shows_nothing(monkeypatch):
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))
        assert list(track([(1, "a"), (1, "b")], 2, "tokenizing", "lines")) == ["a", "b"]
        assert stream.getvalue() == ""


def test_a_signal_is_announced_before_c_code_lets_a_handler_run(capfd):
    earlier = signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"handled\n"))
    killer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    try:
        with announced("stopping", {signal.SIGTERM}):
            killer.start()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)  # about a second without the GIL
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert capfd.readouterr().err == "stopping\nhandled\nhandled\n"
    assert signal.set_wakeup_fd(-1) == -1
