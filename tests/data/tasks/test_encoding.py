"""Tests of encoding examples as rows: layout, trimming, choices, sentences and windows."""

import copy
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.sampler import in_parts
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.encoding import (
    encode_choices,
    encode_examples,
    encode_pairs,
    encode_sets,
    windows_over,
)
from macaron_tf.data.tasks.examples import Examples, read_examples
from macaron_tf.text import BytePairVocabulary, SentencePieceVocabulary, WordPieceVocabulary
from macaron_tf.text.normalization import cut_texts
from tests.harness import refuses

PAIRS = ["a b c", "a"], ["d e", "b"]
ALL = "a b c d e"


def encoded(vocabulary, first, second, max_length, causal=False):
    second = None if second is None else tf.constant(second)
    rows = encode_pairs(vocabulary, tf.constant(first), second, max_length, causal)
    assert rows["token_ids"].dtype == rows["segment_ids"].dtype == tf.int32
    return rows["token_ids"].numpy().tolist(), rows["segment_ids"].numpy().tolist()


def spelt(vocabulary, *arguments, **options):
    """Encodes examples, and returns the rows as text.

    "." stands for padding, "?" for [UNK], "^" for [CLS], "|" for [SEP] and "!" for the extract
    token.
    """
    return as_text(*encoded(vocabulary, *arguments, **options))


def as_text(rows, segments):
    ids = ["".join(".?^|!abcde"[i] for i in row) for row in rows]
    return [f"{row} {''.join(map(str, own))}" for row, own in zip(ids, segments, strict=True)]


@pytest.mark.parametrize(
    ("options", "first", "second", "length", "rows"),
    [
        ({}, ["a b c d", "e ?", ""], None, 5, ["^abc| 00000", "^e?|. 00000", "^|... 00000"]),
        ({}, ["a b", "c"], ["c d e", "d"], 16, ["^ab|cde| 00001111", "^c|d|... 00011000"]),
        ({}, [""], [""], 16, ["^|| 001"]),
        ({}, ["a b"], None, 3, ["^a| 000"]),
        ({}, ["a b"], ["c d"], 5, ["^a|c| 00011"]),
        # The longer text is trimmed first.
        ({}, [ALL, "a"], ["a", ALL], 8, ["^abcd|a| 00000011", "^a|abcd| 00011111"]),
        ({}, [ALL], ["e d c b a"], 8, ["^abc|ed| 00000111"]),
        # Two separators, as in RoBERTa.
        ({"pair_separators": 2}, *PAIRS, 8, ["^ab||de| 00000111", "^a||b|.. 00001100"]),
        ({"pair_separators": 2}, ["a"], None, 8, ["^a| 000"]),
        # [CLS] ends a row, as in XLNet.
        ({"cls_last": True}, *PAIRS, 7, ["ab|de|^ 0001112", "a|b|^.. 0011200"]),
        ({"cls_last": True}, ["a b c", ""], None, 4, ["ab|^ 0002", "|^.. 0200"]),
        # Start, delimiter and extract tokens of a causal model.
        ({"causal": True}, ["a b", "c"], None, 8, ["^ab! 0000", "^c!. 0000"]),
        ({"causal": True}, ["a b", ""], ["c", "d e"], 8, ["^ab|c! 000011", "^|de!. 001110"]),
        ({"causal": True}, [ALL], None, 5, ["^abc! 00000"]),
    ],
)
def test_rows(vocabulary, options, first, second, length, rows):
    vocabulary, options = copy.copy(vocabulary), dict(options)
    causal = options.pop("causal", False)
    vars(vocabulary).update(options)
    assert spelt(vocabulary, first, second, length, causal=causal) == rows
    least = 3 if second is None else 4 + vocabulary.pair_separators
    refuses(f"need {least} tokens", encoded, vocabulary, first, second, least - 1, causal)


