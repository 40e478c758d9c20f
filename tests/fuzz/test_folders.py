"""Fuzz tests that damage the folders of runs and corpora."""

import contextlib
import io
import pathlib
import shutil
import tempfile

import pytest

from tests.fuzz.profiles import examples, hypothesis, strategies, survive  # isort: skip

import macaron_tf
from macaron_tf.data.corpus.reading import PretrainingCorpus, stream_dataset
from macaron_tf.runs.run import Run
from tests.toys.pretraining import prepare


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> pathlib.Path:
    """Returns the folder of a small corpus."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "text.txt").write_text("".join(f"one two {n} three four\n" for n in range(400)))
    settings = [
        f"data.sources=text-lines:{folder}/text.txt", "data.sequence_length=16",
        "data.validation_every=20", "data.vocabulary.size=60",
    ]  # fmt: skip
    return pathlib.Path(prepare("bert_tiny", str(folder / "corpus"), settings))


def open_run(folder: pathlib.Path) -> None:
    """Opens a run with `macaron_tf.load` and with `Run`; a `UserError` is allowed."""
    survive(macaron_tf.load, folder)
    opened = survive(Run.open, folder)
    if opened is not None and (chosen := survive(opened.checkpoint)) is not None:
        survive(opened.load_network, chosen)


def read_corpus(folder: pathlib.Path) -> None:
    """Opens a corpus, and reads a batch."""
    opened = survive(PretrainingCorpus.open, str(folder))
    if opened is not None and opened.rows("train") > 8:
        dataset = stream_dataset(opened, "validation", 2, repeat=False)
        next(iter(dataset), None)


_WORDS = [b"", b"0", b"-1", b"null", b"[]", b"{}", b'"', b"\0", b"\xff", b"1e999", b"9" * 30]


@strategies.composite
def damages(draw):
    """Draws a function from the content of a file to damaged content, `None` if it is deleted."""
    kind = draw(strategies.sampled_from(["delete", "bytes", "field"]))
    place, size = draw(strategies.floats(0, 1, exclude_max=True)), draw(strategies.integers(0, 999))
    word = draw(strategies.sampled_from(_WORDS) | strategies.binary(max_size=4))

    def damage(content: bytes) -> bytes | None:
        at = int(place * len(content))
        end = at + size
        if kind == "field":  # another value of a JSON field
            starts = [n + 1 for n, c in enumerate(content) if c == ord(":")]
            at = starts[int(place * len(starts))] if starts else at
            end = max(min((content + b",}\n").find(c, at) for c in (b",", b"}", b"\n")), at)
        return None if kind == "delete" else content[:at] + word + content[end:]

    return damage


@contextlib.contextmanager
def damaged(folder: pathlib.Path, data):
    """Yields a copy of a folder in which one or two files are damaged."""
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stderr(io.StringIO()):
        copy = pathlib.Path(shutil.copytree(folder, f"{place}/copy"))
        files = [file for file in copy.rglob("*") if file.is_file() and file.name != ".lock"]
        files = sorted(str(file.relative_to(copy)) for file in files)
        chosen = strategies.lists(strategies.sampled_from(files), min_size=1, max_size=2)
        for name in dict.fromkeys(data.draw(chosen)):
            after = data.draw(damages())((copy / name).read_bytes())
            (copy / name).unlink() if after is None else (copy / name).write_bytes(after)
        yield copy


@examples(6, 20)
@hypothesis.given(data=strategies.data())
def test_runs(number_run, data):
    with damaged(number_run, data) as folder:
        open_run(folder)


@examples(25, 100)
@hypothesis.given(data=strategies.data())
def test_corpora(corpus, data):
    with damaged(corpus, data) as folder:
        read_corpus(folder)
