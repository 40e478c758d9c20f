"""Windows over contexts: all is seen, labels are the answer's positions or [CLS]."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.encoding import cut, window_starts
from macaron_tf.data.tasks.questions import (
    Answer,
    Questions,
    encode_question_examples,
    encode_questions,
)
from macaron_tf.errors import UserError
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def vocabulary():
    return WordPieceVocabulary([*SPECIAL_PIECES, *LETTERS, *(f"##{x}" for x in LETTERS)])


def test_windows_see_every_piece():
    rng = np.random.default_rng(0)
    lengths = tf.constant([0, 1, 7, 8, 9, *rng.integers(0, 60, 40)], tf.int64)
    rooms = tf.constant([8, 8, 8, 8, 8, *rng.integers(1, 20, 40)], tf.int64)
    for stride in (1, 3, 8, 50):
        rows = window_starts(lengths, rooms, stride).to_list()
        for starts, length, room in zip(rows, lengths.numpy(), rooms.numpy(), strict=True):
            step = min(stride, room)
            # The released code's loop.
            expected, start = [], 0
            while not expected or start < length:
                expected.append(start)
                if start + room >= length:
                    break
                start += step
            assert starts == expected
            seen = {i for s in starts for i in range(s, min(s + room, length))}
            assert seen == set(range(length))


def test_cut():
    rows = tf.ragged.constant([[1, 2, 3], [], [4, 5]])
    numbers, starts, lengths = (
        tf.constant(v, tf.int64) for v in ([0, 0, 1, 2], [0, 2, 0, 1], [2, 1, 0, 1])
    )
    assert cut(rows, numbers, starts, lengths).to_list() == [[1, 2], [3], [], [5]]


def test_rows_and_labels(vocabulary):
    examples = Questions(
        ["1", "2", "3", "4"],
        ["ab c d", "a", "a", "b"],
        ["e f gh i j k", "", "l M n", "o \u200b p"],
        [(Answer("h i", 5),), (), (Answer("M", 2),), (Answer("\u200b", 2),)],
    )
    encoded = encode_question_examples(vocabulary, examples, max_length=9, stride=2, max_question=2)
    cls, sep = vocabulary.cls_id, vocabulary.sep_id

    def ids(text):
        return [vocabulary.words.index(piece) for piece in text.split()]

    rows = [
        encoded.rows.ids[a:b].tolist()
        for a, b in zip(encoded.rows.offsets, encoded.rows.offsets[1:], strict=False)
    ]
    question = [cls, *ids("a ##b"), sep]
    assert rows[:3] == [
        [*question, *ids("e f g ##h"), sep],
        [*question, *ids("g ##h i j"), sep],
        [*question, *ids("i j k"), sep],
    ]
    assert rows[3] == [cls, *ids("a"), sep, sep]
    assert encoded.question.tolist() == [0, 0, 0, 1, 2, 3]
    # "h i" is whole in the second window only; a text of no piece is no answer.
    assert encoded.labels.tolist() == [[0, 0], [5, 6], [0, 0], [0, 0], [4, 4], [0, 0]]
    assert encoded.labels.dtype == np.int32
    places = encoded.places()
    again = encode_questions(
        vocabulary,
        tf.constant(examples.questions),
        tf.constant(examples.contexts),
        max_length=9,
        stride=2,
        max_question=2,
    )[1]
    for one, other in zip(places, again, strict=True):
        one, other = (
            x.to_list() if isinstance(x, tf.RaggedTensor) else x.numpy().tolist()
            for x in (one, other)
        )
        assert one == other


def test_batches_carry_two_positions(vocabulary):
    texts = ["a b c d e f g"] * 5
    answers = [(Answer("c d", 4),)] * 5
    examples = Questions(list("12345"), ["q"] * 5, texts, answers)
    encoded = encode_question_examples(
        vocabulary, examples, max_length=16, stride=8, max_question=4
    )
    data = ExampleBatches(encoded, 4)
    batches = list(data.dataset(repeat=False).as_numpy_iterator())
    assert [batch["label"].shape for batch in batches] == [(4, 2), (4, 2)]
    labels = np.concatenate([batch["label"][batch["weight"] > 0] for batch in batches])
    assert labels.tolist() == [[5, 6]] * 5
    assert batches[0]["label"][batches[0]["weight"] == 0].tolist() in ([], [[0, 0]] * 3)
    other = encode_question_examples(
        vocabulary,
        Questions(list("12345"), ["q"] * 5, texts, [()] * 5),
        max_length=16,
        stride=8,
        max_question=4,
    )
    assert ExampleBatches(other, 4).fingerprint() != data.fingerprint()


def test_no_room_is_refused(vocabulary):
    with pytest.raises(UserError, match="max_length is 7: a question of 4 tokens needs 8"):
        encode_question_examples(
            vocabulary, Questions(["1"], ["a"], ["b"], None), max_length=7, stride=2, max_question=4
        )
    with pytest.raises(UserError, match="no question to encode"):
        encode_question_examples(
            vocabulary, Questions([], [], [], None), max_length=8, stride=2, max_question=4
        )
