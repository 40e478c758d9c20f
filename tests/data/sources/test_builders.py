"""Tests of TFDS builders for the recipes' data sets, on small versions of published files."""

import gzip
import io
import pathlib
import re
import tarfile
import zipfile

import pytest
import sacremoses

from macaron_tf.data.sources import builders
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.sources.tfds import Tfds, open_set
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.tags import read_tagged
from tests.harness import refuses

CAPTIONS = [("Ein Mann boxt.", "A man boxes."), ("Zwei Hunde.", "Two dogs."), ("Ja!", "Yes!")]
NEWS = "-DOCSTART- -X- -X- O\n\nU.N. NNP I-NP I-ORG\nsays VBZ I-VP O\n\nRome NNP I-NP I-LOC\n\n"
TED = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Returns a folder with small versions of all published files.

    The builders read this folder instead of downloading the files.
    """
    folder = tmp_path / "published"
    folder.mkdir()
    for builder in builders.BUILDERS.values():
        monkeypatch.setattr(builder, "URL", str(folder))
    for part in ("train", "val", "test_2016_flickr"):
        for side, code in enumerate(("de", "en")):
            lines = "".join(f"{part} {pair[side]}\n" for pair in CAPTIONS)
            (folder / f"{part}.{code}.gz").write_bytes(gzip.compress(lines.encode()))
    with zipfile.ZipFile(folder / "conll2003.zip", "w") as archive:
        for name in ("train.txt", "valid.txt", "test.txt"):
            archive.writestr(name, NEWS)
    with tarfile.open(folder / "de-en.tgz", "w:gz") as archive:
        for name, text in _talks().items():
            member = tarfile.TarInfo(f"de-en/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return folder


def _talks() -> dict[str, str]:
    files = {}
    for code, word in (("de", "Wort"), ("en", "word")):
        head = f"<url>http://x</url>\n<keywords>a, b</keywords>\n<title>{word}: No</title>\n"
        lines = "".join(f"{word} number {n} & more.\n" for n in range(45))
        odd = {"de": "eins zwei drei vier fünf\n\n", "en": "one two\nalone\n"}[code]
        files[f"train.tags.de-en.{code}"] = f"{head}{odd}{lines}{'long ' * 176}\n"
        for part in TED:
            segment = f'<doc>\n<seg id="1"> {part}, {word}\u2019s end. </seg>\n</doc>\n'
            files[f"IWSLT14.{part}.de-en.{code}.xml"] = segment
    return files


def test_multi30k(published, tmp_path):
    tfds = Tfds(tmp_path / "sets", download=True)
    for split, part in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr")):
        pairs = read_pairs("tfds:multi30k/de-en", split, "en", "de", tfds)
        assert sorted(pairs) == sorted((f"{part} {e}", f"{part} {d}") for d, e in CAPTIONS)
    # A prepared set needs neither the published files nor the flag.
    for file in published.iterdir():
        file.unlink()
    assert len(read_pairs("tfds:multi30k/de-en", "train", "de", "en", Tfds(tfds.root))) == 3
    # A prepared language pair is not used for another pair.
    source = "tfds:multi30k/fr-en"
    refuses("fr-en could not be prepared", read_pairs, source, "train", "fr", "en", tfds)


def test_iwslt14(published, tmp_path):
    tfds = Tfds(tmp_path / "sets", download=True)

    def read(split):
        return sorted(read_pairs("tfds:iwslt14", split, "de", "en", tfds))

    # Three pairs are dropped: one has an empty side, one unequal lengths, one 176 words. Of the
    # title and 45 others, pairs 23 and 46 are for validation.
    lines = [("wort : no", "word : no")]
    lines += [tuple(f"{w} number {n} &amp; more ." for w in ("wort", "word")) for n in range(45)]
    assert read("validation") == sorted([lines[22], lines[45]])
    assert read("train") == sorted(lines[:22] + lines[23:45])
    assert read("test") == sorted(
        (f"{part.lower()} , wort &apos; s end .", f"{part.lower()} , word &apos;s end .")
        for part in TED
    )


def test_conll2003_ner(published, tmp_path):
    tfds = Tfds(tmp_path / "sets", download=True)
    for split in ("train", "dev", "test"):
        found = read_tagged(get_task("conll2003"), split, tfds)
        rows = zip(found.words, found.labels, strict=True)
        tags = {tuple(words): labels.tolist() for words, labels in rows}
        assert tags == {("U.N.", "says"): [3, 0], ("Rome",): [5]}


def test_features_and_splits_are_those_of_the_prepared_sets(published, tmp_path, tfds):
    sets = {"multi30k/de-en": "train", "iwslt14": "train", "conll2003_ner": "dev"}
    made = Tfds(tmp_path / "sets", download=True)
    for name, split in sets.items():
        found = open_set(name, split, made)
        known = open_set(name, split, tfds)
        assert set(known.builder.info.splits) < set(found.builder.info.splits)
        assert found.builder.info.supervised_keys == known.builder.info.supervised_keys
        texts = [(place.folder / "features.json").read_text() for place in (found, known)]
        assert texts[0] == texts[1]
    names = [open_set("conll2003_ner", "dev", one).columns[0]["ner"] for one in (tfds, made)]
    assert names[0] == names[1]


def test_iwslt14_is_tokenized_and_cut_as_the_prepared_set(tfds):
    pairs = read_pairs("tfds:iwslt14/de-en", "validation", "de", "en", tfds)
    assert all(builders._has_fitting_lengths(*pair) for pair in pairs)
    tools = [sacremoses.MosesDetokenizer(code) for code in ("de", "en")]
    plain = [
        tuple(tool.detokenize(side.split()) for tool, side in zip(tools, pair, strict=True))
        for pair in pairs[:1000]
    ]
    # The original capitals are lost, so the next sentence's capital shows where a full stop was.
    cased = [tuple(re.sub(r"(?<=\. )\w", lambda c: c[0].upper(), s) for s in p) for p in plain]
    found = list(builders._tokenized(cased, ("de", "en")))
    both = zip(sum(found, ()), sum(pairs[:1000], ()), strict=True)
    same = [ours.lower() == theirs for ours, theirs in both]
    assert sum(same) / len(same) > 0.95


@pytest.mark.parametrize("name", ["multi30k/de-en", "iwslt14", "conll2003_ner"])
def test_damaged_or_missing_files_leave_nothing(published, tmp_path, name):
    tfds = Tfds(tmp_path / "sets", download=True)
    message = f"tfds:{name} could not be prepared in .*: check the network, or copy the prepared"
    for damage in (lambda file: file.write_bytes(file.read_bytes()[:60]), lambda f: f.unlink()):
        for file in published.iterdir():
            damage(file)
        refuses(message, open_set, name, "train", tfds)
        base = name.partition("/")[0]
        assert not (tfds.root / "downloads" / base).exists()
        assert not [*pathlib.Path(tfds.root, base).rglob("*1.0.0*")]


def test_sides_of_unequal_length(published, tmp_path):
    (published / "val.en.gz").write_bytes(gzip.compress(b"one\n"))
    tfds = Tfds(tmp_path / "sets", download=True)
    refuses("'val.de.gz': 3, 'val.en.gz': 1", open_set, "multi30k/de-en", "train", tfds)
