"""Tests of readers of pairs and documents, and of their one-line error messages."""

import bz2
import gzip
import json
import lzma
import os
import shutil

import pytest
from etils import epath

from macaron_tf.data.sources import names
from macaron_tf.data.sources.readers import (
    count_texts,
    documents,
    read_pairs,
    source_files,
    source_fingerprint,
)
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.io import paths as storage
from tests.harness import refuses


def read(source, split="train"):
    return read_pairs(source, split, "en", "de")


def read_texts(source):
    return list(documents(source))


@pytest.fixture
def files(disk_or_bucket) -> epath.Path:
    """Returns a folder with line-aligned files, a table of pairs, and two files of documents."""
    folder = storage.as_path(disk_or_bucket)
    english = "one\ntwo\u2028lines\n\nfour\n".encode()
    for name, content in {
        "train.en": english,
        "train.de": b"eins\r\nzwei\n\nvier",
        "train.en.gz": gzip.compress(english),
        "train.tsv": b"one\teins\ntwo\tzwei\n",
        "b.txt": "\ufeffOne.\nTwo.\n\n\nThree.\n".encode(),
        "a.txt.gz": gzip.compress("Vier\u2028hier.\r\n".encode()),
    }.items():
        storage.write_atomic(folder / name, content)
    return folder


LINES = [("one", "eins"), ("two\u2028lines", "zwei"), ("", ""), ("four", "vier")]


def test_plain_gzip_and_split_names(files):
    assert read(f"text:{files}/train.en,{files}/train.de") == LINES
    assert read(f"text:{files}/train.en,{files}/train.de", "all") == LINES
    assert read(f"text:{files}/train.en.gz,{files}/train.de") == LINES
    assert read(f"text:{files}/{{split}}.en,{files}/{{split}}.de") == LINES
    assert read(f"tsv:{files}/{{split}}.tsv") == [("one", "eins"), ("two", "zwei")]
    (files / "bom.en").write_bytes(b"\xef\xbb\xbfone\n")
    (files / "one.de").write_text("eins\n")
    assert read(f"text:{files}/bom.en,{files}/one.de") == [("one", "eins")]


@pytest.mark.parametrize(
    ("source", "split", "message"),
    [
        ("text:{d}/nope.en,{d}/train.de", "train", r"read .*nope\.en \((No such|FileNot)"),
        ("text:{d}/train.en", "train", "train.en. does not have the form text:S"),
        (
            "text:{d}/train.en,{d}/train.de",
            "validation",
            r"no split 'validation': give one file per",
        ),
        ("text:{d}/empty,{d}/empty", "train", "empty is empty"),
        ("text:{d}/train.en,{d}/one", "train", "one has fewer lines than the other file"),
        ("tsv:{d}/three.tsv", "train", r"three\.tsv, line 2 has 3, not 2 columns"),
        ("tsv:{d}/train.tsv", "test", "no split 'test': give one file per"),
        ("csv:{d}/train.tsv", "train", r"unknown source 'csv:.*tfds:NAME\[/CONFIG\]\[:VERSION"),
    ],
)
def test_pairs_that_cannot_be_read(files, source, split, message):
    (files / "empty").write_text("")
    (files / "one").write_text("eins\n")
    (files / "three.tsv").write_text("a\tb\na\tb\tc\n")
    refuses(message, read, source.format(d=files), split)


def test_fingerprint_follows_the_content(files, tfds):
    def fingerprint(split="train", source=f"text:{files}/train.en,{files}/train.de"):
        return source_fingerprint(source, split, ("en", "de"))

    before = fingerprint()
    assert fingerprint() == before
    assert fingerprint("all") != before
    (files / "train.en").write_text("1\n2\n3\n4\n")
    assert fingerprint() != before
    refuses("cannot read", fingerprint, source="tsv:nowhere.tsv")

    def fingerprint(*languages):
        return source_fingerprint("tfds:multi30k", "train", languages, tfds)

    assert fingerprint("en", "de") == fingerprint("en", "de") != fingerprint("de", "en")


def read_set(tfds, source, split="validation", languages=("en", "de")):
    return read_pairs(source, split, *languages, tfds)


