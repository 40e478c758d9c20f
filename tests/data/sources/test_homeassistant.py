"""Tests of the default corpus, which is read from a toy wheel that a fake pip downloads."""

import itertools
import json
import re
import subprocess
import sys
import zipfile

import pytest

from macaron_tf.data.sources import homeassistant as corpora
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory
from tests.harness import refuses
from tests.toys.processes import ROOT

TEXTS = {
    "en": {
        "config": {"step": {"user": {"title": "Set up {name}\n\nnow"}, "only_english": "Alone"}},
        "state": ["On", "RSSI", "{host}", "", "https://example.org/{path}", "10:00"],
        "again": "On",
    },
    "de": {
        "config": {"step": {"user": {"title": "{name} jetzt einrichten"}}},
        "state": ["Ein", "RSSI", "{host}", "leer", "https://example.org/de", "10.00"],
        "again": "Ein",
        "not_in_english": "Nur hier",
    },
    "pt-BR": {"again": "Ligado"},
}


def make_wheel(path, components):
    with zipfile.ZipFile(path, "w") as archive:
        for component, texts in components.items():
            for language, text in texts.items():
                name = f"homeassistant/components/{component}/translations/{language}.json"
                archive.writestr(name, json.dumps(text))
        archive.writestr("homeassistant/components/x/translations/de.json", '{"a": "ohne en"}')
        archive.writestr("homeassistant/strings.json", "{}")
    return path


@pytest.fixture
def wheel(tmp_path):
    return make_wheel(tmp_path / "tiny.whl", {"one": TEXTS, "two": TEXTS})


def test_parsing(wheel):
    splits = corpora.wheel_pairs(wheel, "de")
    pairs = sorted(pair for split in splits.values() for pair in split)
    assert pairs == [("On", "Ein"), ("Set up {name} now", "{name} jetzt einrichten")]
    assert sum(map(len, corpora.wheel_pairs(wheel, "pt-BR").values())) == 1
    refuses("no language 'xx': give a code", corpora.wheel_pairs, wheel, "xx")


@pytest.fixture
def fetched(wheel, monkeypatch):
    monkeypatch.setattr(corpora, "fetch_homeassistant", lambda: wheel)


def test_documents_of_one_language(wheel, fetched):
    texts = {}
    for language in ("en", "de"):
        splits = corpora.wheel_documents(wheel, language)
        texts[language] = sorted(text for found in splits.values() for text in found)
        assert corpora.read_homeassistant(language, "train") == splits["train"]
    assert texts["de"] == ["{name} jetzt einrichten\nEin\nEin"] * 2  # in file order
    assert texts["en"] == ["Set up {name} now\nAlone\nOn\nRSSI\nOn"] * 2
    refuses("no language 'xx': give a code", corpora.wheel_documents, wheel, "xx")
    refuses("no split 'dev': give one of train", corpora.read_homeassistant, "de", "dev")


@pytest.fixture
def sides(tmp_path):
    """Returns `wheel(*components)`, where a component is a list of English and of German texts."""

    def wheel(*components):
        texts = ({"en": dict(enumerate(en)), "de": dict(enumerate(de))} for en, de in components)
        return make_wheel(tmp_path / "w.whl", dict(enumerate(texts)))

    return wheel


def test_splits_are_fixed_disjoint_and_ignore_case(sides):
    english = [f"Sentence number {n % 3000}" for n in range(6000)]
    german = [f"Satz {n} zu {text}" for n, text in enumerate(english)]
    upper = [f"SENTENCE number {n}" for n in range(3000)]
    splits = corpora.wheel_pairs(sides((english + upper, german + german[:3000])), "de")
    keys = {name: [en.casefold() for en, _ in pairs] for name, pairs in splits.items()}
    for one, other in itertools.combinations(keys.values(), 2):
        assert not set(one) & set(other)
    for name in ("validation", "test"):
        assert len(keys[name]) == len(set(keys[name]))
        assert 30 < len(keys[name]) < 100
    # The split depends on the text alone, not on the language or the order of components.
    assert corpora._split_of("re-authentication was successful") == "train"
    wheel = sides((english[:300], german[:300]))
    pairs, splits = corpora.wheel_pairs(wheel, "de"), corpora.wheel_documents(wheel, "de")
    for split in corpora.SPLITS:
        (document,) = splits[split]
        assert document.split("\n") == [other for _, other in pairs[split]]
    assert len(pairs["test"]) > 1
    text = next(text for text in english if corpora._split_of(text.casefold()) == "test")
    wheel = sides(*(([text], [german]) for german in "ABB"))
    assert corpora.wheel_pairs(wheel, "de")["test"] == [(text, "B")]


