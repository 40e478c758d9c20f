"""Tests of SQuAD questions, read from files and TFDS, and of windows over their contexts."""

import copy
import json

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.questions import (
    Answer,
    Questions,
    SpanLimits,
    encode_question_examples,
    encode_questions,
    read_questions,
)
from tests.harness import refuses
from tests.toys.corpora import lists
from tests.toys.marks import thorough
from tests.toys.tasks import write_tfds

SQUAD, SQUAD2 = get_task("squad"), get_task("squad2")


def write(path, *questions, context="a \U0001f600 cafe\u0301 in Rome"):
    path.write_text("".join(f"{json.dumps({'context': context, **one})}\n" for one in questions))
    return f"jsonl:{path}"


def question(name="q1", *answers, **more):
    texts, starts = ([one[side] for one in answers] for side in (0, 1))
    found = {"text": texts, "answer_start": starts}
    return {"id": name, "question": "Where?", "answers": found, **more}


ANSWERS = ("Rome", 13), ("cafe\u0301", 4)


def test_places_count_characters(tmp_path):
    questions = question("q1", *ANSWERS), question("q2", is_impossible=True)
    source = write(tmp_path / "a.json", *questions)
    found = read_questions(SQUAD2, "train", source=source)
    assert found.ids == ["q1", "q2"] and len(found) == 2
    assert found.labels == [(Answer("Rome", 13), Answer("cafe\u0301", 4)), ()]
    assert all(context == "a \U0001f600 cafe\u0301 in Rome" for context in found.contexts)


def test_only_training_questions_need_answers(tmp_path):
    one = question()
    del one["answers"]
    for split in ("test", "train"):
        write(tmp_path / f"{split}.json", one)
    source = f"jsonl:{tmp_path}/{{split}}.json"
    assert read_questions(SQUAD, "test", source=source).labels is None
    refuses("'answers' is missing", read_questions, SQUAD, "train", source=source)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        *(([question("q1", ("Rome", at))], f"'q1': 'Rome'.* {at}$") for at in (-4, 0, 12, 14, 400)),
        ([question("q1", (" ", 1))], "'q1' has an empty answer: correct"),
        ([question("q1", *ANSWERS)] * 2, "repeats the question id 'q1'"),
        ([question("q2", is_impossible=True)], "'q2' has no answer.*the task squad2"),
        ([question(question=" ")], "is empty"),
        ([question(answers={"text": ["Rome"]})], "'answers' must have the lists 'text'"),
    ],
)
def test_questions_that_are_refused(questions, message, tmp_path):
    refuses(message, read_questions, SQUAD, "train", source=write(tmp_path / "a.json", *questions))


def test_tfds(tfds):
    found = read_questions(SQUAD, "validation", tfds)
    assert len(found) == 138 and all(len(answers) >= 1 for answers in found.labels)
    text, start = found.labels[0][0]
    assert found.contexts[0][start : start + len(text)] == text
    refuses("no field 'id'", read_questions, SQUAD, "train", tfds, source="tfds:glue/rte")


def test_the_names_of_record_are_spans_of_its_passage(tmp_path):
    datasets = pytest.importorskip("tensorflow_datasets")
    features = datasets.builder_cls("super_glue")(config="record", data_dir=tmp_path).info.features
    passage = "Rome fell. The city of Rome burnt, said Livy.\n@highlight\nRome burns"
    record = {"passage": passage, "query": "@placeholder wrote of it", "entities": ["Rome", "Livy"]}
    known = {**record, "answers": ["Livy", "Rome"], "idx": {"passage": 0, "query": 5}}
    secret = {**record, "answers": [], "idx": {"passage": 0, "query": 6}}
    write_tfds(tmp_path, dict(features), train=[known], test=[secret])
    tfds, source = Tfds(tmp_path), "tfds:glue/toy"
    found = read_questions(get_task("record"), "train", tfds, source)
    assert (found.ids, found.questions, found.contexts) == (["5"], [record["query"]], [passage])
    assert found.labels == [(("Livy", passage.index("Livy")), ("Rome", 0))]
    assert read_questions(get_task("record"), "test", tfds, source).labels is None


def test_rows_and_labels(vocabulary):
    examples = Questions(
        ["1", "2", "3", "4"],
        ["ab c d", "a", "a", "b"],
        ["e f gh i j k", "", "l M n", "o \u200b p"],
        [(Answer("h i", 5),), (), (Answer("M", 2),), (Answer("\u200b", 2),)],
    )
    room = 9, SpanLimits(2, 2)
    encoded = encode_question_examples(vocabulary, examples, *room)
    cls, sep = vocabulary.special.begin, vocabulary.special.end

    def ids(text):
        return [vocabulary.words.index(piece) for piece in text.split()]

    rows = lists(encoded.rows)
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
    _, again = encode_questions(vocabulary, *asked, *room)
    flat = (tf.nest.flatten(one, expand_composites=True) for one in (positions, again))
    for one, other in zip(*flat, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_context_comes_first_where_cls_is_last(vocabulary):
    vocabulary = copy.copy(vocabulary)
    vocabulary.cls_last = True
    examples = Questions(["1", "2"], ["ab c", "a"], ["e f g h i", ""], [(Answer("h i", 6),), ()])
    room = 9, SpanLimits(2, 2)
    encoded = encode_question_examples(vocabulary, examples, *room)
    cls, sep = vocabulary.special.begin, vocabulary.special.end
    a, b, e, f, g, h, i = (vocabulary.words.index(w) for w in ("a", "##b", *"efghi"))
    rows = [[e, f, g, h, sep, a, b, sep, cls], [g, h, i, sep, a, b, sep, cls], [sep, a, sep, cls]]
    assert lists(encoded.rows) == rows
    assert encoded.labels.tolist() == [[0, 0], [2, 3], [0, 0]]
    (batch,) = ExampleBatches(encoded, 4, shapes=1).evaluation_dataset().as_numpy_iterator()
    [segments] = batch["segment_ids"][batch["index"] == 1]
    assert segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, *[0] * (len(segments) - 8)]


def test_batches_carry_two_positions(vocabulary):
    def batches_of(*answers):
        examples = Questions(list("12345"), ["q"] * 5, ["a b c d e f g"] * 5, [answers] * 5)
        room = 16, SpanLimits(8, 4)
        return ExampleBatches(encode_question_examples(vocabulary, examples, *room), 4)

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
    options = 128, SpanLimits(40, 32)
    encoded = encode_question_examples(bert, examples, *options)
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
