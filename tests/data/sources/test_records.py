"""Tests of reading JSON lines, Parquet files and `save_to_disk` folders."""

import gzip
import json

import numpy as np
import pytest

from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.data.corpus.documents import source_parts
from macaron_tf.data.sources.names import HeldOut
from macaron_tf.data.sources.readers import documents, read_pairs, source_files, source_fingerprint
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.data.tasks.tags import sentences_of
from macaron_tf.io.plug_ins import find_sources
from macaron_tf.tasks import labelled
from tests.harness import refuses

ROWS = [{"text": f"text {n}\nü", "label": n % 2, "n": n} for n in range(70)]
PAIRS = [{"translation": {"en": f"one {n}", "de": f"eins {n}"}} for n in range(9)]
CLASSES = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_jsonl(path, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    packed = gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode()
    path.write_bytes(packed)


def write_set(folder, rows, files=2, features=None):
    """Writes rows in the `save_to_disk` format of `datasets` 4; returns the Arrow table.

    The rows are split into `files` files. `features` describes the columns.
    """
    pa = pytest.importorskip("pyarrow")
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    if features:
        record = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": record})
    names = [f"data-{n:05d}-of-{files:05d}.arrow" for n in range(files)]
    for name, part in zip(names, np.array_split(np.arange(len(rows)), files), strict=True):
        with pa.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table.slice(part[0], len(part)))
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    return table


def write_all(folder):
    """Writes the same records as JSON lines, Parquet files and `save_to_disk` folders.

    The folder `dict` has the splits "train" and "validation".
    """
    parquet = pytest.importorskip("pyarrow.parquet")
    write_jsonl(folder / "a.jsonl", ROWS)
    write_jsonl(folder / "a.jsonl.gz", ROWS)
    parquet.write_table(write_set(folder / "set", ROWS, 3, CLASSES), folder / "a.parquet")
    write_set(folder / "dict/train", ROWS, 1, CLASSES)
    write_set(folder / "dict/validation", ROWS[:20], 1, CLASSES)
    (folder / "dict/dataset_dict.json").write_text('{"splits": ["train", "validation"]}')


FORMS = ["jsonl:a.jsonl", "jsonl:a.jsonl.gz", "parquet:a.parquet", "datasets:set", "datasets:dict"]


def test_documents_in_every_form(folder):
    write_all(folder)
    texts = [row["text"] for row in ROWS]
    for form in FORMS:
        assert [*documents(form)] == [*documents(f"{form}:text")] == texts, form
        [*parts] = source_parts(CorpusSource(source=f"{form}:text"))
        assert [text for part in parts for text in documents(part.source, part.split)] == texts
    assert len([*documents("jsonl:*.jsonl,a.jsonl.gz:text")]) == 140
    assert [*documents("datasets:dict", "validation")] == texts[:20]
    assert [path.name for path in source_files("datasets:set:text", "train")] == sorted(
        path.name for path in (folder / "set").glob("*.arrow")
    )
    refuses("no split 'test': give one of train, validation", documents, "datasets:dict", "test")
    refuses("has no split 'validation'", documents, "datasets:set", "validation")


