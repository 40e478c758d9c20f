"""Training, saving, refusing and the equality of the in-graph and the Python tokenizer."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.special_ids import BOS, EOS, PAD, UNK
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.sentencepiece import interleave
from macaron_tf.text.vocabulary import Vocabulary, check_vocabulary, sample_lines

STRANGE = ["", "   ", "a\u2028b", "a\x00b", "日本語", "\ufeff", "…" * 50, "x" * 100_000]


def test_special_ids_and_padded_size(toy_vocabulary):
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert toy_vocabulary.pieces == 60
    assert toy_vocabulary.size == 64


def test_same_lines_give_the_same_vocabulary(toy_pairs, toy_vocabulary):
    again = Vocabulary.train(interleave(toy_pairs, ("en", "de")), 60)
    assert again.proto == toy_vocabulary.proto
    assert again.hash == toy_vocabulary.hash


def test_the_tokenizer_outlives_a_seed(toy_pairs):
    # Its own: TensorFlow shares the resource of equal models that are alive.
    vocabulary = Vocabulary.train(interleave(toy_pairs, ("en", "de")), 58)
    lines = tf.constant([pair[0] for pair in toy_pairs[:3]])
    before = vocabulary.encode(lines).to_list()
    for seed, encode in ((3, vocabulary.encode), (4, tf.function(vocabulary.encode))):
        keras.utils.set_random_seed(seed)
        assert encode(lines).to_list() == before


def test_hash_covers_settings(toy_vocabulary):
    proto = toy_vocabulary.proto
    hashes = {
        toy_vocabulary.hash,
        Vocabulary(proto, NormalizationConfig(lower_case=True)).hash,
        Vocabulary(proto, languages=("de", "en")).hash,
    }
    assert len(hashes) == 3


def test_in_graph_equals_python_on_real_lines(real_pairs, real_vocabulary):
    encode = tf.function(real_vocabulary.encode)
    for side, language in enumerate(("en", "de")):
        lines = [pair[side] for pair in real_pairs] + STRANGE
        rows = real_vocabulary.encode_lines(lines, language)
        assert real_vocabulary.encode(tf.constant(lines), language).to_list() == rows
        expected = real_vocabulary.decode_lines(rows)
        decoded = real_vocabulary.decode(tf.ragged.constant(rows, dtype=tf.int32)).numpy()
        assert [line.decode() for line in decoded] == expected
    source = real_vocabulary.encode_lines([pair[0] for pair in real_pairs])
    assert encode(tf.constant([pair[0] for pair in real_pairs])).to_list() == source


def test_round_trip_of_real_lines(real_pairs, real_vocabulary):
    lines = [" ".join(pair[0].lower().split()) for pair in real_pairs[:200]]
    lines = [line for line in lines if '"' not in line and "(" not in line]
    decoded = real_vocabulary.decode_lines(real_vocabulary.encode_lines(lines))
    assert decoded == lines


def test_empty_lines_give_empty_rows(toy_vocabulary):
    assert toy_vocabulary.encode(tf.constant(["", " \x00 "])).to_list() == [[], []]
    assert toy_vocabulary.encode(tf.constant([], tf.string)).to_list() == []
    assert toy_vocabulary.encode_lines([]) == []
    assert toy_vocabulary.decode_lines([]) == []


def test_decode_stops_at_eos_and_leaves_special_ids_out(toy_vocabulary):
    a, b = toy_vocabulary.encode_lines(["man house"])[0][:2]
    text = toy_vocabulary.decode_lines([[a, b]])[0]
    ids = tf.constant(
        [
            [BOS, a, b, EOS, a, a],
            [a, UNK, PAD, b, EOS, PAD],
            [a, 61, 63, 10_000, b, EOS],  # rows of the padded table, and beyond it
            [EOS, a, b, a, b, a],
            [PAD] * 6,
            [-1, a, b, EOS, EOS, PAD],
        ],
        tf.int32,
    )
    expected = [text, text, text, "", "", text]
    assert [s.decode() for s in toy_vocabulary.decode(ids).numpy()] == expected
    assert toy_vocabulary.decode_lines(ids.numpy()) == expected
    assert toy_vocabulary.decode(tf.zeros([0, 4], tf.int32)).shape == [0]


def test_works_in_a_saved_model(toy_vocabulary, tmp_path):
    module = tf.Module()
    module.assets = toy_vocabulary.trackables()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def call(lines):
        return toy_vocabulary.decode(toy_vocabulary.encode(lines))

    module.call = call
    tf.saved_model.save(module, str(tmp_path / "model"))
    lines = tf.constant(["the man", "", "a dog"])
    assert tf.saved_model.load(str(tmp_path / "model")).call(lines).numpy().tolist() == [
        b"the man",
        b"",
        b"a dog",
    ]


def test_first_use_inside_a_graph(toy_vocabulary):
    fresh = Vocabulary(toy_vocabulary.proto)
    dataset = tf.data.Dataset.from_tensors(["the man"]).map(lambda x: fresh.encode(x).to_tensor())
    assert next(iter(dataset)).numpy()[0].tolist() == fresh.encode_lines(["the man"])[0]


def test_save_and_load(toy_pairs, tmp_path):
    vocabulary = Vocabulary.train(
        interleave(toy_pairs, ("en", "de")),
        60,
        normalization=NormalizationConfig(lower_case=True, punctuation=True),
    )
    vocabulary.save(tmp_path / "new" / "folder")
    loaded = Vocabulary.load(tmp_path / "new" / "folder")
    assert loaded.hash == vocabulary.hash
    assert loaded.normalization == vocabulary.normalization
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [
        "vocabulary.json",
        "vocabulary.model",
    ]


def test_load_refuses_what_is_missing_or_damaged(toy_vocabulary, tmp_path):
    with pytest.raises(UserError, match=r"no vocabulary in .*vocabulary\.model"):
        Vocabulary.load(tmp_path)
    toy_vocabulary.save(tmp_path)
    record = tmp_path / "vocabulary.json"
    whole = record.read_text()
    changed = json.loads(whole)
    changed["normalization"]["lower_case"] = True
    record.write_text(json.dumps(changed))
    with pytest.raises(UserError, match="vocabulary mismatch"):
        Vocabulary.load(tmp_path)
    record.write_text(whole[:40])
    with pytest.raises(UserError, match=r"vocabulary\.json is damaged"):
        Vocabulary.load(tmp_path)
    record.write_text(whole)
    (tmp_path / "vocabulary.model").write_bytes(toy_vocabulary.proto[:-50])
    with pytest.raises(UserError, match=r"vocabulary"):
        Vocabulary.load(tmp_path)
    (tmp_path / "vocabulary.model").write_bytes(b"not a model at all")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        Vocabulary.load(tmp_path)


def test_save_to_an_unwritable_place(toy_vocabulary, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write"):
        toy_vocabulary.save(tmp_path / "file")


def test_mismatch_names_both(toy_vocabulary):
    check_vocabulary(toy_vocabulary.hash, toy_vocabulary, "run")
    with pytest.raises(UserError, match=r"RUN/checkpoint was made with vocabulary 0123456789ab"):
        check_vocabulary("0123456789abcdef", toy_vocabulary, "RUN/checkpoint")


def test_training_errors_are_sentences(toy_pairs):
    lines = [pair[0] for pair in toy_pairs]
    with pytest.raises(UserError, match=r"too large for this text: it gives at most \d+"):
        Vocabulary.train(lines, 5000)
    with pytest.raises(UserError, match=r"too small: the text's characters alone need \d+"):
        Vocabulary.train(lines, 10)
    for nothing in ([], ["", "  "]):
        with pytest.raises(UserError, match="no text to train a vocabulary on"):
            Vocabulary.train(nothing, 100)


def test_a_model_with_other_special_ids_is_refused(toy_pairs):
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(p[0] for p in toy_pairs),
        model_writer=model,
        vocab_size=50,
        model_type="bpe",
        minloglevel=2,
    )
    with pytest.raises(UserError, match="numbers PAD, UNK, BOS, EOS as"):
        Vocabulary(model.getvalue())


def test_bpe_dropout_is_seeded_and_keeps_the_text(real_pairs, real_vocabulary):
    lines = [pair[0] for pair in real_pairs[:300]]
    first = sample_lines(real_vocabulary, lines, 0.1, 1, "en")
    assert first == sample_lines(real_vocabulary, lines, 0.1, 1, "en")
    assert first != sample_lines(real_vocabulary, lines, 0.1, 2, "en")
    plain = real_vocabulary.encode_lines(lines, "en")
    assert sample_lines(real_vocabulary, lines, 0.0, 1, "en") == plain
    assert real_vocabulary.decode_lines(first) == real_vocabulary.decode_lines(plain)
    longer = np.mean([len(row) for row in first]) / np.mean([len(row) for row in plain])
    assert 1.02 < longer < 1.5
