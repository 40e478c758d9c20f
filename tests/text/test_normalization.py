"""Tests of normalization in graphs: text equal to sacremoses', offsets into the original text."""
# ruff: noqa: RUF001 -- look-alike punctuation is what this file is about

import re

import pytest
import sacremoses
import tensorflow as tf

from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.text.normalization import (
    AlignedText,
    NormalizationConfig,
    as_prompt,
    as_prompts,
    normalize,
    normalize_lines,
)

# `normalize` always takes these for spaces; sacremoses keeps them.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

HARD_LINES = [
    "„Das ist es”, sagte er.",
    'He said "yes", then "no."',
    '"Er kam." Dann ging er."',
    "«\u00a0Bonjour\u00a0» , dit-il : 50\u00a0% de 10\u00a0000\u00a0!",
    "it’s  the ‘90s — or so… (maybe ) ( not ) .",
    "``quoted'' and ´´this´´",
    "nº\u00a05, 3\u00a0cm, 20\u00a0ºC ;",
    "٣ % of ٣\u00a0٤",
    '."  <b> ." .x ."<',
    ',",".."a',
    "\u00a0 \u2003outer\u2003\u00a0",
    "",
]


@pytest.mark.parametrize("language", ["en", "de", "fr", "cs", "ja"])
def test_punctuation_equals_sacremoses_on_hard_lines(language):
    moses = sacremoses.MosesPunctNormalizer(lang=language)
    got = normalize_lines(HARD_LINES, NormalizationConfig(punctuation=True), language)
    assert got == [moses.normalize(line) for line in HARD_LINES]


@pytest.mark.parametrize("name", ["multi30k", "tatoeba", "iwslt14", "wmt14_translate"])
def test_punctuation_and_lower_case_equal_on_real_lines(name, tfds):
    pairs = read_pairs(f"tfds:{name}", "validation", "en", "de", tfds)[:2000]
    for side, language in enumerate(("en", "de")):
        lines = [pair[side] for pair in pairs if not CONTROL.search(pair[side])]
        assert len(lines) > 900
        moses = sacremoses.MosesPunctNormalizer(lang=language)
        config = NormalizationConfig(punctuation=True, lower_case=True)
        expected = [moses.normalize(line).lower() for line in lines]
        assert normalize_lines(lines, config, language) == expected


def test_every_line_becomes_one_line_of_valid_utf8():
    raw = tf.constant([b"a\x00b", b"a\xffb", "a\u2028b\u2029c".encode(), b"a\nb\r", b"\x1b", b""])
    got = [line.decode() for line in normalize(raw, NormalizationConfig(), "en").numpy()]
    assert got == ["a b", "a\ufffdb", "a b c", "a b", "", ""]
    assert "\ufffd" in normalize_lines(["a\ud800b"], NormalizationConfig(), "en")[0]
    lines = ["a\u200bb\u00adc\ufeff d"]
    assert normalize_lines(lines, NormalizationConfig(), "en") == ["a\u200bb\u00adc\ufeff d"]
    assert normalize_lines(lines, NormalizationConfig(remove_nonprinting=True), "en") == ["abc d"]


def test_line_ends_are_spaces_and_none_ends_a_prompt():
    texts = ["a\nb", " a \r\n\n b\n", "a b \t", "", "\n", "a\u2028b", "a \n"]
    expected = ["a b", " a b", "a b", "", "", "a\u2028b", "a"]
    assert [as_prompt(text) for text in texts] == expected
    assert [x.decode() for x in as_prompts(tf.constant(texts)).numpy()] == expected


def test_one_character_may_become_several_or_none():
    def normalize(lines):
        return tf.strings.regex_replace(tf.strings.regex_replace(lines, "@", "at"), "#", "")

    aligned = AlignedText(tf.constant(["a#@é", "@"]), normalize)
    assert [text.decode() for text in aligned.normalized.numpy()] == ["aaté", "at"]
    # Byte ranges in "aaté": a; a and t, which come from one character; the first half of é. Then
    # "t" in "at".
    starts, ends = tf.ragged.constant([[0, 1, 2, 3], [1]]), tf.ragged.constant([[1, 2, 3, 4], [2]])
    found = aligned.original(starts, ends)
    assert found[0].to_list() == [[0, 2, 2, 3], [0]]
    assert found[1].to_list() == [[1, 3, 3, 4], [1]]