def test_pairs_of_languages(folder):
    write_jsonl(folder / "nested.jsonl", PAIRS)
    write_jsonl(folder / "flat.jsonl", [row["translation"] for row in PAIRS])
    write_set(folder / "set", PAIRS)
    expected = [(f"one {n}", f"eins {n}") for n in range(9)]
    for form in ("jsonl:nested.jsonl", "jsonl:flat.jsonl", "datasets:set"):
        assert read_pairs(form, "train", "en", "de") == expected, form
    turned = read_pairs("datasets:set:translation.de,translation.en", "all", "en", "de")
    assert turned == [pair[::-1] for pair in expected]
    halves = HeldOut(0.3, 1, True), HeldOut(0.3, 1, False)
    parts = [read_pairs("jsonl:flat.jsonl", half, "en", "de") for half in halves]
    assert sorted(parts[0] + parts[1]) == expected and parts[1]
    before = source_fingerprint("jsonl:flat.jsonl", "train", ("en", "de"))
    write_jsonl(folder / "flat.jsonl", PAIRS)
    assert source_fingerprint("jsonl:flat.jsonl", "train", ("en", "de")) != before
    names = [f"jsonl:flat.jsonl{fields}" for fields in ("", ":en,de", ":de,en")]
    (folder / "own.py").write_text("def one(split): ...\ndef other(split): ...\n")
    names += [f"python:own.py:{function}" for function in ("one", "other")]
    find_sources(names)
    assert len({source_fingerprint(name, "train", ("en", "de")) for name in names}) == len(names)
    said = "neither fields 'en' and 'fr' nor a field 'translation', only label, n, text: give"
    write_jsonl(folder / "a.jsonl", ROWS)
    refuses(said, read_pairs, "jsonl:a.jsonl", "train", "en", "fr")


def test_tables_with_the_classes_that_a_file_names(folder):
    write_all(folder)
    for form in FORMS:
        names = ("bad", "good") if form[:2] in ("pa", "da") else ("0", "1")
        own = get_task("classify", own=True)
        settings = TableSettings().filled(own, form)
        assert settings.classes == names, form
        task = settings.described(own)
        found = read_examples(task, "train", None, form)
        assert found.first == [row["text"] for row in ROWS]
        assert found.labels.tolist() == [row["label"] for row in ROWS]
        splits = labelled(task).read_splits(("train", "validation"), None, form, settings)
        counts = (70, 20) if form == "datasets:dict" else (63, 7)
        assert tuple(map(len, splits.values())) == counts, form
        if counts == (63, 7):
            splits = labelled(task).read_splits(("train", "all"), None, form, settings)
            assert tuple(map(len, splits.values())) == (63, 70)
    own = get_task("regress", own=True)
    settings = TableSettings(label="n").filled(own, "parquet:a.parquet")
    assert settings.mean == 34.5


def test_words_and_tags_in_lists(folder):
    rows = [{"tokens": ["Ann", "saw", "Rome"], "tags": [1, 0, 0]}] * 3
    classes = {"names": ["O", "B-PER", "I-PER"], "_type": "ClassLabel"}
    write_set(folder / "set", rows, 1, {"tags": {"feature": classes, "_type": "List"}})
    own = get_task("tag", own=True)
    settings = TableSettings().filled(own, "datasets:set")
    assert settings.classes == ("O", "B-PER", "I-PER")
    task = settings.described(own)
    source = task.parse_source("datasets:set", "datasets:DIR")
    words, tags, _ = next(sentences_of(task, source, "train"))
    assert (words, tags) == (["Ann", "saw", "Rome"], ["B-PER", "O", "O"])


TWO = b'{"a": "x", "b": "y"}\n'


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("jsonl:x", b'{"text": "a"}\n{"text": \n', "x, line 2 is no JSON object .*"),
        ("jsonl:x", b'{"text": "a"}\n\n{"text": null}\n', "x, line 3: 'text' is null"),
        ("jsonl:x", b'{"text": "a"}\n{"txt": "b"}\n', "x, line 2 has no field 'text', but txt"),
        ("jsonl:x", TWO, "has no single text field, but a, b: give one as :FIELD"),
        ("parquet:x", b"hello", "x is damaged or no file of parquet: "),
        ("datasets:y", b"", "cannot read y/state.json"),
    ],
)
def test_refusals(source, content, message, folder):
    if source.startswith("parquet"):
        pytest.importorskip("pyarrow")
    (folder / "x").write_bytes(content)
    refuses(message, lambda: [*documents(source)])


def test_fields_of_a_table_are_settings():
    message = "name the fields of a table by --set data.table.text"
    refuses(message, TableSettings().filled, get_task("classify", own=True), "jsonl:x:y")
