"""BPE of characters: GPT's pieces, the graph, spaces behind words, saving, refusing."""

import json

import pytest
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.text.byte_pairs import CharacterPairVocabulary
from macaron_tf.text.loading import load_encoder_vocabulary
from macaron_tf.text.words import SpelledStream, spelled, spelled_in_graph
from tests.data.test_byte_pairs import ODD

UNITS = ["h", "e", "l", "o", "h</w>", "e</w>", "l</w>", "o</w>", ",</w>", "a</w>", "he", "ll",
         "hell", "hello</w>", "aa</w>", "a", "aa"]  # fmt: skip
MERGES = ["h e", "l l", "he ll", "hell o</w>", "a a", "a a</w>"]
HARD = [
    "Hello, WORLD! It's 1,234.56 (or $7)...", "Café naïve Ünder İstanbul ΣΑΣ", "東京 tower 🙂 end",
    "supercalifragilistic" * 20, "a-b_c/d", "tab\tand\nline", "½ ² ﬁ ①", "ß ẞ", "<unk> </w> x</w>",
]  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary():
    return CharacterPairVocabulary(UNITS, MERGES)


def test_words_are_cut_and_come_back(vocabulary):
    lines = ["Hello, hello", "hell ohe", "", "aaa aaaaa", "hxé"]
    rows = vocabulary.encode_lines(lines)
    names = [[vocabulary.units[i - 5] if i > 4 else i for i in row] for row in rows]
    assert names == [
        ["hello</w>", ",</w>", "hello</w>"],
        ["he", "l", "l</w>", "o", "h", "e</w>"],
        [],
        ["aa", "a</w>", "aa", "aa", "a</w>"],
        ["h", 1, "e</w>"],  # no "x", and no accents
    ]
    assert tf.function(vocabulary.encode)(tf.constant(lines)).to_list() == rows
    assert vocabulary.decode_lines(rows) == ["hello , hello", "hell ohe", "", "aaa aaaaa", "he"]
    assert vocabulary.encode(tf.constant([], tf.string)).to_list() == []
    assert vocabulary.encode(tf.constant(["", " "])).to_list() == [[], []]


def test_published_ids_equal_the_tokenizers_package_s(shared_data):
    tokenizers = pytest.importorskip("tokenizers")
    folder = shared_data / "vocabularies" / "gpt1"
    numbers = json.loads((folder / "encoder_bpe_40000.json").read_text())
    lines = (folder / "vocab_40000.bpe").read_text().splitlines()
    merges = [line for line in lines if line and not line.startswith("#version")]
    model = tokenizers.models.BPE(
        numbers,
        [tuple(merge.split(" ")) for merge in merges],
        unk_token="<unk>",
        end_of_word_suffix="</w>",
    )
    theirs = tokenizers.Tokenizer(model)
    theirs.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    names = sorted(numbers.keys() - {"<unk>"}, key=numbers.get)
    ours = CharacterPairVocabulary(names, merges)
    ids = {1: numbers["<unk>"], **{n: numbers[name] for n, name in enumerate(names, 5)}}
    for line in [*HARD, *ODD]:
        [row] = ours.encode_lines([line])
        assert [ids[number] for number in row] == theirs.encode(line).ids, line


def test_a_space_stands_before_what_follows_and_none_at_its_end(vocabulary):
    spellings = vocabulary.spellings()
    hello, comma, he = (UNITS.index(name) + 5 for name in ("hello</w>", ",</w>", "he"))
    for ids, text in (
        ([hello, comma], " hello ,"),
        ([hello, he], " hello he"),
        ([he, 0, 0], " he"),
        ([0, 3], ""),
    ):
        assert spelled(spellings, ids, True) == text
        [found] = spelled_in_graph(spellings, tf.constant([ids]), True).numpy()
        assert found.decode() == text
        stream = SpelledStream(spellings, True)
        assert "".join([*map(stream.add, ids), stream.end()]) == text


def test_it_is_saved_and_loaded(vocabulary, tmp_path):
    vocabulary.save(tmp_path)
    loaded = load_encoder_vocabulary(tmp_path)
    assert isinstance(loaded, CharacterPairVocabulary) and loaded.hash == vocabulary.hash
    assert loaded.encode_lines(["hello"]) == vocabulary.encode_lines(["hello"])


def test_what_it_cannot_do_is_refused(vocabulary):
    with pytest.raises(UserError, match="where words end, not where they begin"):
        vocabulary.word_starts()
    with pytest.raises(UserError, match="twice"):
        CharacterPairVocabulary(["a", "a"], [])
    with pytest.raises(UserError, match="merges 'a b'"):
        CharacterPairVocabulary(["a", "b"], ["a b"])
