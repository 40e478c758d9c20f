"""Tests of byte-pair encoding: GPT-2's and GPT's tokens, training, and errors."""

import itertools
import json
import pickle

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.text import PairVocabulary, PieceVocabulary
from macaron_tf.text.byte_pairs import (
    BYTE_ALPHABET,
    BytePairVocabulary,
    CharacterPairVocabulary,
    MosesPairVocabulary,
)
from tests.harness import refuses
from tests.toys.hard_texts import hard_texts
from tests.toys.vocabularies import MERGES, UNITS

# Further texts with the white space and special tokens of GPT-2.
ODD = [
    *hard_texts(), "I'LL we'll 'tis it's", "\u00a0\u00a0x", "a\u2003\u2003b", "\u180ex", " \n x",
    "x \u3000 y", "<|endoftext|> [MASK]",
]  # fmt: skip


def published(pieces_file, merges_file) -> tuple[dict[str, int], list[str]]:
    """Returns piece ids and merges from the files of OpenAI's releases."""
    merges = merges_file.read_text().splitlines()
    merges = [line for line in merges if line and not line.startswith("#version")]
    return json.loads(pieces_file.read_text()), merges


@pytest.fixture(scope="module")
def lines(toy_pairs) -> list[str]:
    return [pair[1] for pair in toy_pairs]


@pytest.fixture(scope="module")
def vocabulary(lines) -> BytePairVocabulary:
    return BytePairVocabulary.train(lines, 300)


@pytest.fixture(scope="module")
def gpt2(shared_data) -> BytePairVocabulary:
    folder = shared_data / "vocabularies" / "gpt2"
    numbers, merges = published(folder / "encoder.json", folder / "vocab.bpe")
    return BytePairVocabulary(sorted(numbers, key=numbers.get), merges)


def test_real_text_equals_the_tokenizers_package_and_comes_back(gpt2, real_pairs, shared_data):
    tokenizers = pytest.importorskip("tokenizers")
    folder = str(shared_data / "vocabularies" / "gpt2")
    model = tokenizers.models.BPE.from_file(f"{folder}/encoder.json", f"{folder}/vocab.bpe")
    theirs = tokenizers.Tokenizer(model)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = [*itertools.chain(*real_pairs), *gpt2.normalized_lines(ODD)]
    expected = [[i + 5 for i in found.ids] for found in theirs.encode_batch(text)]
    in_graph = tf.function(gpt2.encode)(tf.constant(text)).to_list()
    assert in_graph == expected
    assert gpt2.encode_lines(text) == expected
    assert gpt2.decode_lines(expected) == text


@pytest.mark.thorough
def test_every_character_is_cut_alike_in_the_graph_and_outside(vocabulary):
    """A graph and Python split texts around every 97th Unicode character in the same way."""
    characters = [chr(c) for c in range(1, 0x110000, 97) if not 0xD800 <= c < 0xE000]
    text = [f"a{c}b 1{c}{c} x{c}  {c}-{c}" for c in characters]
    rows = vocabulary.encode_lines(text)
    assert vocabulary.encode(tf.constant(text)).to_list() == rows
    assert vocabulary.decode_lines(rows) == text


def test_invalid_text_is_repaired(vocabulary):
    raw = [b"a\xff\xfeb", b"a\x00b", "a\U0010ffffb".encode()]
    rows = vocabulary.encode(tf.constant(raw)).to_list()
    assert vocabulary.decode_lines(rows) == ["a\ufffd\ufffdb", "a\ufffdb", "ab"]
    assert "\ufffd" in vocabulary.decode_lines(vocabulary.encode_lines(["a\ud800b"]))[0]


def test_a_word_brings_its_space_along(lines, vocabulary):
    assert vocabulary.special.ids == (0, 1, 2, 3, 4)
    assert (vocabulary.pieces, vocabulary.size) == (300, 304)
    starts = vocabulary.word_starts()
    assert starts.shape == (304,) and starts[:5].all()
    for line in lines[:20]:
        ids = np.array(vocabulary.encode_lines([line])[0])
        assert starts[ids].sum() == len(line.split()) and starts[ids[0]]
    plain = BytePairVocabulary(vocabulary.units, vocabulary.merges)
    assert plain.encode_lines(["ein mann"])[0] != vocabulary.encode_lines(["ein mann"])[0]
    assert plain.encode_lines([" ein mann"]) == vocabulary.encode_lines(["ein mann"])


@pytest.fixture(scope="module")
def characters() -> CharacterPairVocabulary:
    return CharacterPairVocabulary(UNITS, MERGES)


