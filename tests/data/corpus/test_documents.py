"""Tests of corpus documents: mixing order, sampling shares, sentences and token ids."""

import collections

import numpy as np
import pytest

from macaron_tf.data.corpus import documents as corpus_documents
from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.documents import (
    corpus_mixture,
    language_weights,
    mixed_documents,
    open_source,
    source_parts,
    source_readers,
    tokenized_documents,
)
from macaron_tf.data.sources import readers
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.toys.corpora import lists


def reader(name: str, count: int):
    return lambda: (f"{name}{number}" for number in range(count))


def test_without_weights_every_document_comes_once():
    mixed = list(mixed_documents([reader("a", 30), reader("b", 3), reader("c", 1)], None, 0))
    texts = [document.text for document in mixed]
    assert sorted(texts) == sorted([*(f"a{n}" for n in range(30)), "b0", "b1", "b2", "c0"])
    assert not any(document.repeated for document in mixed)
    for name in "ab":  # each source keeps its own order
        own = [int(text[1:]) for text in texts if text[0] == name]
        assert own == sorted(own)
    assert texts[:3] != ["a0", "a1", "a2"] or texts.index("b0") < 20


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_are_shares_until_every_source_was_read(seed):
    counts = {"a": 20, "b": 1000}
    mixed = list(mixed_documents([reader(n, c) for n, c in counts.items()], [1.0, 4.0], seed))
    drawn = collections.Counter(document.text[0] for document in mixed)
    assert drawn["b"] == 1000  # the mixture ends with the last source
    assert abs(drawn["a"] - 250) < 60
    times = collections.Counter(document.text for document in mixed)
    assert {times[f"b{n}"] for n in range(1000)} == {1}
    assert max(times.values()) - min(times[f"a{n}"] for n in range(20)) <= 1
    seen = set()
    for document in mixed:
        assert document.text[0] == "ab"[document.source]
        assert document.repeated == (document.text in seen)
        seen.add(document.text)


def test_one_source_keeps_its_order():
    for weights in (None, [2.0]):
        mixed = list(mixed_documents([reader("a", 5)], weights, seed=4))
        assert [document.text for document in mixed] == ["a0", "a1", "a2", "a3", "a4"]

    def order(seed):
        readers = [reader("a", 50), reader("b", 50)]
        return [document.text for document in mixed_documents(readers, [1, 1], seed)]

    assert order(3) == order(3) != order(4)


@pytest.mark.parametrize("weights", [None, [1.0, 4.0]])
def test_a_document_that_is_held_out_stays_so(weights):
    readers = [reader("a", 20), reader("b", 300)]
    mixed = list(mixed_documents(readers, weights, 0, hold_out_every=50))
    sides = collections.defaultdict(set)
    for document in mixed:
        sides[document.text].add(document.held_out)
    assert len(sides) == 320 and all(len(found) == 1 for found in sides.values())
    first = list(sides)  # in the order of first occurrence
    held_out = [number for number, text in enumerate(first) if True in sides[text]]
    assert held_out == [0, 2, 50, 100, 150, 200, 250, 300]
    plain = mixed_documents(readers, weights, 0)
    assert [d.text for d in plain] == [d.text for d in mixed]
    assert not any(d.held_out for d in mixed_documents(readers, weights, 0))


LANGUAGES = (
    CorpusSource("text:a", language="en"),
    CorpusSource("text:b", language="en"),
    CorpusSource("text:c", language="ne"),
    CorpusSource("tsv:d", language=("en", "ne")),
)
SIZES = [(50, 6_000), (900, 3_000), (100, 400), (600, 600)]


def shares(alpha: float) -> dict[tuple[str, ...], float]:
    """Returns the sampling share of each language, q_i = p_i^alpha / Σ p_j^alpha.

    p_i is the share of language i among all lines.
    """
    lines = {("en",): 9_000, ("ne",): 400, ("en", "ne"): 600}
    powers = {language: (count / 10_000) ** alpha for language, count in lines.items()}
    return {language: power / sum(powers.values()) for language, power in powers.items()}


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_shares_of_lines_in_expectation(alpha):
    weights = np.array(language_weights(LANGUAGES, SIZES, alpha))
    lines = weights * [lines / documents for documents, lines in SIZES]
    lines /= lines.sum()
    found = collections.defaultdict(float)
    for source, share in zip(LANGUAGES, lines, strict=True):
        found[source.languages] += share
    assert found == pytest.approx(shares(alpha))
    assert lines[0] / lines[1] == pytest.approx(6_000 / 3_000)  # unchanged within a language


