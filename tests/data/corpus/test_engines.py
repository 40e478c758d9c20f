"""Corpora prepared by several processes or by Apache Beam equal those of a single process."""

import functools
import itertools
import os
import random
import signal
import subprocess
import time

import pytest

from macaron_tf.data.corpus import documents
from macaron_tf.data.corpus.writing import prepare
from tests.harness import refuses
from tests.toys.corpora import config_of, contents, made_with_kills
from tests.toys.processes import started
from tests.toys.shards import workers_of

SEVERAL = "several languages"
KINDS = {
    "doc_text": {},
    "full_text": {"packing": "full_text", "validation_run": 2},
    "doc_sentences": {"packing": "doc_sentences"},
    "full_sentences": {"packing": "full_sentences"},
    "next_sentence": {"pairs": "next_sentence", "validation_every": 4},
    "sentence_order": {"pairs": "sentence_order", "validation_every": 4},
    "weights": {"weights": (1.0, 1.0)},
    "full_text of a mixture": {"weights": (1.0, 1.0), "packing": "full_text"},
    "pairs of a mixture": {"weights": (1.0, 1.0), "pairs": "next_sentence", "validation_every": 4},
    SEVERAL: {"sources": None},
    "language_alpha": {"sources": None, "language_alpha": 0.0, "rows_per_shard": 40},
    "batch_alpha": {"sources": None, "batch_alpha": 0.5},
}


@pytest.fixture
def settings(request, sources, monkeypatch):
    """Returns the corpus settings that the fixture parameter names.

    Tokenizes only about 600 characters per tokenizer call, so that the toy corpus needs several
    calls.
    """
    monkeypatch.setattr(documents, "_GROUP_CHARACTERS", 600)
    found = dict(KINDS[request.param])
    return found | {"sources": sources} if "sources" in found else found


@pytest.fixture
def agrees(texts, vocabulary, settings, tmp_path):
    """Returns `agrees(**engine)`, which asserts that `prepare` with `engine` writes the same files.

    `engine` holds arguments of `prepare`, such as `processes=2`. The files are compared with the
    files that `prepare` writes by default, in a single process.
    """

    def agrees(**engine):
        config = config_of(texts, **settings)
        folders = tmp_path / "one", tmp_path / "other"
        prepare(config, vocabulary, folders[0])
        prepare(config, vocabulary, folders[1], **engine)
        one, other = map(contents, folders)
        assert list(one) == list(other) and len(one) > 4
        for name in one:
            assert one[name] == other[name], name

    return agrees


@pytest.mark.slow
@pytest.mark.parametrize("settings", KINDS, indirect=True)
def test_processes(agrees):
    agrees(processes=3)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", ["next_sentence"], indirect=True)
def test_any_number_of_processes_goes_on(make, settings, out, tmp_path, monkeypatch):
    """A preparation that is killed and resumed with 1 or 2 processes writes the same files."""
    make(tmp_path / "whole", **settings)
    numbers = itertools.cycle([2, 1])

    def made(out, **settings):
        return make(out, processes=next(numbers), **settings)

    _, kills = made_with_kills(monkeypatch, made, out, operations=9, **settings)
    assert kills >= 1 and contents(out) == contents(tmp_path / "whole")


def pipeline(*options: str):
    """Returns a function that tokenizes a corpus with Apache Beam and the pipeline `options`.

    Skips the test if Beam is not installed.
    """
    reason = "Apache Beam is in .venv-peers: make test-peers"
    pytest.importorskip("apache_beam", reason=reason)
    from macaron_tf.data.corpus import beam

    return functools.partial(beam.tokenized_mixture, options=options)


@pytest.mark.parametrize("settings", KINDS, indirect=True)
def test_a_pipeline(agrees):
    agrees(tokenized=pipeline("runner=FnApiRunner"))


@pytest.mark.parametrize("settings", [SEVERAL, "pairs of a mixture"], indirect=True)
def test_a_pipeline_of_two_workers(agrees):
    workers = ["direct_num_workers=2", "direct_running_mode=multi_processing"]
    agrees(tokenized=pipeline("runner=DirectRunner", *workers))


def test_the_sentence_of_a_worker(make, tmp_path):
    tokenized = pipeline("runner=FnApiRunner")
    (tmp_path / "blank.txt").write_text(" \n")
    sources = (f"text:{tmp_path}/blank.txt",)
    refuses("blank.txt contains no text: remove", make, sources=sources, tokenized=tokenized)


@pytest.mark.slow
def test_workers_killed_at_random(vocabulary, tmp_path):
    """A new worker replaces a worker that is killed.

    If all processes are killed, the same command resumes the preparation.
    """
    rng = random.Random(24)
    (tmp_path / "texts").mkdir()
    for number in range(300):
        lines = (" ".join(str(rng.randrange(1000)) for _ in range(60)) + "." for _ in range(200))
        (tmp_path / "texts" / f"{number:03d}.txt").write_text("\n".join(lines))
    vocabulary.save(tmp_path / "vocabulary")
    options = f"--vocabulary {tmp_path}/vocabulary --set data.pairs=next_sentence"
    options += f" --set data.sources=text:{tmp_path}/texts/*.txt"
    options += " --set data.validation_every=20 --set data.rows_per_shard=1024"

    def begun(name: str, processes: int) -> subprocess.Popen:
        words = f"-m macaron_tf prepare bert_tiny {tmp_path / name} --processes {processes}"
        return started([*words.split(), *options.split()])

    def shards_in(name: str) -> int:
        return len([*(tmp_path / name).glob("train-*")])

    whole = begun("whole", 1)
    assert whole.communicate(timeout=900) and whole.returncode == 0
    shards = shards_in("whole")
    assert shards > 20
    process, killed = begun("killed", 4), []
    for moment in sorted(rng.randrange(shards // 2) for _ in range(10)):
        while not workers_of(process.pid) or moment > shards_in("killed"):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.2))
        victim = rng.choice([*workers_of(process.pid), process.pid])
        os.kill(victim, signal.SIGKILL)
        killed.append(victim == process.pid)
        # Wait for the workers, which share its output, to end.
        process.communicate(timeout=300)
        process = begun("killed", 4)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said
    assert 0 < sum(killed) < 10
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