def test_both_directions_and_slices(tfds):
    pairs = read_set(tfds, "tfds:multi30k/de-en")
    assert len(pairs) == 1014
    assert pairs[0][0].startswith("A man") and pairs[0][1].startswith("Ein Mann")
    # The configuration is found by the two languages. A version may follow, and the languages may
    # be in either order.
    assert read_set(tfds, "tfds:multi30k") == pairs
    assert read_set(tfds, "tfds:multi30k/de-en:1.0.0", "validation[:7]") == pairs[:7]
    assert read_set(tfds, "tfds:multi30k", languages=("de", "en"))[0] == pairs[0][::-1]
    assert read_set(tfds, "tfds:multi30k", languages=("en", "fr"))[0][0] == pairs[0][0]


@pytest.mark.parametrize(
    ("source", "split", "languages", "message"),
    [
        ("tfds:nope", "train", ("en", "de"), "no TFDS dataset 'nope' .*no builder"),
        ("tfds:opus/medical", "train", ("en", "de"), "another --data-dir, or give --download"),
        ("tfds:multi30k", "train", ("en", "xx"), "configuration en-xx or .*de-en, fr"),
        ("tfds:multi30k", "test", ("en", "de"), "no split 'test': give one of train, validation"),
        ("tfds:multi30k/fr-en", "train", ("en", "de"), "no field 'de', only the fields en, fr"),
        ("tfds:multi30k", "train[:10%", ("en", "de"), "cannot read split"),
    ],
)
def test_sets_that_cannot_be_read(tfds, source, split, languages, message):
    refuses(message, read_set, tfds, source, split, languages)


def test_a_damaged_set(tfds_dir, tmp_path):
    folder = tmp_path / "multi30k" / "de-en"
    shutil.copytree(f"{tfds_dir}/multi30k/de-en", folder, copy_function=shutil.copyfile)
    folder = folder / "1.0.0"
    folder.chmod(0o755)
    record = next(folder.glob("*validation.tfrecord*"))
    record.write_bytes(record.read_bytes()[:1000])
    refuses("cannot read split 'validation'", read_set, Tfds(tmp_path), "tfds:multi30k")
    (folder / "features.json").write_text("{")
    refuses("not a prepared TFDS dataset", read_set, Tfds(tmp_path), "tfds:multi30k")
    (folder / "dataset_info.json").unlink()
    refuses("no TFDS dataset .* give --download", read_set, Tfds(tmp_path), "tfds:multi30k/de-en")


def test_forms_of_text(files):
    for kind, texts in {
        "text": ["One.\nTwo.\n\n\nThree."],
        "text-paragraphs": ["One.\nTwo.", "Three."],
        "text-lines": ["One.", "Two.", "Three."],
    }.items():
        assert read_texts(f"{kind}:{files}/?.txt*") == ["Vier\u2028hier.", *texts]
    both = f"text:{files}/b*,{files}/a*.gz,{files}/b.txt"
    assert [text[:4] for text in documents(both)] == ["One.", "Vier"]
    assert count_texts(both, "train") == 2
    assert count_texts(f"text-lines:{files}/*", "train") is None
    assert [path.name for path in source_files(both, "train")] == ["b.txt", "a.txt.gz"]
    (files / "a.txt").write_text("word " * 2_000_000)
    assert [len(text) for text in documents(f"text-lines:{files}/a.txt")] == [10_000_000]
    (files / "train.txt").write_text("Learn.")
    source = f"text:{files}/{{split}}.txt"
    assert list(documents(source, "train")) == ["Learn."]
    refuses("no file matches .*test.txt", documents, source, "test")
    refuses("has no split 'test'", documents, f"text:{files}/b.txt", "test")


