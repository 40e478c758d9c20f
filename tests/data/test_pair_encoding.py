"""Rows of an encoder: the layout, the trimming, the graph."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.tasks.encoding import encode_pairs, kept_lengths
from macaron_tf.errors import UserError
from tests.data.word_vocabulary import WordVocabulary

CLS, SEP = 2, 3
A, B, C, D, E = range(5, 10)


@pytest.fixture(scope="module")
def vocabulary():
    return WordVocabulary("abcde")


def encoded(vocabulary, first, second, max_length):
    second = None if second is None else tf.constant(second)
    rows = encode_pairs(vocabulary, tf.constant(first), second, max_length)
    assert rows["token_ids"].dtype == rows["segment_ids"].dtype == tf.int32
    return rows["token_ids"].numpy().tolist(), rows["segment_ids"].numpy().tolist()


def test_one_text(vocabulary):
    ids, segments = encoded(vocabulary, ["a b c d", "e ?", ""], None, 5)
    assert ids == [[CLS, A, B, C, SEP], [CLS, E, 1, SEP, 0], [CLS, SEP, 0, 0, 0]]
    assert not np.any(segments)


def test_two_texts(vocabulary):
    ids, segments = encoded(vocabulary, ["a b", "c", ""], ["c d e", "d", ""], 16)
    assert ids == [
        [CLS, A, B, SEP, C, D, E, SEP],
        [CLS, C, SEP, D, SEP, 0, 0, 0],
        [CLS, SEP, SEP, 0, 0, 0, 0, 0],
    ]
    assert segments == [
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0, 0],
    ]


def test_two_separators_as_roberta():
    vocabulary = WordVocabulary("abcde")
    vocabulary.pair_separators = 2
    ids, segments = encoded(vocabulary, ["a b c", "a"], ["d e", "b"], 8)
    assert ids == [[CLS, A, B, SEP, SEP, D, E, SEP], [CLS, A, SEP, SEP, B, SEP, 0, 0]]
    assert segments == [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0]]
    assert encoded(vocabulary, ["a"], None, 8)[0] == [[CLS, A, SEP]]
    with pytest.raises(UserError, match="need at least 6"):
        encoded(vocabulary, ["a"], ["b"], 5)


def test_a_row_that_ends_with_cls_as_xlnet_s():
    vocabulary = WordVocabulary("abcde")
    vocabulary.cls_last = True
    ids, segments = encoded(vocabulary, ["a b c", "a"], ["d e", "b"], 7)
    assert ids == [[A, B, SEP, D, E, SEP, CLS], [A, SEP, B, SEP, CLS, 0, 0]]
    assert segments == [[0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 1, 2, 0, 0]]
    ids, segments = encoded(vocabulary, ["a b c", ""], None, 4)
    assert (ids, segments) == ([[A, B, SEP, CLS], [SEP, CLS, 0, 0]], [[0, 0, 0, 2], [0, 2, 0, 0]])


def test_the_longer_text_is_trimmed_first(vocabulary):
    first, second = ["a b c d e", "a", "a b c d e"], ["a", "a b c d e", "e d c b a"]
    ids, segments = encoded(vocabulary, first, second, 8)
    assert ids == [
        [CLS, A, B, C, D, SEP, A, SEP],
        [CLS, A, SEP, A, B, C, D, SEP],
        [CLS, A, B, C, SEP, E, D, SEP],
    ]
    assert np.sum(segments, axis=1).tolist() == [2, 5, 3]


def test_kept_lengths_equal_trimming_step_by_step():
    def trimmed(a, b, room):
        while a + b > room:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        return a, b

    for room in (2, 3, 7, 8):
        pairs = [(a, b) for a in range(15) for b in range(15)]
        first, second = kept_lengths(
            *(tf.constant(side) for side in zip(*pairs, strict=True)), room
        )
        found = tf.stack([first, second], axis=1).numpy().tolist()
        assert found == [list(trimmed(a, b, room)) for a, b in pairs]


def test_the_same_in_a_graph(vocabulary):
    text = tf.TensorSpec([None], tf.string)
    graph = tf.function(
        lambda a, b: encode_pairs(vocabulary, a, b, 9), input_signature=(text, text)
    )
    first, second = ["a b c d e a b", "e"], ["a b", "a b c d"]
    eager = encode_pairs(vocabulary, tf.constant(first), tf.constant(second), 9)
    for name, rows in graph(first, second).items():
        assert np.array_equal(rows, eager[name])
    assert graph([], [])["token_ids"].shape[0] == 0


def test_a_text_of_ten_megabytes(vocabulary):
    ids, _ = encoded(vocabulary, ["a " + "wonderful " * 1_000_000, "b"], ["c", "d"], 7)
    assert ids == [[CLS, A, 1, 1, SEP, C, SEP], [CLS, B, SEP, D, SEP, 0, 0]]


def test_no_room(vocabulary):
    assert encoded(vocabulary, ["a b"], None, 3)[0] == [[CLS, A, SEP]]
    assert encoded(vocabulary, ["a b"], ["c d"], 5)[0] == [[CLS, A, SEP, C, SEP]]
    with pytest.raises(UserError, match="max_length is 2"):
        encode_pairs(vocabulary, tf.constant(["a"]), None, 2)
    with pytest.raises(UserError, match="max_length is 4"):
        encode_pairs(vocabulary, tf.constant(["a"]), tf.constant(["b"]), 4)
