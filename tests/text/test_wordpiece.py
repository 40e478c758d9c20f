"""Tests of WordPiece vocabularies: BERT's ids, training, errors and graph mode."""
# ruff: noqa: RUF001 -- look-alike characters are to be told apart

import gzip

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.special import Special
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.text.wordpiece import SPECIAL_PIECES as SPECIAL
from tests.harness import refuses
from tests.toys.hard_texts import hard_texts

# Hard texts without the special tokens, which the tokenizers package reads, and words of about the
# greatest length.
STRANGE = [
    *(text for text in hard_texts(150) if "[" not in text), "\u3402 \U000e0001 − × € °",
    "x" * 100 + " y", "x" * 101 + " y",
    "é" * 60 + " z " + "é" * 101 + " " + "ж" * 60 + " " + "ж" * 101,
    "a" * 100 + "-" + "b" * 101 + "." + "c" * 102 + "語" + "d" * 100,
]  # fmt: skip


@pytest.fixture(scope="module")
def real_lines(shared_data) -> list[str]:
    lines = []
    texts = shared_data / "text"
    for path in [*sorted(texts.glob("*.gz")), *sorted(texts.glob("novels/*.gz"))[:3]]:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines += file.read().split("\n")[:600]
    return lines


@pytest.fixture(scope="module")
def small(real_lines) -> WordPieceVocabulary:
    return WordPieceVocabulary.train(real_lines, 1000)


@pytest.mark.parametrize("lower_case", [True, False])
def test_ids_are_those_of_hugging_face(shared_data, real_lines, lower_case):
    tokenizers = pytest.importorskip("tokenizers")
    path = str(shared_data / "vocabularies" / "bert-base-uncased-vocab.txt")
    theirs = tokenizers.BertWordPieceTokenizer(path, lowercase=lower_case)
    ours = WordPieceVocabulary.from_file(path, lower_case=lower_case)
    lines = [*real_lines, *STRANGE]
    expected = [e.ids for e in theirs.encode_batch(lines, add_special_tokens=False)]
    found = ours.encode_lines(lines)
    assert sum(map(len, found)) > 50_000
    different = [line for line, a, b in zip(lines, found, expected, strict=True) if a != b]
    assert different == []


def test_special_ids_of_bert(bert):
    assert bert.special == Special(0, 100, 101, 102, 103)
    assert (bert.pieces, bert.size) == (30522, 30528)


def test_odd_lines(small):
    assert small.encode_lines(["the \ud800 man"]) == small.encode_lines(["the  man"])
    broken = small.encode(tf.constant([b"the \xff man"])).to_list()
    assert broken == small.encode_lines(["the  man"])
    cased = WordPieceVocabulary(small.words, lower_case=False)
    assert cased.hash != small.hash
    assert cased.encode_lines(["THE"]) != small.encode_lines(["THE"]) == small.encode_lines(["the"])
    length = 10_000_000
    assert small.encode_rows(["the " * (length // 4)]).lengths.tolist() == [length // 4]
    assert small.encode_lines(["x" * length]) == [[small.special.unk]]


def test_a_word_is_cut_into_its_longest_pieces_or_unknown():
    vocabulary = WordPieceVocabulary([*SPECIAL, "play", "##ing", "##i", "p", "##s", "."])
    lines = ["Playing plays.", "play!", "PLAYÍ"]
    assert vocabulary.encode_lines(lines) == [[5, 6, 5, 9, 10], [5, 1], [5, 7]]
    rows = [[2, 5, 6, 5, 9, 10, 3, 0], [4, 15, -1, 99]]
    assert vocabulary.decode_lines(rows) == ["playing plays .", ""]
    starts = vocabulary.word_starts()
    assert starts.shape == (16,) and starts.dtype == bool
    assert np.flatnonzero(~starts).tolist() == [6, 7, 9]


def test_training_is_exact_and_pays_off(real_lines, small):
    assert small.pieces == 1000 and small.words[:5] == SPECIAL
    ids = small.encode_rows(real_lines).ids
    assert np.mean(ids == small.special.unk) < 1e-4
    # Merges pay off: there are far fewer pieces than characters, and most pieces occur.
    assert len(ids) < 0.45 * sum(len(line.replace(" ", "")) for line in real_lines)
    assert len(np.unique(ids)) > 850


def test_rare_characters_are_left_out():
    lines = ["aab abb ab"] * 50 + ["ab☃ ab"]
    vocabulary = WordPieceVocabulary.train(lines, 10, max_characters=2)
    assert vocabulary.words[5:9] == ("a", "b", "##a", "##b")
    assert vocabulary.encode_lines(["ab☃"]) == [[vocabulary.special.unk]]
    refuses("no text to train a vocabulary on", WordPieceVocabulary.train, ["", "\x00"], 100)


def test_more_than_a_thousand_characters_become_pieces_where_the_text_has_them():
    """Without `max_characters`, the pieces cover 99.95% of the text."""
    lines = ["".join(map(chr, range(n, n + 29))) for n in range(0xA000, 0xA000 + 1160, 29)]  # Yi
    vocabulary = WordPieceVocabulary.train([*lines, "ab ab"] * 2, 2500)
    assert np.mean(vocabulary.encode_rows(lines).ids == vocabulary.special.unk) < 0.001
    remedy = "at least 2325, or lower data.vocabulary.max_characters"
    refuses(f"too small, because .*{remedy}", WordPieceVocabulary.train, lines * 2, 2000)


def test_of_a_piece_that_stands_twice_the_last_id_counts_and_the_others_stay(tmp_path):
    """A duplicate token gets the id of its last occurrence, as in Hugging Face's loader.

    The ids of other tokens do not change.
    """
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, "a", "b", "a", "##c", ""]) + "\n")
    vocabulary = WordPieceVocabulary.from_file(path)
    assert vocabulary.encode_lines(["a bc ac"]) == [[7, 6, 8, 7, 8]]
    assert vocabulary.encode(tf.constant(["a bc ac"])).to_list() == [[7, 6, 8, 7, 8]]
    assert vocabulary.decode_lines([[5, 7, 6, 9]]) == ["a b"] and vocabulary.pieces == 10
    vocabulary.save(tmp_path)
    assert WordPieceVocabulary.load(tmp_path).words == vocabulary.words


def test_a_file_that_is_no_vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    refuses(r"cannot read .*vocab\.txt", WordPieceVocabulary.from_file, path)
    for words, message in (
        (SPECIAL[:-1], r"cannot read .*vocab\.txt: the vocabulary has no token \[MASK\]"),
        ([], r"no token \[PAD\]"),
    ):
        path.write_text("\n".join(words))
        refuses(message, WordPieceVocabulary.from_file, path)
    path.write_bytes("\n".join([*SPECIAL, "a", ""]).encode() + b"\xff\n")
    refuses(r"cannot read .*vocab\.txt: line 7 is not UTF-8", WordPieceVocabulary.from_file, path)
    path.write_bytes("\r\n".join([*SPECIAL, "a"]).encode())
    assert WordPieceVocabulary.from_file(path).words[-1] == "a"


def test_unused_ids_do_not_change_how_spaces_split_words():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "a", "##b"]
    lines = ["the  cat", " a\t the ", "  ", "ab  cat"]
    expected = [[5, 6], [7, 5], [], [7, 8, 6]]
    # A repeated piece has the last of its ids, so that the first id is unused.
    for extra in ([], [""], ["x y"], [" "], ["\x00"]):
        assert WordPieceVocabulary([*words, *extra]).encode_lines(lines) == expected
