"""Tests of SentencePiece vocabularies: special ids, reproducible files, decoding and errors."""
# ruff: noqa: RUF001 -- a fraction slash and a full-width letter are themselves

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.special import Special
from macaron_tf.text import NormalizationConfig, SentencePieceVocabulary
from tests.harness import refuses
from tests.toys.hard_texts import HARDEST
from tests.toys.vocabularies import train_bytes, train_joint, train_sentencepiece

LOWER = NormalizationConfig(lower_case=True)


@pytest.fixture(scope="module")
def lines(toy_pairs) -> list[str]:
    return [pair[0] for pair in toy_pairs]


@pytest.fixture(scope="module")
def encoders(lines) -> SentencePieceVocabulary:
    return SentencePieceVocabulary.train(lines, 60, normalization=LOWER)


def test_special_ids_and_padded_size(toy_vocabulary, encoders):
    assert toy_vocabulary.special.ids == (0, 1, 2, 3) and toy_vocabulary.special.mask is None
    assert encoders.special.ids == (0, 1, 2, 3, 4)
    assert (encoders.special.begin, encoders.special.end, encoders.special.mask) == (2, 3, 4)
    assert [encoders.processor.id_to_piece(i) for i in (2, 3, 4)] == ["[CLS]", "[SEP]", "[MASK]"]
    for vocabulary in (toy_vocabulary, encoders):
        assert (vocabulary.pieces, vocabulary.size) == (60, 64)
    starts = encoders.word_starts()
    assert starts.shape == (64,) and starts.dtype == bool and starts[:5].all()
    for line in ("the man runs slowly", "a dog"):
        ids = np.array(encoders.encode_lines([line])[0])
        assert starts[ids].sum() == len(line.split()) and starts[ids[0]]


@pytest.mark.parametrize("size", [57, 58])
def test_the_tokenizer_outlives_a_seed(toy_pairs, size):
    # A model of its own, because TensorFlow shares the resource of equal models in use.
    vocabulary = train_joint(toy_pairs, size)
    lines = tf.constant([pair[0] for pair in toy_pairs[:3]])
    before = vocabulary.encode(lines).to_list()
    for seed, encode in ((3, vocabulary.encode), (4, tf.function(vocabulary.encode))):
        keras.utils.set_random_seed(seed)
        assert encode(lines).to_list() == before


def test_real_lines_in_the_graph_and_in_sentencepiece(real_pairs, real_vocabulary):
    processor, rng = real_vocabulary.processor, np.random.default_rng(0)
    for side, language in enumerate(("en", "de")):
        lines = [pair[side] for pair in real_pairs]
        rows = real_vocabulary.encode_lines(lines, language)
        assert real_vocabulary.encode(tf.constant(lines), language).to_list() == rows
        # Text as SentencePiece joins it, also for pieces in any order.
        rows += rng.integers(4, real_vocabulary.pieces, (500, 12)).tolist()
        expected = processor.decode(rows)
        assert real_vocabulary.decode_lines(rows) == expected
        decoded = real_vocabulary.decode(tf.ragged.constant(rows, dtype=tf.int32)).numpy()
        assert [line.decode() for line in decoded] == expected
    lines = [" ".join(pair[0].lower().split()) for pair in real_pairs[:200]]
    lines = [line for line in lines if '"' not in line and "(" not in line]
    assert real_vocabulary.decode_lines(real_vocabulary.encode_lines(lines)) == lines


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_bytes_of_unknown_characters_are_decoded_as_sentencepiece_does(lines, model_type):
    vocabulary = SentencePieceVocabulary(train_bytes(lines, 290, model_type=model_type))
    model = vocabulary.processor
    texts = ["5 € today", "日本 🙂\u200c ½", "the man"]
    rows = vocabulary.encode_lines(texts)
    assert vocabulary.special.unk not in np.concatenate(rows)
    # Bytes in an order that forms no text: broken characters, surrogates, overlong and too large
    # codes.
    some = bytes.fromhex("E282ACC3A9F09F9982EDA0E080F490C0FF41000A")
    some = [model.piece_to_id(f"<0x{byte:02X}>") for byte in some]
    rng = np.random.default_rng(0)
    rows += [rng.choice(some, length).tolist() for length in range(1, 8) for _ in range(100)]
    rows += [row for row in rng.integers(4, model.vocab_size(), (300, 9)).tolist()
             if model.id_to_piece(row[0]) != "<0x20>"]  # fmt: skip
    expected = model.decode(rows)
    assert expected[:3] == ["5 € today", "日本 🙂 1⁄2", "the man"]
    assert "\ufffd\ufffd" in expected[-500]
    assert vocabulary.decode_lines(rows) == expected
    in_graph = tf.function(vocabulary.decode)(tf.ragged.constant(rows, dtype=tf.int32)).numpy()
    assert [line.decode() for line in in_graph] == expected
    stream = vocabulary.detokenizer.stream()
    euro = [model.piece_to_id(f"<0x{byte}>") for byte in ("E2", "82", "AC", "E2", "82")]
    assert [stream.add(number) for number in euro] == ["", "", "€", "", ""]
    assert stream.end() == "\ufffd\ufffd"
    located = vocabulary.encode_with_offsets(tf.constant(["5 €"]))
    assert located.starts.to_list()[0][-3:] == [2] * 3 and located.ends.to_list()[0][-3:] == [3] * 3


