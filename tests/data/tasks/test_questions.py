"""Tests of SQuAD questions, read from files and TFDS, and of windows over their contexts."""

import copy
import json

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.questions import (
    Answer,
    Questions,
    encode_question_examples,
    encode_questions,
    read_questions,
)
from tests.harness import refuses
from tests.toys.marks import thorough

SQUAD, SQUAD2 = get_task("squad"), get_task("squad2")


def write(path, *questions, context="a \U0001f600 cafe\u0301 in Rome"):
    paragraphs = [{"context": context, "qas": list(questions)}]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))
    return f"squad:{path}"


def question(name="q1", *answers, **more):
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "Where?", "answers": found, **more}


def test_places_count_characters(tmp_path):
    answers = [("Rome", 13), ("cafe\u0301", 4)]
    source = write(
        tmp_path / "a.json", question("q1", *answers), question("q2", is_impossible=True)
    )
    found = read_questions(SQUAD2, "train", source=source)
    assert found.ids == ["q1", "q2"] and len(found) == 2
    assert found.labels == [(Answer("Rome", 13), Answer("cafe\u0301", 4)), ()]
    assert all(context == "a \U0001f600 cafe\u0301 in Rome" for context in found.contexts)
    refuses("'q2' has no answer.*the task squad2", read_questions, SQUAD, "train", source=source)
    for start in (-4, 0, 12, 14, 400):
        source = write(tmp_path / "a.json", question("q1", ("Rome", start)))
        message = f"a.json, question 'q1': 'Rome'.* {start}$"
        refuses(message, read_questions, SQUAD, "train", source=source)
    source = write(tmp_path / "a.json", question("q1", (" ", 1)))
    refuses("'q1' has an empty answer: correct", read_questions, SQUAD, "train", source=source)
    source = write(tmp_path / "a.json", question("q1", *answers), question("q1", *answers))
    refuses("repeats 1 question id, such as 'q1'", read_questions, SQUAD, "train", source=source)
    # An unpaired surrogate does not shift the other positions.
    source = write(tmp_path / "a.json", question("q1", ("Rome", 4)), context="x\ud83d, Rome")
    assert read_questions(SQUAD, "train", source=source).contexts == ["x?, Rome"]
    one = question()
    del one["answers"]
    write(tmp_path / "test.json", one)
    source = f"squad:{tmp_path}/{{split}}.json"
    assert read_questions(SQUAD, "test", source=source).labels is None
    write(tmp_path / "train.json", one)
    refuses("'answers' is missing", read_questions, SQUAD, "train", source=source)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.json"
    for text, words in (
        ("{", "is not JSON"),
        ("[1]", "'data' of SQuAD's format is missing or not a list"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"paragraphs\[0\]: the field 'context'"),
        ('{"data": []}', "contains no questions"),
    ):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        refuses(words, read_questions, SQUAD, "train", source=f"squad:{path}")
    for change, words in (
        ({"question": " "}, "is empty"),
        ({"answers": [{"text": "Rome"}]}, r"paragraphs\[0\].qas\[0\]: the field 'answer_start'"),
    ):
        source = write(path, question("q1", **change))
        refuses(words, read_questions, SQUAD, "train", source=source)
    refuses("unknown source 'tsv:a'", read_questions, SQUAD, "train", source="tsv:a")
    refuses("cannot read", read_questions, SQUAD, "train", source=f"squad:{tmp_path}/none.json")


def test_tfds(tfds):
    found = read_questions(SQUAD, "validation", tfds)
    assert len(found) == 138 and all(len(answers) >= 1 for answers in found.labels)
    text, start = found.labels[0][0]
    assert found.contexts[0][start : start + len(text)] == text
    refuses("no field 'id'", read_questions, SQUAD, "train", tfds, source="tfds:glue/rte")


def test_rows_and_labels(vocabulary):
    examples = Questions(
        ["1", "2", "3", "4"],
        ["ab c d", "a", "a", "b"],
        ["e f gh i j k", "", "l M n", "o \u200b p"],
        [(Answer("h i", 5),), (), (Answer("M", 2),), (Answer("\u200b", 2),)],
    )
    room = {"max_length": 9, "stride": 2, "max_question": 2}
    encoded = encode_question_examples(vocabulary, examples, **room)
    cls, sep = vocabulary.special.begin, vocabulary.special.end

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
    assert encoded.positions.question.numpy().tolist() == [0, 0, 0, 1, 2, 3]
    # "h i" is whole in the second window only; an answer without tokens has no label.
    assert encoded.labels.tolist() == [[0, 0], [5, 6], [0, 0], [0, 0], [4, 4], [0, 0]]
    assert encoded.labels.dtype == np.int32
    positions = encoded.positions
    asked = (tf.constant(texts) for texts in (examples.questions, examples.contexts))
    _, again = encode_questions(vocabulary, *asked, **room)
    for one, other in zip(positions, again, strict=True):
        one, other = (
            x.to_list() if isinstance(x, tf.RaggedTensor) else x.numpy().tolist()
            for x in (one, other)
        )
        assert one == other