def test_documents_of_a_corpus(tmp_path, monkeypatch):
    (tmp_path / "en.txt").write_text("\n\n".join(f"one {n}\ntwo\n" for n in range(400)))
    (tmp_path / "ne.txt").write_text("\n\n".join(f"ek {n}" for n in range(20)))
    (tmp_path / "both.tsv").write_text("\n".join(f"one\tek {n}" for n in range(100)) + "\n \tx")
    config = CorpusConfig(
        (
            CorpusSource(f"text-paragraphs:{tmp_path}/en.txt", language="en"),
            CorpusSource(f"text-paragraphs:{tmp_path}/ne.txt", language="ne"),
            CorpusSource(f"tsv:{tmp_path}/both.tsv", language=("en", "ne")),
        ),
        language_alpha=0.0,
    )
    drawn = list(corpus_mixture(config, source_readers(config)))
    lines = collections.Counter()
    for document in drawn:
        assert isinstance(document.text, tuple) == (document.source == 2)
        lines[document.source] += 1 if document.source else 2
    assert {d.text for d in drawn if d.source == 2} == {("one", f"ek {n}") for n in range(100)}
    assert sum(not document.repeated for document in drawn) == 520  # each at least once
    assert all(abs(lines[source] / lines.total() - 1 / 3) < 0.06 for source in range(3))
    assert drawn == list(corpus_mixture(config, source_readers(config)))
    read, real = [], readers.read_pairs
    monkeypatch.setattr(readers, "read_pairs", lambda *a: read.append(a) or real(*a))
    list(corpus_mixture(config, source_readers(config)))
    assert len(read) == 1  # later epochs read the pairs from memory
    few = list(corpus_mixture(config, source_readers(config, max_documents=3)))
    assert sum(not document.repeated for document in few) == 9


def texts_of(source: CorpusSource, tfds=None) -> list:
    """Splits a source into parts, and returns the texts of the parts in order."""
    return [text for part in source_parts(source, tfds) for text in open_source(part, tfds)]


def test_parts_make_up_a_source(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\n")
    for name in ("y.train", "x.train", "odd[1].train"):
        (tmp_path / name).write_text(f"of {name}\n\n \nand more\n")
    for kind in ("text", "text-paragraphs", "text-lines"):
        source = CorpusSource(f"{kind}:{tmp_path}/y.{{split}},{tmp_path}/x.*")
        assert len(source_parts(source)) == 2 and texts_of(source) == list(open_source(source))
    whole = CorpusSource(f"text:{tmp_path}/*.train")  # a file's name is a glob pattern
    assert source_parts(whole) == [whole] and len(texts_of(whole)) == 3
    pairs = CorpusSource(f"tsv:{tmp_path}/pairs.tsv", language=("en", "de"))
    assert len(source_parts(pairs)) == 1 and texts_of(pairs) == [("a", "b"), ("c", "d")]


def test_parts_of_a_tfds_split(tfds, monkeypatch):
    monkeypatch.setattr(corpus_documents, "_RECORDS_PER_PART", 200)
    source = CorpusSource("tfds:wikipedia/20230601.en")
    assert texts_of(source, tfds) == list(open_source(source, tfds))
    assert len(source_parts(source, tfds)) == 4
    sliced = CorpusSource("tfds:wikipedia/20230601.en", split="train[:100]")
    assert source_parts(sliced, tfds) == [sliced]


@pytest.fixture(scope="module")
def vocabulary():
    return WordPieceVocabulary([*SPECIAL_PIECES, "one", "two", "three", ".", "x"])


@pytest.mark.parametrize("group", [1, 20, 1 << 20])
def test_documents_of_ids(vocabulary, monkeypatch, group):
    monkeypatch.setattr("macaron_tf.data.corpus.documents._GROUP_CHARACTERS", group)
    texts = ["one two. three.\n\ntwo", "\x00\n\u200b", "three"]
    lines = [lists(d) for d in tokenized_documents(iter(texts), vocabulary, None)]
    assert lines == [[[5, 6, 8, 7, 8], [6]], [], [[7]]]
    sentences = [lists(d) for d in tokenized_documents(texts, vocabulary, "tensorflow_text")]
    assert sentences == [[[5, 6, 8], [7, 8], [6]], [], [[7]]]


def test_a_large_document_is_tokenized_in_parts(vocabulary, monkeypatch):
    sizes = []
    encode_rows = vocabulary.encode_rows

    def counted(lines):
        sizes.append(sum(map(len, lines)))
        return encode_rows(lines)

    monkeypatch.setattr(vocabulary, "encode_rows", counted)
    (document,) = tokenized_documents(["one two " * 1_250_000], vocabulary, None)
    assert len(document.ids) == 2_500_000 and np.all(document.ids[::2] == 5)
    assert max(sizes) < 1.2 * (1 << 20)
    assert list(tokenized_documents([], vocabulary, None)) == []
    (document,) = tokenized_documents([""], vocabulary, "tensorflow_text")
    assert lists(document) == []
