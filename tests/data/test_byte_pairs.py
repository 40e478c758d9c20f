"""Byte-level BPE: GPT-2's pieces, both paths, word starts, training, saving, refusing."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.text.byte_pair_ops import byte_alphabet
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.loading import load_encoder_vocabulary

ODD = [
    "", " ", "  ", "a", " a", "  a", "a ", "a  b", "a\n\n b\t\tc  \n", "don't I'LL we'll 'tis it's",
    "x" * 1000, "aaa aaaa aaaaa", "日本語のテキスト。 東京", "naïve café e\u0301", "👩‍👩‍👧 🏳️‍🌈",
    "\u00a0\u00a0x", "a\u2003\u2003b", "١٢٣ ①②", "\ufeffhi", "…" * 50, "\u200bzero", " \n x",
    "\r\n", "<|endoftext|> [MASK]", "word,word;(x) $5.00", "\x85x", "\u180ex", "\x1c\x1dz",
    "x \u3000 y",
]  # fmt: skip


@pytest.fixture(scope="module")
def lines(toy_pairs) -> list[str]:
    return [pair[1] for pair in toy_pairs]


@pytest.fixture(scope="module")
def vocabulary(lines) -> BytePairVocabulary:
    return BytePairVocabulary.train(lines, 300)


@pytest.fixture(scope="module")
def gpt2(shared_data) -> BytePairVocabulary:
    folder = shared_data / "vocabularies" / "gpt2"
    return BytePairVocabulary.from_files(folder / "encoder.json", folder / "vocab.bpe")


@pytest.fixture(scope="module")
def real_lines(tfds_dir) -> list[str]:
    """2,000 lines of novels and captions in two languages."""
    from macaron_tf.data.sources.readers import read_pairs

    pairs = read_pairs("tfds:multi30k", "validation", "en", "de", tfds_dir)
    return [line for pair in pairs for line in pair]


def test_gpt2s_ids(gpt2):
    assert (gpt2.pieces, gpt2.size) == (50_262, 50_264)
    # From its release: "Hello world" is 15496 995; ids of ours begin after the special ones.
    rows = gpt2.encode_lines(["Hello world", " Hello  world", "\n\n"])
    assert [[i - 5 for i in row] for row in rows] == [[15496, 995], [18435, 220, 995], [628]]


def test_real_text_equals_the_tokenizers_package_and_comes_back(gpt2, real_lines, shared_data):
    tokenizers = pytest.importorskip("tokenizers")
    folder = str(shared_data / "vocabularies" / "gpt2")
    model = tokenizers.models.BPE.from_file(f"{folder}/encoder.json", f"{folder}/vocab.bpe")
    theirs = tokenizers.Tokenizer(model)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = [*real_lines, *ODD]
    expected = [[i + 5 for i in found.ids] for found in theirs.encode_batch(text)]
    in_graph = tf.function(gpt2.encode)(tf.constant(text)).to_list()
    assert in_graph == expected
    assert gpt2.encode_lines(text) == expected
    assert gpt2.decode_lines(expected) == text


def test_every_character_is_cut_alike_in_the_graph_and_outside(vocabulary):
    """A sample: each 97th of Unicode's characters, between letters, digits, spaces and signs."""
    characters = [chr(c) for c in range(1, 0x110000, 97) if not 0xD800 <= c < 0xE000]
    text = [f"a{c}b 1{c}{c} x{c}  {c}-{c}" for c in characters] + ODD
    rows = vocabulary.encode_lines(text)
    assert vocabulary.encode(tf.constant(text)).to_list() == rows
    assert vocabulary.decode_lines(rows[:-1]) == [
        line.removeprefix(" ") if line[:1] == " " else line for line in text[:-1]
    ]


def test_without_the_tokenizers_package(vocabulary, monkeypatch):
    again = BytePairVocabulary(vocabulary.units, vocabulary.merges, add_prefix_space=True)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert again.encode_lines(ODD) == vocabulary.encode_lines(ODD)
    with pytest.raises(UserError, match="pip install tokenizers"):
        BytePairVocabulary.train(["a"], 270)


def test_what_is_no_text_is_mended(vocabulary):
    raw = [b"a\xff\xfeb", b"a\x00b", "a\U0010ffffb".encode()]
    rows = vocabulary.encode(tf.constant(raw)).to_list()
    assert vocabulary.decode_lines(rows) == ["a\ufffd\ufffdb", "a\ufffdb", "ab"]
    assert "\ufffd" in vocabulary.decode_lines(vocabulary.encode_lines(["a\ud800b"]))[0]


def test_nothing_at_all(vocabulary):
    assert vocabulary.encode(tf.constant([], tf.string)).to_list() == []
    assert vocabulary.encode(tf.constant(["", ""])).to_list() == [[], []]
    assert vocabulary.encode_lines([]) == [] and vocabulary.decode_lines([]) == []


def test_special_ids(vocabulary):
    assert vocabulary.special_ids == (0, 1, 2, 3, 4)
    assert (vocabulary.pieces, vocabulary.size) == (300, 304)
    assert not set(vocabulary.encode_lines(["[MASK] [CLS] <pad> </s>"])[0]) & {0, 1, 2, 3, 4}
    assert vocabulary.decode_lines([[2, *vocabulary.encode_lines(["ein"])[0], 3, 0, 303]]) == [
        "ein"
    ]


