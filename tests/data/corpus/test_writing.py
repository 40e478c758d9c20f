"""Tests of corpus preparation: rows, held-out text, kills, concurrency, damage and languages."""

import json
import os
import shutil

import numpy as np
import pytest

from macaron_tf.data.corpus import writing
from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.data.rows import Store
from macaron_tf.data.sources import homeassistant
from macaron_tf.io.files import only_writer
from macaron_tf.text.wordpiece import WordPieceVocabulary
from tests.harness import refuses
from tests.toys.corpora import (
    BOTH,
    contents,
    each_row,
    halves_of,
    made_with_kills,
    numbers_of,
    rows_of,
)
from tests.toys.marks import thorough


def is_finished(folder) -> bool:
    index = folder / "corpus.json"
    return index.exists() and json.loads(index.read_text())["finished"]


def test_every_token_once_and_one_row_in_ten_held_out(make, vocabulary, out):
    corpus = make()
    # 60 ids per document and 14 per row give 5 rows.
    assert corpus.rows("validation") == 6 and corpus.rows("train") == 54
    train = rows_of(corpus, "train")
    assert train.shape == (54, 16) and train.dtype == np.int32
    assert sorted(numbers_of(corpus, rows_of(corpus))) == list(range(600))
    assert all(len({number // 50 for number in numbers_of(corpus, row)}) == 1 for row in train)
    assert corpus.config.sequence_length == 16 and corpus.vocabulary.hash == vocabulary.hash
    # A shard ends with the document that reaches 12 rows: 15 rows less the held-out ones.
    assert [shard.rows for shard in corpus.shards["train"]] == [13, 14, 13, 14]
    assert sorted(contents(out)) == [
        "corpus.json",
        *(f"train-0000{n}.rows" for n in range(4)),
        "validation-00000.rows",
        "vocabulary.json",
        "vocabulary.txt",
    ]


@pytest.mark.parametrize("pairs", ["next_sentence", "sentence_order"])
def test_pairs_of_segments(make, pairs):
    corpus = make(pairs=pairs, sequence_length=32, validation_every=4)
    documents, labels = {"train": set(), "validation": set()}, []
    for split, found in documents.items():
        for row in each_row(corpus, split):
            first, second = np.flatnonzero(row["token_ids"] == 3)
            segments = [0] * (first + 1) + [1] * (second - first) + [0] * (31 - second)
            assert row["segment_ids"].tolist() == segments
            a, b = halves_of(corpus, row["token_ids"])
            one_document = len({number // 50 for number in a + b}) == 1
            assert one_document or pairs == "next_sentence"
            if a and b:  # a half may be a full stop alone
                in_order = one_document if pairs == "next_sentence" else a[-1] < b[0]
                assert in_order == (row["pair_label"] == 0)
            labels.append(row["pair_label"])
            found.update(number // 50 for number in a + b)
    assert documents == {"train": {1, 3, 5, 6, 7, 9, 10, 11}, "validation": {0, 2, 4, 8}}
    assert 0.25 < np.mean(labels) < 0.75


def test_a_last_document_that_is_alone(make, texts, tmp_path):
    # Each shard holds one document; of the twelve, numbers 0, 2 and 11 are held out.
    corpus = make(pairs="sentence_order", validation_every=11, rows_per_shard=1)
    assert len(corpus.shards["train"]) == 9
    held_out = numbers_of(corpus, rows_of(corpus, "validation"))
    assert {number // 50 for number in held_out} == {0, 2, 11}
    # The last training document has one row, which goes into the last shard: the nine others have 5
    # rows each.
    (tmp_path / "z.txt").write_text("701 702 703. 704 705 706.\n707 708 709.")
    sources = (f"text:{texts}/a/*.txt,{tmp_path}/z.txt",)
    corpus = make(tmp_path / "more", pairs="next_sentence", sources=sources, rows_per_shard=15)
    assert {701, 709} <= set(numbers_of(corpus, rows_of(corpus, "train")))
    assert len(corpus.shards["train"]) == 3


@pytest.mark.parametrize(
    ("weights", "settings"),
    [
        (None, {"pairs": "next_sentence"}),
        ((1.0, 1.0), {"pairs": "next_sentence"}),
        ((1.0, 1.0), {"packing": "full_text"}),
    ],
    ids=["once", "again", "full_text"],
)
def test_no_text_of_a_held_out_document_is_trained_on(make, texts, vocabulary, weights, settings):
    corpus = make(weights=weights, validation_every=4, sequence_length=48, **settings)
    train = [ids.tolist() for ids in rows_of(corpus, "train")]
    trained = {tuple(row[i : i + 8]) for row in train for i in range(41)}
    held_out = {number // 50 for number in numbers_of(corpus, rows_of(corpus, "validation"))}
    found = set()
    for number, path in enumerate(sorted(texts.rglob("*.txt"))):
        ids = vocabulary.encode_rows([path.read_text()]).ids.tolist()
        if {tuple(ids[i : i + 8]) for i in range(len(ids) - 7)} & trained:
            found.add(number)
    assert found == set(range(15 if weights else 12)) - held_out
    # Documents 0, 2, 4, 8 and, of 15, also 12 are held out; a mixture counts documents in the order
    # of first occurrence.
    assert len(held_out) == (5 if weights else 4)
    if weights:
        times = np.bincount(numbers_of(corpus, rows_of(corpus, "train")), minlength=750)
        assert times[600:].max() > 3  # the second source was read several times
    if "pairs" in settings:
        labels = [row["pair_label"] for row in each_row(corpus, "validation")]
        assert 0.3 < np.mean(labels) < 0.8


@pytest.mark.parametrize(
    ("pairs", "least", "message", "sides"),
    [
        ("next_sentence", 4, "need 2 or more documents with text", ({1, 3}, {0, 2})),
        ("sentence_order", 2, "need 1 or more documents with text", ({1}, {0})),
    ],
)
def test_pairs_need_documents_on_either_side(make, texts, tmp_path, pairs, least, message, sides):
    def made(count):
        sources = ",".join(f"{texts}/a/0{number}.txt" for number in range(count))
        return make(tmp_path / str(count), pairs=pairs, sources=(f"text:{sources}",))

    for count in range(1, least):
        refuses(message, made, count)
    corpus = made(least)
    found = ({n // 50 for n in numbers_of(corpus, rows_of(corpus, split))} for split in BOTH)
    assert tuple(found) == sides


def test_weights_repeat_but_hold_out(make):
    corpus = make(weights=(1.0, 1.0))
    train, held_out = (numbers_of(corpus, rows_of(corpus, split)) for split in BOTH)
    assert set(train) | set(held_out) == set(range(750))
    assert not set(train) & set(held_out)
    times = np.bincount(train, minlength=750)
    assert times[600:].max() >= 2 and times[:600].max() == 1
    assert corpus.rows("train") + corpus.rows("validation") > 75  # repeated rows count


def test_sources_that_cannot_be_read(make, tmp_path):
    """Sources without documents, without text or in another language than declared raise errors.

    Errors that readers raise are tested in tests/data/sources.
    """
    (tmp_path / "blank.txt").write_text("\x01\u200b")
    (tmp_path / "blank.tsv").write_text("1\t \n")
    for number, (source, language, message) in enumerate(
        (
            ("tsv:x.tsv", None, "unknown source 'tsv:x.tsv' of documents"),
            (f"text:{tmp_path}/blank.txt", None, "the sources gave no rows"),
            (f"tsv:{tmp_path}/blank.tsv", ("a", "b"), "contains no pair with text on both sides"),
            ("homeassistant:de", "fr", "is not in 'fr'"),
        )
    ):
        sources = (CorpusSource(source, language=language),)
        refuses(message, make, tmp_path / str(number), sources=sources)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pairs": "next_sentence", "rows_per_shard": 6},
        {"pairs": "sentence_order", "rows_per_shard": 6},
        {"packing": "full_sentences"},
        {"weights": (1.0, 2.0), "rows_per_shard": 40},
        {"weights": (1.0, 2.0), "rows_per_shard": 25, "pairs": "next_sentence"},
        {"languages": 2, "batch_alpha": 0.7, "packing": "full_text"},
    ],
    ids=["text", "pairs", "order", "sentences", "mixture", "mixture of pairs", "languages apart"],
)
def test_a_kill_at_any_moment_leaves_the_same_bytes(
    make, out, tmp_path, monkeypatch, settings, sources
):
    settings = {**settings}
    operations = 3
    if count := settings.pop("languages", 0):  # each language has a file
        settings["sources"], operations = sources[:count], operations + count
    expected = make(tmp_path / "whole", **settings)
    whole = contents(tmp_path / "whole")

    def check():
        assert not is_finished(out) or contents(out).items() >= whole.items()

    corpus, kills = made_with_kills(monkeypatch, make, out, check, operations, **settings)
    assert kills >= 3
    assert contents(out) == whole
    assert corpus.fingerprint == expected.fingerprint


def test_going_on_does_not_tokenize_again(make, vocabulary, out, monkeypatch):
    written, save = [], Store.save

    def counted(store):
        save(store)
        written.append(store)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "save", counted)
    with pytest.raises(KeyboardInterrupt):
        make()
    refuses("is not finished: prepare it again", PretrainingCorpus.open, out)
    lines = []
    encode_rows = vocabulary.encode_rows
    monkeypatch.setattr(vocabulary, "encode_rows", lambda x: lines.extend(x) or encode_rows(x))
    make()
    assert lines[0].startswith("300 ") and len(lines) == 60  # documents 6 to 11


def test_another_folder_is_asked_for(make, texts, vocabulary):
    make()
    for message, settings in {
        "has data.sequence_length=16, not 32": {"sequence_length": 32},
        "has data.seed=0, not 1": {"seed": 1},
        "has data.sources=": {"sources": (f"text-lines:{texts}/a/*.txt",)},
        "vocabulary mismatch between the corpus in": {
            "vocabulary": WordPieceVocabulary(vocabulary.words[:-1])
        },
    }.items():
        refuses(message, make, **settings)


def test_files_may_be_written_again_but_not_changed(make, texts, out, tmp_path, monkeypatch):
    folder = tmp_path / "a"
    shutil.copytree(texts / "a", folder)

    def again():
        return make(sources=(f"text:{folder}/*.txt",))

    made = again()
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    with monkeypatch.context() as patched:
        patched.setattr(WordPieceVocabulary, "encode_rows", None)
        assert again().fingerprint == made.fingerprint
    file, text = folder / "01.txt", (folder / "01.txt").read_text()
    file.write_text(text.replace("50 51", "51 50"))
    assert len(file.read_text()) == len(text)
    refuses("source files of the corpus in .* have changed", again)
    file.write_text(text)
    again()
    (folder / "more.txt").write_text("1 2 3")
    refuses("source files of the corpus in .* have changed", again)


def test_a_file_that_grows_is_refused(make, texts, out, tmp_path, monkeypatch):
    shutil.copytree(texts / "a", tmp_path / "a")
    write_block = writing._write_block

    def growing(*arguments):
        with open(tmp_path / "a" / "11.txt", "a") as file:
            file.write("\n1 2 3.")
        return write_block(*arguments)

    monkeypatch.setattr(writing, "_write_block", growing)
    message = "source files of the corpus in .* have changed: restore"
    refuses(message, make, sources=(f"text:{tmp_path}/a/*.txt",))
    assert not is_finished(out)


def test_damage_is_named(make, out):
    refuses("cannot read .*corpus.json", PretrainingCorpus.open, out)
    make()
    whole = contents(out)
    shard = whole["train-00001.rows"]
    flipped = bytes([*shard[:40], shard[40] ^ 1, *shard[41:]])
    index = json.loads(whole["corpus.json"])
    index["settings"]["vocabulary"] = "0" * 64
    for name, content, message in (
        ("train-00001.rows", None, r"train-00001\.rows is missing or damaged"),
        ("train-00001.rows", shard[:-1], "missing or damaged"),
        ("train-00001.rows", flipped, "missing or damaged"),
        ("validation-00000.rows", b"", r"validation-00000\.rows is missing or damaged"),
        ("corpus.json", whole["corpus.json"][:-9], r"corpus\.json is damaged"),
        ("corpus.json", b"{}", r"corpus\.json is damaged"),
        (
            "corpus.json",
            json.dumps({**index, "format": 99}).encode(),
            "has format 99, not 7: remove",
        ),
        ("corpus.json", json.dumps({**index, "settings": {}}).encode(), r"corpus\.json is damaged"),
        ("corpus.json", json.dumps(index).encode(), "vocabulary mismatch"),
        ("vocabulary.txt", None, r"cannot read .*vocabulary\.txt"),
    ):
        if content is None:
            (out / name).unlink()
        else:
            (out / name).write_bytes(content)
        refuses(message, PretrainingCorpus.open, out)
        (out / name).write_bytes(whole[name])
    # Sizes do not reveal a flipped bit; the record's checksum does when it is read.
    (out / "train-00001.rows").write_bytes(flipped)
    with pytest.raises(Exception, match=r"train-00001\.rows is missing or damaged"):
        rows_of(PretrainingCorpus.open(out, verify=False), "train")


def test_a_second_process_waits_for_its_turn(make, out, monkeypatch):
    with only_writer(out, "preparing a corpus"):
        refuses(f"process is preparing a corpus in {out}: wait", make)
    assert contents(out) == {}
    corpus = make()
    with only_writer(out, "preparing a corpus"):  # a finished corpus is only read
        assert make().fingerprint == corpus.fingerprint

    # The first writer ends while the second waits for the lock.
    earlier, asked = writing._earlier, []

    def first_unfinished(*given) -> Store:
        asked.append(given)
        return earlier(*given) if len(asked) > 1 else Store(out)

    monkeypatch.setattr(writing, "_earlier", first_unfinished)
    monkeypatch.setattr(writing, "_write", None)
    assert make().fingerprint == corpus.fingerprint


@pytest.mark.parametrize("packing", ["doc_text", "doc_sentences", "full_text", "full_sentences"])
def test_rows_of_several_languages(make, sources, packing):
    corpus = make(sources=sources, packing=packing)
    assert corpus.config.languages == ("a", "b")
    assert " in a, b, " in corpus.summary()
    translations, found = [], []
    for row in each_row(corpus):
        ids, languages = row["token_ids"], row["language_ids"]
        numbers = numbers_of(corpus, ids)
        if row["segment_ids"].any():
            boundary = int(np.flatnonzero(row["segment_ids"])[0])
            assert ids[boundary - 1] == 3 and (ids == 3).sum() == 2
            assert languages.tolist() == [1] * boundary + [0] * (16 - boundary)
            assert row["position_ids"].tolist() == [*range(boundary), *range(16 - boundary)]
            translations.append(tuple(numbers))
        else:
            assert set(languages) == {int(numbers[0] >= 600)}
            assert len({number >= 600 for number in numbers}) == 1
            assert row["position_ids"].tolist() == list(range(16))
            found += numbers
    assert sorted(translations) == [(n, n + 1, n + 600) for n in range(40) if n != 7]
    assert sorted(found) == list(range(750))


@pytest.mark.parametrize("alpha", [0.0, *thorough(0.5)])
def test_languages_come_again_but_hold_out(make, sources, out, tmp_path, monkeypatch, alpha):
    """Languages that are sampled more than once repeat training rows, but no validation rows.

    Interrupted preparations write the same files.
    """
    settings = {"sources": sources, "language_alpha": alpha, "rows_per_shard": 40}
    corpus = make(tmp_path / "whole", **settings)
    rows = {split: {tuple(row) for row in rows_of(corpus, split).tolist()} for split in BOTH}
    assert rows["validation"] and not rows["train"] & rows["validation"]
    assert corpus.rows("train") > len(rows["train"])  # some rows are repeated
    _, kills = made_with_kills(monkeypatch, make, out, **settings)
    assert kills >= 2
    assert contents(out) == contents(tmp_path / "whole")
    assert PretrainingCorpus.open(out).config == corpus.config


def test_an_embedded_corpus_in_one_language(make, monkeypatch):
    documents = {"train": ["1 2 3\n4", "5"], "validation": ["6"], "test": ["7"]}
    monkeypatch.setattr(homeassistant, "fetch_homeassistant", lambda: "wheel")
    monkeypatch.setattr(homeassistant, "wheel_documents", lambda wheel, language: documents)
    sources = (CorpusSource("homeassistant:de", language="de"),)
    one, again = (make(sources=sources, sequence_length=8, validation_every=2) for _ in range(2))
    assert (one.rows("train"), one.rows("validation")) == (1, 1)
    assert again.fingerprint == one.fingerprint
