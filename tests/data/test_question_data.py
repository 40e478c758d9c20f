"""SQuAD's questions, from files and from TFDS."""

import json

import pytest

from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.questions import Answer, read_questions
from macaron_tf.errors import UserError

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
    with pytest.raises(UserError, match="'q2' has no answer.*the task squad2"):
        read_questions(SQUAD, "train", source=source)


@pytest.mark.parametrize("start", [-4, 0, 12, 14, 400])
def test_a_wrong_place_is_refused(start, tmp_path):
    source = write(tmp_path / "a.json", question("q1", ("Rome", start)))
    with pytest.raises(UserError, match=f"a.json, question 'q1': the answer 'Rome'.* {start} of"):
        read_questions(SQUAD, "train", source=source)


def test_answers_may_be_secret_in_a_test_set(tmp_path):
    one = question()
    del one["answers"]
    write(tmp_path / "test.json", one)
    source = f"squad:{tmp_path}/{{split}}.json"
    assert read_questions(SQUAD, "test", source=source).labels is None
    write(tmp_path / "train.json", one)
    with pytest.raises(UserError, match="'answers' is missing"):
        read_questions(SQUAD, "train", source=source)


def test_half_a_character_keeps_the_others_places(tmp_path):
    source = write(tmp_path / "a.json", question("q1", ("Rome", 4)), context="x\ud83d, Rome")
    found = read_questions(SQUAD, "train", source=source)
    assert found.contexts == ["x?, Rome"]


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.json"
    for text, words in (
        ("{", "is not JSON"),
        ("[1]", "'data' is not a list"),
        ('{"data": [3]}', r"data\[0\]: the field 'paragraphs'"),
        ('{"data": []}', "holds no question"),
        ("\udcff", "is not JSON"),
    ):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(UserError, match=words):
            read_questions(SQUAD, "train", source=f"squad:{path}")
    with pytest.raises(UserError, match="unknown source 'tsv:a'"):
        read_questions(SQUAD, "train", source="tsv:a")
    with pytest.raises(UserError, match="cannot read"):
        read_questions(SQUAD, "train", source=f"squad:{tmp_path}/none.json")


def test_tfds(tfds_dir):
    found = read_questions(SQUAD, "validation", tfds_dir)
    assert len(found) == 138 and all(len(answers) >= 1 for answers in found.labels)
    text, start = found.labels[0][0]
    assert found.contexts[0][start : start + len(text)] == text
    with pytest.raises(UserError, match="no field 'id'"):
        read_questions(SQUAD, "train", tfds_dir, source="tfds:glue/rte")
