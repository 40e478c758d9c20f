"""Sentences of lines, lines of documents, documents of ids."""

import itertools

import numpy as np
import pytest

from macaron_tf.data.corpus.documents import tokenized_documents
from macaron_tf.errors import UserError
from macaron_tf.text.sentences import cut_lines, split_sentences
from macaron_tf.text.wordpiece import WordPieceVocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def vocabulary():
    return WordPieceVocabulary([*SPECIAL, "one", "two", "three", ".", "x"])


def test_sentences():
    lines = ["He came. She saw! Did it?  Yes", "", "   ", "no stop", "\ud800 a."]
    found = split_sentences(lines)
    assert found[:4] == [["He came.", "She saw!", "Did it?", "Yes"], [], [], ["no stop"]]
    assert split_sentences([]) == []


def test_sentences_of_blingfire():
    pytest.importorskip("blingfire")
    lines = ['Mr. Smith paid 3.5 pounds. "Why?" he said.', "", "\x00 a\nb."]
    found = split_sentences(lines, "blingfire")
    assert found[0][0] == "Mr. Smith paid 3.5 pounds." and found[1] == [] and len(found) == 3


def test_no_such_splitter():
    with pytest.raises(UserError, match="no sentence splitter 'axe'"):
        split_sentences(["a"], "axe")


def test_lines():
    assert cut_lines(" a b \r\n\n \nc") == ["a b", "c"]
    assert cut_lines("aa bb cc dd", longest=5) == ["aa bb", "cc dd"]
    assert cut_lines("aaaaaaa bb", longest=3) == ["aaa", "aaa", "a", "bb"]
    assert "".join(cut_lines("word " * 100_000)).count("word") == 100_000


def lists(document):
    return [document.ids[a:b].tolist() for a, b in itertools.pairwise(document.offsets)]


@pytest.mark.parametrize("group", [1, 20, 1 << 20])
def test_documents_of_ids(vocabulary, monkeypatch, group):
    monkeypatch.setattr("macaron_tf.data.corpus.documents._GROUP", group)
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


def test_no_document(vocabulary):
    assert list(tokenized_documents([], vocabulary, None)) == []
    (document,) = tokenized_documents([""], vocabulary, "tensorflow_text")
    assert lists(document) == []
