"""Tests of the progress display of long, short and nested work, in any output stream."""

import io
import re
import time
import types

import pytest

from macaron_tf.io import progress
from macaron_tf.io.progress import Progress, other_bar, track


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
        pattern = r"tokenizing  5 of 10 lines  \d:\d\d:\d\d elapsed"
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


def test_an_early_end_lets_others_be_shown(stream):
    with Progress("compiling") as first:
        first.end()
        shown = stream.getvalue().count("compiling")
        with Progress("validating"):
            wait_for(stream, "validating")
        first.advance()
    assert stream.getvalue().count("compiling") == shown


def test_within_other_work_nothing_is_shown(stream):
    with Progress("training the vocabulary", "lines") as outer:
        for _ in outer.over(range(3)):
            with Progress("tokenizing", "words") as inner:
                wait_for(stream, "training the vocabulary")
                inner.advance()
    with other_bar(), Progress("validating"):
        time.sleep(0.03)
    shown = stream.getvalue()
    assert "tokenizing" not in shown and "validating" not in shown


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
