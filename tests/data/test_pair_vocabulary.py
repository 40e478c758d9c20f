"""Two pre-trained vocabularies as a translation's one: both paths agree, files, refusals."""

import dataclasses
import json

import pytest
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.special_ids import EOS, PAD
from macaron_tf.text.loading import (
    BytePairVocabulary,
    SentencePieceEncoderVocabulary,
    WordPieceVocabulary,
)
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.pair_vocabulary import PairVocabulary, load_translation_vocabulary

LOWER = NormalizationConfig(lower_case=True)
LINES = ["Ein HUND läuft", "", "zwei  Hunde  laufen .", "ein Überhund"]


def trained(kind, lines):
    if kind is SentencePieceEncoderVocabulary:
        return kind.train(lines, 40, character_coverage=1.0)
    if kind is BytePairVocabulary:
        return kind.train(lines, 270)
    return kind.train(lines, 40, lower_case=False)


@pytest.fixture(
    scope="module",
    params=[SentencePieceEncoderVocabulary, WordPieceVocabulary, BytePairVocabulary],
    ids=lambda kind: kind.kind,
)
def pair(request):
    source = trained(request.param, ["a dog runs", "two dogs run ."] * 9)
    target = trained(request.param, ["ein hund läuft", "zwei hunde laufen .", "überhund"] * 9)
    return PairVocabulary(source, target, LOWER, ("en", "de"))


def test_each_language_has_its_side(pair):
    [first] = pair.encode_lines(["a dog"])
    assert [first] == pair.source.encode_lines(["a dog"]) != pair.target.encode_lines(["a dog"])
    assert pair.encode_lines(["EIN hund"], "de") == pair.target.encode_lines(["ein hund"])
    assert pair.pieces == pair.target.pieces


def test_in_the_graph_as_outside(pair):
    rows = pair.encode_lines(LINES, "de")
    ragged = pair.encode(tf.constant(LINES), "de")
    assert ragged.to_list() == rows and ragged.dtype == tf.int32
    # Behind EOS, padding rows and special ids there is no text.
    ended = [[*row, EOS, *([9] if row else [])] for row in rows]
    ids = tf.ragged.constant([[2, *row] for row in ended], tf.int32).to_tensor(PAD)
    lines = pair.decode_lines(ids.numpy())
    assert [line.decode() for line in pair.decode(ids).numpy()] == lines
    assert lines[0] == "ein hund läuft" and lines[1] == "" and "hunde" in lines[2]


def test_files_and_hash(pair, tmp_path):
    pair.save(tmp_path)
    again = load_translation_vocabulary(tmp_path)
    assert isinstance(again, PairVocabulary)
    assert again.hash == pair.hash and again.languages == ("en", "de")
    assert again.encode_lines(LINES) == pair.encode_lines(LINES)
    hashes = {
        one.hash
        for one in (
            pair,
            PairVocabulary(pair.target, pair.target, LOWER),
            PairVocabulary(pair.source, pair.target, LOWER, ("en", "fr")),
            PairVocabulary(pair.source, pair.target, dataclasses.replace(LOWER, lower_case=False)),
        )
    }
    assert len(hashes) == 4
    record = json.loads((tmp_path / "vocabulary.json").read_text())
    (tmp_path / "vocabulary.json").write_text(json.dumps({**record, "languages": ["en", "fr"]}))
    with pytest.raises(UserError, match="vocabulary mismatch"):
        load_translation_vocabulary(tmp_path)
    (tmp_path / "vocabulary.json").write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        load_translation_vocabulary(tmp_path)


def test_special_ids_of_another_library_are_refused(pair):
    class Elsewhere:
        cls_id, sep_id = 101, 102

    with pytest.raises(UserError, match="at ids 101 and 102"):
        PairVocabulary(pair.source, Elsewhere())