def test_words_are_cut_and_come_back(characters):
    lines = ["Hello, hello", "hell ohe", "", "aaa aaaaa", "hxé"]
    rows = characters.encode_lines(lines)
    names = [[characters.units[i - 5] if i > 4 else i for i in row] for row in rows]
    assert names == [
        ["hello</w>", ",</w>", "hello</w>"],
        ["he", "l", "l</w>", "o", "h", "e</w>"],
        [],
        ["aa", "a</w>", "aa", "aa", "a</w>"],
        ["h", 1, "e</w>"],  # no "x", and no accents
    ]
    assert tf.function(characters.encode)(tf.constant(lines)).to_list() == rows
    assert characters.decode_lines(rows) == ["hello , hello", "hell ohe", "", "aaa aaaaa", "he"]
    assert characters.encode(tf.constant(["", " "])).to_list() == [[], []]
    refuses("does not mark their starts", characters.word_starts)
    message, texts = "cannot map its pieces to positions", tf.constant(["hello"])
    refuses(message, characters.encode_with_offsets, texts)
    refuses("the merge 'a b'", CharacterPairVocabulary, ["a", "b"], ["a b"])


def test_published_ids_equal_the_tokenizers_package_s(shared_data):
    tokenizers = pytest.importorskip("tokenizers")
    folder = shared_data / "vocabularies" / "gpt1"
    places = folder / "encoder_bpe_40000.json", folder / "vocab_40000.bpe"
    numbers, merges = published(*places)
    options = {"unk_token": "<unk>", "end_of_word_suffix": "</w>"}
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*map(str, places), **options))
    theirs.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    names = sorted(numbers.keys() - {"<unk>"}, key=numbers.get)
    ours = CharacterPairVocabulary(names, merges)
    ids = {1: numbers["<unk>"], **{n: numbers[name] for n, name in enumerate(names, 5)}}
    for line in ODD:
        [row] = ours.encode_lines([line])
        assert [ids[number] for number in row] == theirs.encode(line).ids, line


def test_a_space_stands_before_what_follows_and_none_at_its_end(characters):
    detokenizer = characters.detokenizer
    hello, comma, he = (UNITS.index(name) + 5 for name in ("hello</w>", ",</w>", "he"))
    spelt = {(hello, comma): " hello ,", (hello, he): " hello he", (he, 0, 0): " he", (0, 3): ""}
    for ids, text in spelt.items():
        assert detokenizer(ids) == text
        [found] = detokenizer.in_graph(tf.constant([ids])).numpy()
        assert found.decode() == text
        stream = detokenizer.stream()
        assert "".join([*map(stream.add, ids), stream.end()]) == text


def test_a_pair_of_vocabularies_decodes_as_its_target():
    target = BytePairVocabulary(BYTE_ALPHABET, [], add_prefix_space=False)
    pair = PairVocabulary(BytePairVocabulary(BYTE_ALPHABET, []), target)
    rows = tf.ragged.constant(target.encode_lines([" a"]), tf.int32)
    assert pair.decode(rows).numpy().tolist() == target.decode(rows).numpy().tolist() == [b" a"]
    assert pair.decode_lines(rows.to_list()) == [" a"]


# Pieces and merges of an XLM vocabulary. Some merged strings are not pieces.
XLM = (
    ["hello</w>", "we</w>", "he", "w", "o</w>", ".</w>", "'s</w>", "d"],
    ["h e", "l l", "he ll", "hell o</w>", "w e</w>", "' s</w>"],
)


def test_xlm(tmp_path):
    xlm = MosesPairVocabulary(*XLM, languages=("en", "de"))
    hello, we, *_, stop = range(5, 11)
    lines = ["Hélló we.", "hell\u200bo  he", ""]
    # "he" is a piece within a word, but neither "he" nor its letters are pieces at a word's end.
    rows = [[hello, we, stop], [hello, 1, 1], []]
    assert xlm.encode_lines(lines) == rows
    assert xlm.encode(tf.constant(lines[:1])).to_list() == rows[:1]
    assert xlm.decode_lines(rows[:1]) == ["hello we ."]
    kept = MosesPairVocabulary(*XLM, lower_case=False)
    assert kept.encode_lines(["Hello"]) != kept.encode_lines(["hello"])
    xlm.save(tmp_path / "saved")
    again = PieceVocabulary.load(tmp_path / "saved")
    assert again.hash == xlm.hash and again.languages == ("en", "de")
    assert again.encode_lines(lines) == xlm.encode_lines(lines)
    assert pickle.loads(pickle.dumps(xlm)).encode_lines(lines) == xlm.encode_lines(lines)
    english, german = (xlm.encode_lines(["hello's"], code) for code in xlm.languages)
    assert english != german
    pair = PairVocabulary(xlm, xlm, languages=("de", "en"))
    assert [pair.encode_lines(["hello's"], code) for code in xlm.languages] == [english, german]
    refuses("splits words in Python, which a SavedModel cannot contain", xlm.trackables)
    refuses("the language 'zh' by a tool of its own", xlm.encode_lines, ["x"], "zh")


def test_a_merge_that_stands_twice_has_its_later_rank():
    units = ["a", "b", "c</w>", "ab", "bc</w>"]
    xlm = MosesPairVocabulary(units, ["a b", "b c</w>", "a b"])
    assert xlm.merges == ("b c</w>", "a b") and xlm.encode_lines(["abc"]) == [[5, 9]]
