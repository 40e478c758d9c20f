"""Documents of TFDS sets and text files; what is missing, empty or damaged is named."""

import gzip

import pytest

from macaron_tf.data.sources.readers import count_documents, documents, source_files
from macaron_tf.errors import UserError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b.txt").write_text("\ufeffOne.\nTwo.\n\n\nThree.\n", encoding="utf-8")
    with gzip.open(tmp_path / "a.txt.gz", "wb") as file:
        file.write("Vier\u2028hier.\r\n".encode())
    return tmp_path


def test_forms_of_text(folder):
    def read(kind, glob="*"):
        return list(documents(f"{kind}:{folder}/{glob}"))

    assert read("text") == ["Vier\u2028hier.", "One.\nTwo.\n\n\nThree."]
    assert read("text-paragraphs") == ["Vier\u2028hier.", "One.\nTwo.", "Three."]
    assert read("text-lines") == ["Vier\u2028hier.", "One.", "Two.", "Three."]
    both = f"text:{folder}/b*,{folder}/*.gz,{folder}/b.txt"
    assert [text[:4] for text in documents(both)] == ["One.", "Vier"]
    assert count_documents(both) == 2
    assert count_documents(f"text-lines:{folder}/*") is None
    assert [path.name for path in source_files(both, "train")] == ["b.txt", "a.txt.gz"]


def test_split_in_a_name(folder):
    (folder / "train.txt").write_text("Learn.")
    source = f"text:{folder}/{{split}}.txt"
    assert list(documents(source, "train")) == ["Learn."]
    with pytest.raises(UserError, match="no file matches .*test.txt"):
        documents(source, "test")
    with pytest.raises(UserError, match="has no split 'test'"):
        documents(f"text:{folder}/b.txt", "test")


def test_real_sets(tfds_dir):
    articles = documents("tfds:wikipedia/20230601.en", "train[:5]", tfds_dir)
    texts = list(articles)
    assert len(texts) == 5 and all(len(text) > 200 for text in texts)
    assert count_documents("tfds:wikipedia/20230601.en", "train", tfds_dir) == 677
    book = next(documents("tfds:pg19", "validation", tfds_dir))
    assert len(book) > 100_000
    assert source_files("tfds:pg19", "train", data_dir=tfds_dir)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("novels", "unknown source 'novels' of documents: give tfds"),
        ("text:", "unknown source 'text:' of documents"),
        ("homeassistant:", "unknown source 'homeassistant:' of documents"),
        ("tsv:pairs.tsv", "holds translation pairs: name its two languages, as in .'tsv:pairs"),
        ("tfds:nothing_of_the_kind", "no TFDS set 'nothing_of_the_kind'"),
        ("tfds:glue/mrpc", "has no field 'text'.*sentence1, sentence2"),
        ("tfds:glue", "several configurations"),
    ],
)
def test_no_such_source(tfds_dir, source, message):
    with pytest.raises(UserError, match=message):
        documents(source, "train", tfds_dir)


def test_no_such_split(tfds_dir):
    with pytest.raises(UserError, match="no split 'night': it has train"):
        documents("tfds:pg19", "night", tfds_dir)


@pytest.mark.parametrize("content", [b"", b"\n \n", "\ufeff".encode()])
@pytest.mark.parametrize("kind", ["text", "text-paragraphs", "text-lines"])
def test_an_empty_file(tmp_path, kind, content):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.txt holds no text"):
        list(documents(f"{kind}:{tmp_path}/a.txt"))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"no file matches .*/\*\.txt"):
        documents(f"text:{tmp_path}/*.txt")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="names folders only"):
        documents(f"text:{tmp_path}/f*")
    (tmp_path / "latin.txt").write_bytes("ok\ngr\xfcn".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.txt, line 2: not UTF-8 \(byte 0xfc\)"):
        list(documents(f"text:{tmp_path}/latin.txt"))
    whole = gzip.compress(b"some text " * 1000 + bytes(range(128)) * 50)
    middle = bytearray(whole)
    middle[20] ^= 0xFF
    for damaged in (whole[:-20], b"no gzip", bytes(middle), whole[:-6] + b"\0" * 6):
        (tmp_path / "a.gz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"a\.gz is not a whole gzip file"):
            list(documents(f"text:{tmp_path}/a.gz"))


def test_a_very_long_line(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 2_000_000)
    assert [len(text) for text in documents(f"text-lines:{tmp_path}/a.txt")] == [10_000_000]