@pytest.mark.parametrize("room", [2, 3, 7, 8])
def test_kept_lengths_equal_trimming_step_by_step(vocabulary, room):
    def trimmed(a, b):
        while a + b > room:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        return a, b

    pairs = [(a, b) for a in range(15) for b in range(15)]
    first, second = (["a " * count for count in side] for side in zip(*pairs, strict=True))
    ids, segments = map(np.array, encoded(vocabulary, first, second, room + 3))
    a = vocabulary.words.index("a")
    kept = (ids == a)[..., None] & (segments[..., None] == [0, 1])  # `(N, L, 2)`
    assert kept.sum(axis=1).tolist() == [list(trimmed(a, b)) for a, b in pairs]


def test_the_same_in_a_graph(vocabulary):
    text = (tf.TensorSpec([None], tf.string),) * 2
    graph = tf.function(lambda a, b: encode_pairs(vocabulary, a, b, 9), input_signature=text)
    first, second = ["a b c d e a b", "e"], ["a b", "a b c d"]
    eager = encode_pairs(vocabulary, tf.constant(first), tf.constant(second), 9)
    for name, rows in graph(first, second).items():
        assert np.array_equal(rows, eager[name])
    assert graph([], [])["token_ids"].shape[0] == 0


def test_a_text_of_ten_megabytes(vocabulary):
    rows = spelt(vocabulary, ["a " + "w0nderful " * 1_000_000, "b"], ["c", "d"], 7)
    assert rows == ["^a??|c| 0000011", "^b|d|.. 0001100"]


SENTENCES = ["The cat sits under the red tree.", "Ein Hund läuft über das Gras, schnell."] * 200


