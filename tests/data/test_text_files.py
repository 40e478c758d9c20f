"""Text and TSV sources: what they read, and a clear sentence for what they cannot."""

import gzip

import pytest

from macaron_tf.data.sources import names
from macaron_tf.data.sources.readers import read_pairs, source_fingerprint
from macaron_tf.errors import UserError


def read(source, split="train"):
    return read_pairs(source, split, "en", "de")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "train.en").write_text("one\ntwo\u2028lines\n\nfour\n", encoding="utf-8")
    (tmp_path / "train.de").write_bytes(b"eins\r\nzwei\n\nvier")
    with gzip.open(tmp_path / "train.en.gz", "wt", encoding="utf-8") as file:
        file.write("one\ntwo\u2028lines\n\nfour\n")
    (tmp_path / "train.tsv").write_text("one\teins\ntwo\tzwei\n")
    return tmp_path


PAIRS = [("one", "eins"), ("two\u2028lines", "zwei"), ("", ""), ("four", "vier")]


def test_plain_gzip_and_split_names(files):
    assert read(f"text:{files}/train.en,{files}/train.de") == PAIRS
    assert read(f"text:{files}/train.en,{files}/train.de", "all") == PAIRS
    assert read(f"text:{files}/train.en.gz,{files}/train.de") == PAIRS
    assert read(f"text:{files}/{{split}}.en,{files}/{{split}}.de") == PAIRS
    assert read(f"tsv:{files}/{{split}}.tsv") == [("one", "eins"), ("two", "zwei")]


def test_which_sources_have_splits():
    def has_splits(name):
        return names.parse_source(name, names.PAIRS).has_splits

    assert has_splits("tfds:multi30k") and has_splits("homeassistant")
    assert has_splits("text:{split}.en,{split}.de") and has_splits("tsv:{split}.tsv")
    assert not has_splits("text:a.en,a.de") and not has_splits("tsv:a.tsv")
    with pytest.raises(UserError, match=r"tfds:NAME\[/CONFIG\]\[:VERSION\], text:"):
        has_splits("ftp:x")


def test_byte_order_mark_is_no_text(files):
    (files / "bom.en").write_bytes(b"\xef\xbb\xbfone\n")
    (files / "one.de").write_text("eins\n")
    assert read(f"text:{files}/bom.en,{files}/one.de") == [("one", "eins")]


def test_unequal_counts_name_both(files):
    (files / "short.de").write_text("eins\n")
    with pytest.raises(UserError, match=r"train\.en has 4 lines but .*short\.de has 1"):
        read(f"text:{files}/train.en,{files}/short.de")


@pytest.mark.parametrize(
    ("source", "split", "message"),
    [
        ("text:{d}/nope.en,{d}/train.de", "train", r"cannot read .*nope\.en: No such file"),
        ("text:{d},{d}/train.de", "train", "cannot read"),
        ("text:{d}/train.en", "train", "names 1 files, not 2"),
        ("text:a,b,c", "train", "names 3 files, not 2"),
        ("text:{d}/train.en,{d}/train.de", "validation", r"no split 'validation': put \{split\}"),
        ("text:{d}/{{split}}.en,{d}/{{split}}.de", "dev", r"cannot read .*dev\.en"),
        ("text:{d}/empty,{d}/empty", "train", "empty is empty"),
        ("text:{d}/latin,{d}/train.de", "train", r"latin, line 2: not UTF-8 \(byte 0xe4\)"),
        ("text:{d}/broken.gz,{d}/train.de", "train", "not a whole gzip file"),
        ("text:{d}/false.gz,{d}/train.de", "train", "not a whole gzip file"),
        ("tsv:{d}/three.tsv", "train", r"three\.tsv, line 2: 3 columns, not 2"),
        ("tsv:{d}/train.en", "train", r"train\.en, line 1: 1 columns, not 2"),
        ("tsv:{d}/empty", "train", "empty is empty"),
        ("tsv:{d}/nope", "train", "cannot read"),
        ("csv:{d}/train.tsv", "train", "unknown source 'csv:"),
        ("", "train", "unknown source ''"),
        ("text:", "train", "unknown source 'text:': give tfds"),
        ("tfds:", "train", "unknown source 'tfds:': give tfds"),
    ],
)
def test_errors(files, source, split, message):
    (files / "empty").write_text("")
    (files / "latin").write_bytes(b"eins\nzw\xe4i\n")
    (files / "three.tsv").write_text("a\tb\na\tb\tc\n")
    (files / "broken.gz").write_bytes((files / "train.en.gz").read_bytes()[:-9])
    (files / "false.gz").write_text("not compressed\n")
    with pytest.raises(UserError, match=message) as caught:
        read(source.format(d=files), split)
    assert "\n" not in str(caught.value)


def test_fingerprint_follows_the_content(files):
    def fingerprint(split="train", source=f"text:{files}/train.en,{files}/train.de"):
        return source_fingerprint(source, split, "en", "de")

    before = fingerprint()
    assert fingerprint() == before
    assert fingerprint("all") != before
    (files / "train.en").write_text("1\n2\n3\n4\n")
    assert fingerprint() != before
    with pytest.raises(UserError, match="cannot read"):
        fingerprint(source="tsv:nowhere.tsv")
