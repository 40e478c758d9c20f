"""SentencePiece for encoders: special ids, the same bytes again, both paths, refusing."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.text.loading import (
    SentencePieceEncoderVocabulary,
    WordPieceVocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.vocabulary import Vocabulary

STRANGE = ["", "   ", "a\u2028b", "a\x00b", "日本語", "\ufeff", "…" * 50, "[MASK] [SEP]", "THE Dog"]


@pytest.fixture(scope="module")
def lines(toy_pairs) -> list[str]:
    return [pair[0] for pair in toy_pairs]


@pytest.fixture(scope="module")
def vocabulary(lines) -> SentencePieceEncoderVocabulary:
    return SentencePieceEncoderVocabulary.train(
        lines, 60, normalization=NormalizationConfig(lower_case=True)
    )


def test_special_ids_and_padded_size(vocabulary):
    assert vocabulary.special_ids == (0, 1, 2, 3, 4)
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.mask_id) == (0, 1, 4)
    assert (vocabulary.cls_id, vocabulary.sep_id) == (2, 3)
    assert [vocabulary.processor.id_to_piece(i) for i in (2, 3, 4)] == ["[CLS]", "[SEP]", "[MASK]"]
    assert (vocabulary.pieces, vocabulary.size) == (60, 64)


def test_no_text_forges_a_special_id(vocabulary):
    ids = vocabulary.encode_lines(["[MASK] [CLS] <pad> [SEP]"])[0]
    assert not set(ids) & {0, 2, 3, 4}


def test_same_lines_give_the_same_vocabulary(lines, vocabulary):
    normalization = NormalizationConfig(lower_case=True)
    again = SentencePieceEncoderVocabulary.train(lines, 60, normalization=normalization)
    assert again.proto == vocabulary.proto and again.hash == vocabulary.hash
    assert SentencePieceEncoderVocabulary(vocabulary.proto).hash != vocabulary.hash


def test_how_rows_are_made_is_kept(vocabulary, tmp_path):
    settings = {"fold_accents": True, "pair_separators": 2, "cls_last": True}
    made = SentencePieceEncoderVocabulary(vocabulary.proto, **settings)
    made.save(tmp_path)
    loaded = load_encoder_vocabulary(tmp_path)
    assert loaded.hash == made.hash != SentencePieceEncoderVocabulary(vocabulary.proto).hash
    assert {name: getattr(loaded, name) for name in settings} == settings


def test_in_graph_equals_outside_and_comes_back(lines, vocabulary):
    text = [*lines, *STRANGE, "x" * 100_000]
    rows = vocabulary.encode_lines(text)
    assert tf.function(vocabulary.encode)(tf.constant(text)).to_list() == rows
    assert vocabulary.encode_lines([]) == [] and vocabulary.decode_lines([]) == []
    assert vocabulary.decode_lines([[2, *row, 3, 0, 4, 99, -1] for row in rows[:20]]) == [
        " ".join(line.split()) for line in lines[:20]
    ]


def test_the_tokenizer_outlives_a_seed(lines, vocabulary):
    before = vocabulary.encode(tf.constant(lines[:3])).to_list()
    keras.utils.set_random_seed(3)
    assert vocabulary.encode(tf.constant(lines[:3])).to_list() == before
    keras.utils.set_random_seed(4)
    assert tf.function(vocabulary.encode)(tf.constant(lines[:3])).to_list() == before


def test_word_starts(vocabulary):
    starts = vocabulary.word_starts()
    assert starts.shape == (64,) and starts.dtype == bool and starts[:5].all()
    for line in ("the man runs slowly", "a dog"):
        ids = np.array(vocabulary.encode_lines([line])[0])
        assert starts[ids].sum() == len(line.split()) and starts[ids[0]]


def test_save_and_load(vocabulary, tmp_path):
    vocabulary.save(tmp_path)
    loaded = load_encoder_vocabulary(tmp_path)
    assert isinstance(loaded, SentencePieceEncoderVocabulary)
    assert loaded.hash == vocabulary.hash and loaded.normalization == vocabulary.normalization
    with pytest.raises(UserError, match="is of a 'sentencepiece' vocabulary, not of a 'wordpiece'"):
        WordPieceVocabulary.load(tmp_path)
    record = json.loads((tmp_path / "vocabulary.json").read_text())
    record["settings"]["normalization"]["punctuation"] = True
    (tmp_path / "vocabulary.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="vocabulary mismatch"):
        load_encoder_vocabulary(tmp_path)
    (tmp_path / "vocabulary.model").write_bytes(b"not a model at all")
    with pytest.raises(UserError, match=r"vocabulary\.model: .*not a SentencePiece model"):
        load_encoder_vocabulary(tmp_path)


def test_a_translation_vocabulary_is_refused(toy_vocabulary, tmp_path):
    with pytest.raises(UserError, match="does not hold PAD, UNK"):
        SentencePieceEncoderVocabulary(toy_vocabulary.proto)
    toy_vocabulary.save(tmp_path)
    with pytest.raises(UserError, match="not of an encoder vocabulary"):
        load_encoder_vocabulary(tmp_path)


def test_an_encoder_vocabulary_is_no_translation_vocabulary(vocabulary, tmp_path):
    vocabulary.save(tmp_path)
    with pytest.raises(UserError):
        Vocabulary.load(tmp_path)


def test_training_errors_are_sentences(lines):
    with pytest.raises(UserError, match=r"too large for this text: it gives at most \d+"):
        SentencePieceEncoderVocabulary.train(lines, 5000)
    with pytest.raises(UserError, match="no text to train a vocabulary on"):
        SentencePieceEncoderVocabulary.train([" "], 100)


def test_accents_and_quotes_are_folded_as_in_albert(lines, vocabulary):
    options = {"normalization": NormalizationConfig(lower_case=True), "fold_accents": True}
    folded = SentencePieceEncoderVocabulary.train(
        [*lines, "``Café'' naïve"], 44, model_type="unigram", **options
    )
    assert (folded.model_type, vocabulary.model_type) == ("unigram", "bpe")
    text = ["``Café'' naïve", "a\ud800b", ""]
    rows = folded.encode_lines(text)
    assert rows[0] == folded.encode_lines(['"cafe" naive'])[0]
    assert folded.encode(tf.constant(text[:1])).to_list() == rows[:1]
    again = SentencePieceEncoderVocabulary.from_contents(folded.contents(), folded.settings())
    assert again.hash == folded.hash and again.encode_lines(text) == rows
    plain = SentencePieceEncoderVocabulary(folded.proto, folded.normalization)
    assert plain.encode_lines(text[:1]) != rows[:1]
    assert plain.hash != folded.hash and "fold_accents" not in plain.settings()
