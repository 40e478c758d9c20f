"""Progress of long work: in a terminal, elsewhere, within other work, and of soon-done work."""

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
    """Standard error, where long work is what takes any time at all."""
    for seconds in ("_PATIENCE", "_SECONDS", "_REFRESH"):
        monkeypatch.setattr(progress, seconds, 0.01)
    stream = request.param()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))
    return stream


def pause():
    time.sleep(0.03)


def test_counted_work(stream):
    for _ in track(((5, "part") for _ in range(2)), 10, "tokenizing", "lines"):
        pause()
    shown = stream.getvalue()
    if stream.isatty():
        assert "10/10 lines" in shown and "tokenizing" in shown
    else:
        assert re.fullmatch(
            r"tokenizing  5 of 10 lines  0:00:00 gone  0:00:00 left", shown.splitlines()[0]
        )


def test_uncounted_work_that_says_nothing_itself(stream):
    with Progress("compiling"):
        pause()
    shown = stream.getvalue()
    assert "compiling" in shown
    assert "0:00:00" in shown if stream.isatty() else "compiling  0:00:00 gone\n" in shown
    time.sleep(0.05)
    assert stream.getvalue() == shown  # nothing after the end


def test_an_early_end_lets_others_be_shown(stream):
    with Progress("compiling") as first:
        first.end()
        with Progress("validating"):
            pause()
        first.advance()
    assert "validating" in stream.getvalue() and "compiling" not in stream.getvalue()


def test_within_other_work_nothing_is_shown(stream):
    with Progress("training the vocabulary", "lines") as outer:
        for _ in outer.over(range(3)):
            with Progress("tokenizing", "words") as inner:
                pause()
                inner.advance()
    with other_bar(), Progress("validating"):
        pause()
    shown = stream.getvalue()
    assert "training the vocabulary" in shown
    assert "tokenizing" not in shown and "validating" not in shown


def test_work_that_fails_ends_its_progress(stream):
    with pytest.raises(ValueError), Progress("averaging"):
        raise ValueError
    with Progress("scoring"):
        pause()
    assert "scoring" in stream.getvalue()


def test_soon_done_work_shows_nothing(monkeypatch):
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))
        assert list(track([(1, "a"), (1, "b")], 2, "tokenizing", "lines")) == ["a", "b"]
        assert stream.getvalue() == ""