def test_directions(fetched):
    forward = read_pairs("homeassistant", "train", "en", "de")
    assert forward
    assert read_pairs("homeassistant:de", "train", "de", "en") == [pair[::-1] for pair in forward]


@pytest.mark.parametrize(
    ("source", "split", "languages", "message"),
    [
        ("homeassistant", "dev", ("en", "de"), "no split 'dev': give one of train"),
        ("homeassistant", "train", ("fr", "de"), "no pairs of .'fr', 'de'.: pair with 'en'"),
        ("homeassistant:fr", "train", ("en", "de"), "homeassistant:fr has no pairs of .'en'"),
    ],
)
def test_errors(fetched, source, split, languages, message):
    refuses(message, read_pairs, source, split, *languages)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MACARON_TF_CACHE", f"{tmp_path}/cache")
    return tmp_path / "cache"


def fake_pip(monkeypatch, script):
    """Replaces `pip download` with a Python script whose argument is the download folder."""
    real = subprocess.run

    def run(command, **options):
        folder = command[command.index("--dest") + 1]
        assert command[1:4] == ["-m", "pip", "download"]
        return real([sys.executable, "-c", script, folder], **options)

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('ERROR: No such thing'); raise SystemExit(1)", "No such thing.*put it into"),
        (f"import sys; open(sys.argv[1] + '/{corpora._WHEEL}', 'w')", "has an unexpected SHA-256"),
        ("raise SystemExit(1)", "could not download .*no output"),
    ],
    ids=["no network", "another file", "silent"],
)
def test_a_download_that_fails_leaves_nothing(cache, monkeypatch, capfd, script, message):
    fake_pip(monkeypatch, script)
    refuses(message, corpora.fetch_homeassistant)
    assert list(cache.iterdir()) == []
    assert "downloading homeassistant" in capfd.readouterr().err


def test_fetched_once_and_again_when_damaged(cache, wheel, monkeypatch):
    script = f"import shutil, sys; shutil.copy({str(wheel)!r}, sys.argv[1] + '/{corpora._WHEEL}')"
    fake_pip(monkeypatch, script)
    monkeypatch.setattr(corpora, "HOMEASSISTANT_SHA256", corpora.file_digest(wheel))
    path = corpora.fetch_homeassistant()
    path.write_bytes(b"half")
    assert corpora.fetch_homeassistant().read_bytes() == wheel.read_bytes()
    fake_pip(monkeypatch, "raise SystemExit('called again')")
    assert corpora.fetch_homeassistant() == path
    assert [p.name for p in cache.iterdir()] == [corpora._WHEEL]


def test_the_real_corpus():
    try:
        wheel = corpora.fetch_homeassistant()
    except UserError as error:
        pytest.skip(f"the default corpus cannot be fetched: {error}")
    splits = corpora.wheel_pairs(wheel, "de")
    sizes = {name: len(pairs) for name, pairs in splits.items()}
    assert sizes == {"train": 23593, "validation": 486, "test": 546}


@pytest.mark.skipif(
    not (cache_directory() / corpora._WHEEL).exists(), reason="the corpus is not downloaded"
)
def test_the_sentences_of_the_demo_are_in_its_training_text():
    sources = {source for source, _ in corpora.read_homeassistant("de", "train", ("en", "de"))}
    [asked] = re.findall(r'echo "(.+)" \| .*predict runs/demo', (ROOT / "Makefile").read_text())
    assert asked in sources
