import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.text.base import Vocabulary
from macaron_tf.text.words import (
    SENTENCE_END,
    SENTENCE_START,
    CharacterWords,
    WordVocabulary,
    character_ids,
    count_words,
    cut_lines,
    read_words,
    split_sentences,
    split_words,
    with_ends,
)
from tests.harness import refuses


def test_a_word_is_its_bytes_between_its_marks():
    ids = character_ids(tf.constant([["ab", "é"], ["", "<S>"], ["</S>", "abcdefgh"]]), 8).numpy()
    a = ord("a") + 1
    np.testing.assert_array_equal(
        ids,
        [
            [[257, a, a + 1, 258, 0, 0, 0, 0], [257, 0xC3 + 1, 0xA9 + 1, 258, 0, 0, 0, 0]],
            [[0] * 8, [257, 259, 258, 0, 0, 0, 0, 0]],
            [[257, 260, 258, 0, 0, 0, 0, 0], [257, *range(a, a + 6), 258]],
        ],
    )


def test_texts_are_cut_at_white_space_and_punctuation():
    rows = with_ends(split_words(tf.constant(["Don't\u00a0 stop,Zoë_2!", ""]))).to_list()
    cut = [word.decode() for word in rows[0]]
    assert cut == ["<S>", "Don", "'", "t", "stop", ",", "Zoë", "_", "2", "!", "</S>"]
    assert rows[1] == [b"<S>", b"</S>"]


def test_documents_become_sentences_and_their_words_numbers(capsys):
    documents = ["A cat sat. It sat\nalone", "", "A cat ran."]
    words = read_words(documents)
    assert words[1] == []
    assert " ".join(words[0]) == "<S> A cat sat . </S> <S> It sat </S> <S> alone </S>"
    vocabulary = count_words(words, 6)
    assert vocabulary.words == ("<UNK>", "<S>", "</S>", ".", "A", "cat")
    # "It", "alone", "ran" and "sat", which occurs twice, of 11 words and signs.
    said = f"unknown to the vocabulary: {5 / 11:.3%} of the words in the text\n"
    assert capsys.readouterr().out == said
    types, ids = vocabulary.index(words[2])
    assert types == [*vocabulary.words, "ran"]
    np.testing.assert_array_equal(ids, [1, 4, 5, 6, 3, 2])


def test_a_vocabulary_is_saved_and_told_from_another(tmp_path):
    vocabulary = WordVocabulary(("<UNK>", "<S>", "</S>", "é"))
    vocabulary.save(tmp_path / "v")
    loaded = WordVocabulary.load(tmp_path / "v")
    assert loaded == vocabulary and loaded.hash == vocabulary.hash
    assert loaded.hash != WordVocabulary(("<UNK>", "<S>", "</S>", "e")).hash
    (tmp_path / "v" / "words.txt").write_bytes(b"\xff")
    refuses("words.txt: line 1 is not UTF-8", WordVocabulary.load, tmp_path / "v")
    refuses("contain no words", count_words, [[]], 10)


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


def test_lines():
    assert cut_lines(" a b \r\n\n \nc") == ["a b", "c"]
    assert cut_lines("aa bb cc dd", max_length=5) == ["aa bb", "cc dd"]
    assert cut_lines("aaaaaaa bb", max_length=3) == ["aaa", "aaa", "a", "bb"]
    assert "".join(cut_lines("word " * 100_000)).count("word") == 100_000


def test_words_are_numbered_as_they_come_and_read_by_their_characters(tmp_path):
    vocabulary = CharacterWords(6)
    texts = ["Ann's  caf\u00e9\u0301, 3.5\u00a0kg\x0bof <x>", "", "\u4f60\u597d Ann"]
    found = vocabulary.encode_with_offsets(tf.constant(texts))
    expected = split_words(tf.constant(texts)).to_list()
    types = vocabulary.characters
    places = (rows.to_list() for rows in found)
    for text, words, ids, starts, ends in zip(texts, expected, *places, strict=True):
        assert [text[a:b].encode() for a, b in zip(starts, ends, strict=True)] == words
        characters = character_ids(tf.constant(words, tf.string), 6)
        np.testing.assert_array_equal(types[np.array(ids, int)], characters)
    marks = character_ids(tf.constant(["", "<UNK>", SENTENCE_START, SENTENCE_END]), 6)
    np.testing.assert_array_equal(types[:4], marks)
    assert found.ids[0, 0] == found.ids[2, 1] == 4
    assert vocabulary.encode_lines(["b\0 c"]) == vocabulary.encode_lines(["b \ufffd c"])
    located = vocabulary.encode_with_offsets(tf.constant(["b\0 c"]))
    assert located.starts.to_list() == [[0, 1, 3]]
    # A copy starts empty, and so does a saved vocabulary.
    assert vocabulary.empty_copy().encode(tf.constant(["new"])).to_list() == [[4]]
    vocabulary.save(tmp_path)
    again = Vocabulary.load(tmp_path)
    assert again.hash == vocabulary.hash and again.max_characters == 6


def test_words_are_numbered_in_a_graph_too():
    vocabulary = CharacterWords(6)

    @tf.function(autograph=False)
    def characters(first, second):
        rows = [vocabulary.encode(texts) for texts in (first, second)]
        return [vocabulary.characters_of(ids.to_tensor()) for ids in rows]

    sides = ["new words new", ""], ["a new one"]
    for found, texts in zip(characters(*map(tf.constant, sides)), sides, strict=True):
        words = split_words(tf.constant(texts)).to_tensor("")
        np.testing.assert_array_equal(found, character_ids(words, 6))
    assert vocabulary.encode_lines(["again"]) == [[4]]  # words seen in a graph are not added