def test_a_rule_chooses_what_sentencepiece_does_to_characters():
    text = "می\u200cروم m² ½ Ａ"
    kept = {
        "nmt_nfkc": "می روم m2 1⁄2 A",
        "nfkc": "می\u200cروم m2 1⁄2 A",
        "nfkc_cf": "می\u200cروم m2 1⁄2 a",
        "identity": text,
    }
    made = {}
    for rule, expected in kept.items():
        options = {"size": 30, "character_coverage": 1.0, "normalization_rule": rule}
        made[rule] = vocabulary = SentencePieceVocabulary.train([text] * 9, **options)
        assert vocabulary.normalization_rule == rule
        [row] = vocabulary.encode_lines([text])
        assert vocabulary.encode(tf.constant([text])).to_list() == [row]
        assert vocabulary.decode_lines([row]) == [expected]
    plain = SentencePieceVocabulary.train([text] * 9, 30, character_coverage=1.0)
    assert plain.hash == made["nmt_nfkc"].hash


def test_equally_likely_cuts_are_the_same_in_and_outside_a_graph():
    runs = [mark * count for mark in "-!wd" for count in range(1, 12)]
    for model_type, size in (("unigram", 24), ("bpe", 40)):
        vocabulary = SentencePieceVocabulary.train(runs * 3, size, model_type=model_type)
        texts = [*runs, "-!-!--wdwd", *HARDEST]
        assert vocabulary.encode(tf.constant(texts)).to_list() == vocabulary.encode_lines(texts)


@pytest.mark.parametrize("options", [{}, {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}])
def test_a_model_keeps_its_special_ids(lines, options):
    model = train_sentencepiece(lines, vocab_size=50, model_type="bpe", **options)
    if options:
        refuses("lacks one of UNK, BOS and EOS", SentencePieceVocabulary, model)
    else:  # SentencePiece's defaults; padding follows the pieces
        special = SentencePieceVocabulary(model).special
        assert special == Special(pad=50, unk=0, begin=1, end=2)


def test_an_error_of_the_source_is_not_the_end_of_the_text(lines):
    """SentencePiece takes an exception of its iterator for the end of the text."""

    def broken(count):
        yield from lines[:count]
        raise OSError("the disk is gone")

    for count in (0, len(lines)):
        with pytest.raises(OSError, match="the disk is gone"):
            SentencePieceVocabulary.train(broken(count), 60)


def test_text_behind_a_null_character_is_read(lines):
    proto = SentencePieceVocabulary.train(lines, 60, normalization=LOWER).proto
    vocabulary = SentencePieceVocabulary(proto, normalization=LOWER, verbatim=True)
    whole, [part] = vocabulary.encode_lines(["A\0 dog"])[0], vocabulary.encode_lines(["dog"])
    assert whole[-len(part) :] == part