@pytest.mark.parametrize(
    ("kind", "size"),
    [(SentencePieceVocabulary, 60), (WordPieceVocabulary, 60), (BytePairVocabulary, 300)],
)
@pytest.mark.parametrize(
    "unit", ["The cat sits under the red tree. ", "läuft", "중", "\U0001f9ff ", "  a\n", "- " * 9]
)
def test_a_long_text_is_cut_before_it_is_tokenized_and_has_the_same_ids(kind, size, unit):
    """SentencePiece needs minutes for megabytes of unknown characters."""
    vocabulary, length = kind.train(SENTENCES, size), 40
    start = unit * (20_000 // len(unit))
    [ids] = vocabulary.encode_lines([start])
    expected = [vocabulary.special.begin, *ids[: length - 2], vocabulary.special.end]
    text = unit * (2_000_000 // len(unit))
    assert encoded(vocabulary, [text], None, length)[0] == [expected]
    rows = encode_sets(vocabulary, Examples(([text],), None), length).rows
    assert rows.ids.tolist() == expected


def test_a_cut_leaves_whole_characters():
    texts = tf.constant(["", "ab", "ü" * 40_000, b"\xff" * 40_000])
    expected = [b"", b"ab", "ü".encode() * 32_768, b"\xff" * 32_768]
    assert cut_texts(texts, 8).numpy().tolist() == expected
    assert len(cut_texts(tf.constant(["a" * 99_999]), 2_000).numpy()[0]) == 64_000


def test_no_example(vocabulary):
    refuses("no example", encode_examples, vocabulary, Examples(([],), None), 8)


def test_a_split_is_tokenized_in_parts(vocabulary):
    texts = [" ".join("abcde"[: 1 + i % 5]) for i in range(1218)]
    many = Examples((texts, texts[::-1]), None)
    found = encode_examples(vocabulary, many, 8)
    assert list(in_parts(1218, 1024)) == [slice(0, 1024), slice(1024, 1218)]
    whole, _ = encoded(vocabulary, texts, texts[::-1], 8)
    assert found.rows.padded(np.arange(1218), 8).tolist() == whole
    again = encode_examples(vocabulary, dataclasses.replace(many, texts=many.texts[:1]), 8)
    assert (again.boundaries == again.rows.lengths).all()


@pytest.mark.parametrize(
    ("causal", "rows"),
    [
        (False, ["^a|bc| 000111", "^a|bd| 000111", "...... 000000", "^e|bc| 000111"]),
        (True, ["^ab|c! 000011", "^ab|d! 000011", "...... 000000", "^eb|c! 000011"]),
    ],
)
def test_a_question_goes_with_its_choices_and_some_are_not_there(vocabulary, causal, rows):
    texts = (["a", "a", "a", "e"], ["b"] * 4, ["c", "d", " \u2003\x85\xa0\x1c", "c"])
    found = encode_choices(vocabulary, *map(tf.constant, texts), 8, causal)
    assert as_text(found["token_ids"].numpy(), found["segment_ids"].numpy()) == rows
    examples = Examples((["a", "e"], ["c", "c"], ["d", ""]), np.array([1, 0]), questions=["b"] * 2)
    encoded = encode_examples(vocabulary, examples.take(np.array([0, 1])), 8, causal)
    (batch,) = ExampleBatches(encoded, 2, shapes=1).evaluation_dataset().as_numpy_iterator()
    ids, segments = (batch[name].reshape(4, 8)[:, :6] for name in ("token_ids", "segment_ids"))
    expected = [rows[0], rows[1], rows[3], rows[2]]
    assert as_text(ids, segments) in (expected, expected[2:] + expected[:2])


def test_each_choice_is_a_row_of_its_context(vocabulary, table):
    task = get_task("story_cloze")
    header = "context\tending1\tending2\tlabel"
    source = table(header, "a b\tc\td e\t2", "c\ta\tb\t1", "e\td d d\ta\t1")
    found = read_examples(task, "train", source=source)
    assert found.texts == (["a b", "c", "e"], ["c", "a", "d d d"], ["d e", "b", "a"])
    assert found.labels.tolist() == [1, 0, 0]
    rows = encode_examples(vocabulary, found, 16, causal=True)
    assert rows.rows_per_example == 2
    data = ExampleBatches(rows, 2, shapes=1)
    assert (len(data), data.steps_per_epoch) == (3, 2)
    assert data.row_lengths.tolist() == [7, 5, 7]
    seen = {}
    for batch in data.evaluation_dataset().as_numpy_iterator():
        assert batch["token_ids"].shape == batch["segment_ids"].shape == (2, 2, 8)
        arrays = (batch[name] for name in ("index", "token_ids", "segment_ids", "label"))
        for number, ids, segments, label in zip(*arrays, strict=True):
            seen[number] = [*(row.split()[0] for row in as_text(ids, segments)), label]
    assert seen == {
        -1: ["." * 8, "." * 8, 0],
        0: ["^ab|c!..", "^ab|de!.", 1],
        1: ["^c|a!...", "^c|b!...", 0],
        2: ["^e|ddd!.", "^e|a!...", 0],
    }


def test_rows_of_sentences_are_those_of_training_and_serving(vocabulary):
    rng, length = np.random.default_rng(5), 12
    lines = [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 20))) for _ in range(30)]
    lines += ["", " ", "unkn0wn w0rd"]
    rows = encode_sets(vocabulary, Examples((lines,), None), length).rows
    expected = encode_pairs(vocabulary, tf.constant(lines), None, length)["token_ids"].numpy()
    np.testing.assert_array_equal(rows.padded(np.arange(len(lines)), length), expected)
    assert rows.lengths.max() == length and rows.lengths[30] == 2


def test_windows_are_those_of_the_released_code():
    rng = np.random.default_rng(0)
    lengths = [0, 1, 7, 8, 9, *rng.integers(0, 60, 40)]
    rooms = tf.constant([8, 8, 8, 8, 8, *rng.integers(1, 20, 40)], tf.int64)
    rows = tf.ragged.range(lengths)
    for stride in (1, 3, 8, 50):
        ids, windows = windows_over(rows, rooms, stride)
        shown, found = iter(ids.to_list()), windows.to_list()
        for starts, length, room in zip(found, lengths, rooms.numpy(), strict=True):
            # The loop in the released code.
            expected, start = [], 0
            while not expected or start < length:
                expected.append(start)
                if start + room >= length:
                    break
                start += min(stride, room)
            assert starts == expected
            for start in starts:
                assert next(shown) == list(range(start, min(start + room, length)))
        assert next(shown, None) is None
