"""Preparation in several processes and as a pipeline of Apache Beam: the files of one process."""

import itertools

import pytest

from macaron_tf.data.corpus import documents
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.io import progress
from tests.data.corpus.conftest import config_of, contents
from tests.data.corpus.test_writing import made_with_kills
from tests.harness import refuses

SEVERAL = "several languages"
KINDS = {
    "doc_text": {},
    "full_text": {"packing": "full_text", "validation_run": 2},
    "doc_sentences": {"packing": "doc_sentences"},
    "full_sentences": {"packing": "full_sentences"},
    "next_sentence": {"pairs": "next_sentence", "validation_every": 4},
    "sentence_order": {"pairs": "sentence_order", "validation_every": 4},
    "weights": {"weights": (1.0, 1.0)},
    "pairs of a mixture": {"weights": (1.0, 1.0), "pairs": "next_sentence", "validation_every": 4},
    SEVERAL: {"sources": None},
    "language_alpha": {"sources": None, "language_alpha": 0.0, "rows_per_shard": 40},
    "batch_alpha": {"sources": None, "batch_alpha": 0.5},
}


@pytest.fixture
def settings(request, sources, monkeypatch):
    """The settings of a kind of corpus, whose documents are tokenized by the handful."""
    monkeypatch.setattr(documents, "_GROUP", 600)
    found = dict(KINDS[request.param])
    return found | {"sources": sources} if "sources" in found else found


@pytest.fixture
def agrees(texts, vocabulary, settings, tmp_path):
    """Checks that some engine writes what one process does."""

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


@pytest.mark.parametrize("settings", ["next_sentence"], indirect=True)
def test_any_number_of_processes_goes_on(make, settings, out, tmp_path, monkeypatch, capsys):
    """Killed every few file operations; each life has one process or two in turn."""
    monkeypatch.setattr(progress, "_SECONDS", 0)
    make(tmp_path / "whole", **settings)
    lines = capsys.readouterr().err.splitlines()
    numbers = itertools.cycle([1, 2])

    def made(out, **settings):
        return make(out, processes=next(numbers), **settings)

    _, kills = made_with_kills(monkeypatch, made, out, operations=5, **settings)
    assert kills >= 1 and contents(out) == contents(tmp_path / "whole")
    words = capsys.readouterr().err.splitlines()[-1].split("  ")
    assert words[:4] == lines[-1].split("  ")[:4]  # documents, rows and tokens of the last line


@pytest.mark.parametrize("settings", KINDS, indirect=True)
def test_a_pipeline(agrees):
    pytest.importorskip("apache_beam", reason="Apache Beam has an environment of its own")
    agrees(beam=["runner=FnApiRunner"])


@pytest.mark.parametrize("settings", [SEVERAL, "pairs of a mixture"], indirect=True)
def test_a_pipeline_of_two_workers(agrees):
    pytest.importorskip("apache_beam", reason="Apache Beam has an environment of its own")
    workers = ["direct_num_workers=2", "direct_running_mode=multi_processing"]
    agrees(beam=["runner=DirectRunner", *workers])


def test_the_sentence_of_a_worker(make, tmp_path):
    pytest.importorskip("apache_beam", reason="Apache Beam has an environment of its own")
    (tmp_path / "blank.txt").write_text(" \n")
    sources = (f"text:{tmp_path}/blank.txt",)
    refuses("blank.txt holds no text: remove", make, sources=sources, beam=["runner=FnApiRunner"])
