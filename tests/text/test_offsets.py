"""Offsets of pieces point into the text as it was given."""
# ruff: noqa: RUF001 -- Greek is Greek here

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.text.normalization import AlignedText, NormalizationConfig
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary, clean

TEXTS = [
    "The café's \u201cprice\u201d: $1,000.",
    "cafe\u0301 nai\u0308ve",  # accents of their own
    "\u200bzero\u200bwidth\x00 and\u00a0no-break\r\n tab\t.",
    "日本 中文 ok",
    "İstanbul ΣΑΣ ß",
    "\u0301starts with a mark",
    "   ",
    "",
    "\U0001f600 face",
]


def located(vocabulary, texts):
    """For each text, (piece, what it lies on)."""
    found = vocabulary.encode_with_offsets(tf.constant(texts))
    rows = zip(
        texts, found.ids.to_list(), found.starts.to_list(), found.ends.to_list(), strict=True
    )
    return [
        [(i, text[a:b]) for i, a, b in zip(ids, starts, ends, strict=True)]
        for text, ids, starts, ends in rows
    ]


@pytest.fixture(scope="module")
def wordpiece():
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,:$'\u201c\u201d日本中文ßσα-\U0001f600"
    words = [*letters, *("##" + letter for letter in letters), "café", "##ice", "and"]
    return WordPieceVocabulary([*SPECIAL_PIECES, *words], lower_case=True)


def test_wordpieces_lie_on_the_text_they_were_made_of(wordpiece):
    ids = wordpiece.encode(tf.constant(TEXTS)).to_list()
    rows = located(wordpiece, TEXTS)
    assert [[i for i, _ in row] for row in rows] == ids
    for row in rows:
        for i, text in row:
            if i != wordpiece.unk_id:
                cleaned = clean(tf.constant([text]), True).numpy()[0].decode()
                assert cleaned == wordpiece.words[i].removeprefix("##")
    pieces = [text for _, text in rows[1]]
    assert pieces[-1] == "e" and "e\u0301" in pieces and "i\u0308" in pieces
    assert ("".join(pieces)) == TEXTS[1].replace(" ", "")
    assert [text for _, text in rows[2]][:4] == ["z", "e", "r", "o"]
    assert rows[6] == rows[7] == []


def test_sentencepieces_leave_out_the_space_before_them():
    lines = ["the old cat", "ﬁne cafés", "cat saw the town"] * 30
    vocabulary = SentencePieceVocabulary.train(
        lines, 40, normalization=NormalizationConfig(lower_case=True)
    )
    texts = ["The  OLD cat", "  ﬁne cafés ", "town", "", "Cat\u2028saw"]
    assert [[i for i, _ in row] for row in located(vocabulary, texts)] == vocabulary.encode(
        tf.constant(texts)
    ).to_list()
    for text, row in zip(texts, located(vocabulary, texts), strict=True):
        pieces = [piece for _, piece in row]
        assert all(piece == piece.lstrip() for piece in pieces if piece.strip())
        # "ﬁ" becomes two letters, both of which lie on the one character.
        assert set("".join(text.split())) <= set("".join(pieces))


def test_one_character_may_become_several_or_none():
    def normalize(lines):
        return tf.strings.regex_replace(tf.strings.regex_replace(lines, "@", "at"), "#", "")

    aligned = AlignedText(tf.constant(["a#@é", "@"]), normalize)
    assert [text.decode() for text in aligned.normalized.numpy()] == ["aaté", "at"]
    # Bytes of "aaté": a, at (two pieces on one character), the first half of é; then "t" of "at".
    starts, ends = tf.ragged.constant([[0, 1, 2, 3], [1]]), tf.ragged.constant([[1, 2, 3, 4], [2]])
    found = aligned.original(starts, ends)
    assert found[0].to_list() == [[0, 2, 2, 3], [0]]
    assert found[1].to_list() == [[1, 3, 3, 4], [1]]


def test_real_answers_are_found_again(tfds_dir, shared_data):
    from macaron_tf.data.tasks.definitions import get_task
    from macaron_tf.data.tasks.questions import encode_question_examples, read_questions

    path = shared_data / "vocabularies" / "bert-base-uncased-vocab.txt"
    vocabulary = WordPieceVocabulary.from_file(path, lower_case=True)
    examples = read_questions(get_task("squad"), "validation", tfds_dir)
    options = {"max_length": 128, "stride": 40, "max_question": 32}
    encoded = encode_question_examples(vocabulary, examples, **options)
    assert len(encoded.rows.lengths) > len(examples) == 138
    found, positions = set(), encoded.positions
    for window in np.flatnonzero(encoded.labels[:, 0]):
        question = positions.question[window]
        shift = positions.starts.row_starts()[question] + positions.first_piece[window]
        first, last = encoded.labels[window] - encoded.boundaries[window] + shift
        start, end = positions.starts.values[first], positions.ends.values[last]
        assert examples.contexts[question][start:end] == examples.labels[question][0].text
        found.add(int(question))
    assert len(found) == 138