def test_a_word_brings_its_space_along(lines, vocabulary):
    starts = vocabulary.word_starts()
    assert starts.shape == (304,) and starts[:5].all()
    for line in lines[:20]:
        ids = np.array(vocabulary.encode_lines([line])[0])
        assert starts[ids].sum() == len(line.split()) and starts[ids[0]]
    plain = BytePairVocabulary(vocabulary.units, vocabulary.merges)
    assert plain.encode_lines(["ein mann"])[0] != vocabulary.encode_lines(["ein mann"])[0]
    assert plain.encode_lines([" ein mann"]) == vocabulary.encode_lines(["ein mann"])


def test_case_is_folded_alike(vocabulary):
    options = {"lower_case": True, "add_prefix_space": True}
    folded = BytePairVocabulary(vocabulary.units, vocabulary.merges, **options)
    text = ["Ein MANN läuft", "ΣΑΣ İ ẞ"]
    assert folded.encode(tf.constant(text)).to_list() == folded.encode_lines(text)
    assert folded.encode_lines(text[:1]) == vocabulary.encode_lines(["ein mann läuft"])


def test_same_lines_give_the_same_vocabulary(lines, vocabulary):
    for _ in range(3):
        assert BytePairVocabulary.train(lines, 300).hash == vocabulary.hash


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_are_found_in_the_text(vocabulary, prefix):
    vocabulary = BytePairVocabulary(vocabulary.units, vocabulary.merges, add_prefix_space=prefix)
    text = ["ein mann läuft", " der  Hund,\tgroß ", "", "日本 x", "a\x00\U0010ffffb ein"]
    ids, starts, ends = vocabulary.encode_with_offsets(tf.constant(text))
    assert ids.to_list() == vocabulary.encode_lines(text)
    for line, row, first, last in zip(
        text, ids.to_list(), starts.to_list(), ends.to_list(), strict=True
    ):
        found = [line[a:b] for a, b in zip(first, last, strict=True)]
        pieces = [piece.strip() for piece in vocabulary.decode_lines([[i] for i in row])]
        for part, piece in zip(found, pieces, strict=True):
            # A part of a character's bytes, or a space that was given, lies over the character.
            assert "\ufffd" in piece or piece in ("", part.strip())
    places = zip(starts[3].numpy(), ends[3].numpy(), strict=True)
    assert {"日", "本", "x"} == {text[3][a:b].strip() for a, b in places} - {""}


def test_save_and_load(vocabulary, tmp_path):
    vocabulary.save(tmp_path)
    loaded = load_encoder_vocabulary(tmp_path)
    assert isinstance(loaded, BytePairVocabulary)
    assert loaded.hash == vocabulary.hash and loaded.add_prefix_space
    assert loaded.encode_lines(ODD) == vocabulary.encode_lines(ODD)
    record = json.loads((tmp_path / "vocabulary.json").read_text())
    record["settings"]["lower_case"] = True
    (tmp_path / "vocabulary.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="vocabulary mismatch"):
        load_encoder_vocabulary(tmp_path)
    (tmp_path / "vocabulary.bpe").write_text("[]")
    with pytest.raises(UserError, match=r"\.bpe: it is no file of a vocabulary of kind byte_bpe"):
        load_encoder_vocabulary(tmp_path)


SERVED = """
import sys
import tensorflow as tf
import tensorflow_text
served = tf.saved_model.load(sys.argv[1])
found = served.encode(tf.constant(["ein mann läuft", "", "日本 x"]))
print(found.to_list())
"""


def test_a_saved_model_cuts_text_without_our_code(vocabulary, tmp_path):
    module = tf.Module()
    module.resources = vocabulary.trackables()
    module.encode = tf.function(
        vocabulary.encode, input_signature=[tf.TensorSpec((None,), tf.string)]
    )
    tf.saved_model.save(module, str(tmp_path))
    found = subprocess.run(
        [sys.executable, "-c", SERVED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PATH": ""},
    )
    expected = vocabulary.encode_lines(["ein mann läuft", "", "日本 x"])
    assert json.loads(found.stdout.splitlines()[-1]) == expected


def test_errors_are_sentences(lines, vocabulary, tmp_path):
    with pytest.raises(UserError, match=r"too large for this text: it gives at most \d+"):
        BytePairVocabulary.train(lines, 5000)
    with pytest.raises(UserError, match="too small: the bytes alone need 261"):
        BytePairVocabulary.train(lines, 260)
    with pytest.raises(UserError, match="no text to train a vocabulary on"):
        BytePairVocabulary.train([" "], 300)
    units = list(byte_alphabet())
    with pytest.raises(UserError, match="holds the piece 'a' twice"):
        BytePairVocabulary([*units, "a"], [])
    with pytest.raises(UserError, match="no piece for the byte 255"):
        BytePairVocabulary(units[:-1], [])
    with pytest.raises(UserError, match="merges 'a b', and not all"):
        BytePairVocabulary(units, ["a b"])
    (tmp_path / "encoder.json").write_text("{")
    with pytest.raises(UserError, match=r"encoder\.json is no JSON"):
        BytePairVocabulary.from_files(tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    (tmp_path / "encoder.json").write_text('{"a": "b"}')
    with pytest.raises(UserError, match="no object of pieces and their ids"):
        BytePairVocabulary.from_files(tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    (tmp_path / "encoder.json").write_text('{"a": 0}')
    (tmp_path / "vocab.bpe").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"vocab\.bpe is not UTF-8"):
        BytePairVocabulary.from_files(tmp_path / "encoder.json", tmp_path / "vocab.bpe")