def test_a_context_comes_first_where_cls_is_last(vocabulary):
    vocabulary = copy.copy(vocabulary)
    vocabulary.cls_last = True
    examples = Questions(["1", "2"], ["ab c", "a"], ["e f g h i", ""], [(Answer("h i", 6),), ()])
    room = {"max_length": 9, "stride": 2, "max_question": 2}
    data = ExampleBatches(encode_question_examples(vocabulary, examples, **room), 4, shapes=1)
    (batch,) = data.evaluation_dataset().as_numpy_iterator()
    order = np.argsort(batch["index"])
    cls, sep = vocabulary.special.begin, vocabulary.special.end
    a, b, e, f, g, h, i = (vocabulary.words.index(w) for w in ("a", "##b", *"efghi"))
    rows = [
        [e, f, g, h, sep, a, b, sep, cls], [g, h, i, sep, a, b, sep, cls, 0],
        [sep, a, sep, cls, 0, 0, 0, 0, 0],
    ]  # fmt: skip
    rows = {tuple(row[:9]) for row in batch["token_ids"][order].tolist()} - {(0,) * 9}, rows
    assert rows[0] == set(map(tuple, rows[1]))
    found = {tuple(ids): (s, label) for ids, s, label in zip(
        batch["token_ids"].tolist(), batch["segment_ids"].tolist(), batch["label"].tolist(),
        strict=True)}  # fmt: skip
    length = batch["token_ids"].shape[1] - 9
    segments, label = found[(g, h, i, sep, a, b, sep, cls, *[0] * (length + 1))]
    assert segments == [0, 0, 0, 0, 1, 1, 1, 2, *[0] * (length + 1)] and label == [2, 3]
    assert found[(e, f, g, h, sep, a, b, sep, cls, *[0] * length)][1] == [0, 0]


def test_batches_carry_two_positions(vocabulary):
    def batches_of(*answers):
        examples = Questions(list("12345"), ["q"] * 5, ["a b c d e f g"] * 5, [answers] * 5)
        room = {"max_length": 16, "stride": 8, "max_question": 4}
        return ExampleBatches(encode_question_examples(vocabulary, examples, **room), 4)

    data = batches_of(Answer("c d", 4))
    batches = list(data.dataset(repeat=False).as_numpy_iterator())
    assert [batch["label"].shape for batch in batches] == [(4, 2), (4, 2)]
    labels = np.concatenate([batch["label"][batch["weight"] > 0] for batch in batches])
    assert labels.tolist() == [[5, 6]] * 5
    assert batches[0]["label"][batches[0]["weight"] == 0].tolist() in ([], [[0, 0]] * 3)
    assert batches_of().fingerprint() != data.fingerprint()


@pytest.mark.parametrize("cls_last", [False, *thorough(True)])
def test_real_answers_are_found_again(cls_last, tfds, bert):
    examples, bert = read_questions(SQUAD, "validation", tfds), copy.copy(bert)
    bert.cls_last = cls_last
    options = {"max_length": 128, "stride": 40, "max_question": 32}
    encoded = encode_question_examples(bert, examples, **options)
    assert len(encoded.rows.lengths) > len(examples) == 138
    found, positions = set(), encoded.positions
    for window in np.flatnonzero(encoded.labels[:, 0]):
        question = positions.question[window]
        shift = positions.starts.row_starts()[question] + positions.first_piece[window]
        first, last = encoded.labels[window] - positions.boundary[window] + shift
        start, end = positions.starts.values[first], positions.ends.values[last]
        assert examples.contexts[question][start:end] == examples.labels[question][0].text
        found.add(int(question))
        # A [CLS] at the end of a row still has position 0.
        inside = encoded.rows.offsets[window] + encoded.labels[window] - cls_last
        pieces = encoded.rows.ids[inside[0] : inside[1] + 1]
        assert pieces.tolist() == bert.encode_lines([examples.contexts[question][start:end]])[0]
    assert len(found) == 138