def test_real_sets(tfds):
    articles = documents("tfds:wikipedia/20230601.en", "train[:5]", tfds)
    texts = list(articles)
    assert len(texts) == 5 and all(len(text) > 200 for text in texts)
    assert count_texts("tfds:wikipedia/20230601.en", "train", (), tfds) == 677
    book = next(documents("tfds:pg19", "validation", tfds))
    assert len(book) > 100_000
    assert source_files("tfds:pg19", "train", tfds=tfds)
    for source, split, message in (
        ("tfds:glue/mrpc", "train", "no single text field, but .*sentence1"),
        ("novels", "night", "unknown source 'novels' of documents: give tfds"),
        ("tfds:pg19", "night", "no split 'night': give one of train"),
    ):
        refuses(message, documents, source, split, tfds)
    german = list(documents("tfds:multi30k/de-en", "validation", tfds, "de"))
    pairs = read_set(tfds, "tfds:multi30k/de-en", languages=("de", "en"))
    assert german == [pair[0] for pair in pairs]


def test_a_part_of_a_file_is_held_out(tmp_path, capsys):
    pairs = [(f"one {n % 900}", f"eins {n % 900}") for n in range(1000)]
    source = f"tsv:{tmp_path}/a.tsv"

    def parts(pairs, share=0.1, seed=1, most=2000):
        (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
        return [read(source, names.HeldOut(share, seed, rest, most)) for rest in (True, False)]

    rest, held = parts(pairs)
    said = f"{source}: {len(held)} of 1,000 pairs are held out for validation, drawn by data.seed=1"
    assert capsys.readouterr().err == f"{said}\n" and 70 < len(held) < 130
    # Both parts keep the file's order, none is lost, and equal pairs are in the same part.
    assert sorted(rest + held) == sorted(pairs) and not {*rest} & {*held}
    assert all(part == [pair for pair in pairs if pair in {*part}] for part in (rest, held))
    assert parts([("new", "neu"), *pairs[::-1]])[1][::-1][: len(held)] == held
    # The part held out of a large file is bounded.
    few_rest, few = parts(pairs, most=20)
    assert 18 <= len({*few}) <= 20 and {*few} < {*held}
    assert sorted(few_rest + few) == sorted(pairs) and not {*few_rest} & {*few}
    assert parts(pairs, seed=2)[1] != held and 170 < len(parts(pairs, 0.2)[1]) < 230
    splits = {names.HeldOut(0.1, seed, rest) for seed in (1, 2) for rest in (True, False)}
    splits |= {"train", "all"}
    assert len({source_fingerprint(source, split, ("en", "de")) for split in splits}) == 6
    refuses("0 of 1 pairs are held out .* .data.held_out=0.1.: change it", parts, pairs[:1])


@pytest.mark.parametrize("pack", [gzip, bz2, lzma])
def test_packed_files(pack, tmp_path):
    end = {gzip: ".gz", bz2: ".bz2", lzma: ".xz"}[pack]
    whole = pack.compress(b"one\teins\r\ntwo\tzwei\r\n" * 500)
    for name in (f"a.tsv{end}", f"a.TSV{end.upper()}"):
        (tmp_path / name).write_bytes(whole)
        assert read(f"tsv:{tmp_path}/{name}") == [("one", "eins"), ("two", "zwei")] * 500
        assert count_texts(f"tsv:{tmp_path}/{name}", "train", ("en", "de")) == 1000
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        refuses(f"cannot read .*{name} .*: check or restore", read, f"tsv:{tmp_path}/{name}")
    for name in ("a.tsv", f"a.tsv{end}"):  # compressed without a suffix, or twice
        (tmp_path / name).write_bytes(whole if name == "a.tsv" else pack.compress(whole))
        refuses("line 1 is not UTF-8 ", read, f"tsv:{tmp_path}/{name}")


def test_rows_as_pandas_and_excel_write_them(tmp_path):
    tsv = b'\xef\xbb\xbfHe said ""go""\t"He said ""go"""\r\n"a"\t5" b\n"c\td"\n\n \n\t\n'
    (tmp_path / "a.tsv").write_bytes(tsv)
    assert read(f"tsv:{tmp_path}/a.tsv") == [
        ('He said ""go""', 'He said "go"'), ('"a"', '5" b'), ('"c', 'd"')
    ]  # fmt: skip
    csv = b'"He said ""go""";"a;b"\r\n5" c;"d\r\n\r\ne"\r\n\r\n;\r\n'
    (tmp_path / "a.csv").write_bytes(csv)
    packed = {"b.CSV.gz": gzip.compress(csv), "c.csv": csv.replace(b";", b",")}
    packed["d.csv"] = csv.replace(b";", b"\t")
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
    for name, mark in {"a.csv": ";", "b.CSV.gz": ";", "c.csv": ",", "d.csv": "\t"}.items():
        found = [('He said "go"', f"a{mark}b"), ('5" c', "d\n\ne")]
        assert read(f"tsv:{tmp_path}/{name}") == found
    (tmp_path / "a.csv").write_text('a,b\n"Go," he said,b\n')
    said = "a.csv, line 2 .* expected after"
    refuses(said, read, f"tsv:{tmp_path}/a.csv")


DOCUMENT_FORMS = ("text:{}", "text-lines:{}", "text-paragraphs:{}", "jsonl:{}", "parquet:{}")
PAIR_FORMS = ("text:{0},{0}", "tsv:{0}", "jsonl:{0}:a,b", "parquet:{0}:a,b")


@pytest.mark.parametrize("form", [*DOCUMENT_FORMS, *PAIR_FORMS])
def test_devices_and_pipes_are_no_text(form, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reads = read if form in PAIR_FORMS else read_texts
    for path in ("/dev/zero", tmp_path / "pipe"):
        refuses(f"{path} is a device", reads, form.format(path))


def test_files_that_cannot_be_read(tmp_path):
    refuses(r"no file matches .*/\*\.txt", documents, f"text:{tmp_path}/*.txt")
    (tmp_path / "folder").mkdir()
    refuses("no file matches", documents, f"text:{tmp_path}/f*")
    (tmp_path / "latin.txt").write_bytes("ok\ngr\xfcn".encode("latin-1"))
    message = r"latin\.txt, line 2 is not UTF-8 \(byte 0xfc\)"
    refuses(message, read_texts, f"text:{tmp_path}/latin.txt")
    whole = gzip.compress(b"some text " * 1000 + bytes(range(128)) * 50)
    middle = bytearray(whole)
    middle[20] ^= 0xFF
    for damaged in (whole[:-20], b"no gzip", bytes(middle), whole[:-6] + b"\0" * 6):
        (tmp_path / "a.gz").write_bytes(damaged)
        refuses(r"cannot read .*a\.gz .*: check or restore", read_texts, f"text:{tmp_path}/a.gz")


CELLS = 'good\x85a\u2028b\x0cc "x" y'


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_ends_at_a_line_feed_only(tmp_path, start, end):
    """A byte order mark and carriage returns at line ends are left out, and no other character."""
    record = json.dumps({"a": CELLS, "b": "x"}, ensure_ascii=False)
    for name, line in {
        "tsv:a.tsv": f"{CELLS}\tx", "jsonl:a.jsonl": record, "text:a.txt,a.txt": CELLS,
        "tsv:a.csv": '"{}",x'.format(CELLS.replace('"', '""')),
    }.items():  # fmt: skip
        kind, _, files = name.partition(":")
        for file in files.split(","):
            (tmp_path / file).write_bytes(f"{start}{line}{end}{line}{end}".encode())
        source = f"{kind}:{','.join(f'{tmp_path}/{file}' for file in files.split(','))}"
        pair = (CELLS, CELLS if kind == "text" else "x")
        assert read(f"{source}:a,b" if kind == "jsonl" else source) == [pair] * 2
    assert read_texts(f"text-lines:{tmp_path}/a.txt") == [CELLS] * 2


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_table_that_a_writer_left_half_done(tmp_path, name):
    own, source, mark = get_task("classify", own=True), f"tsv:{tmp_path}/{name}", ",\t"["t" in name]
    for content, message in (
        ("\ufeff\n", "is empty: give a table with a header"),
        ("text{}label\n", "line 1 contains no examples"),
        ("text{}label\na{}b\nhalf", "line 3 has 1, not 2 columns: put"),
    ):
        (tmp_path / name).write_text(content.replace("{}", mark), encoding="utf-8")
        refuses(f"{name}.* {message}", TableSettings().filled, own, source)
