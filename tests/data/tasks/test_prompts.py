import gzip

import numpy as np

from macaron_tf.data.sources.names import Source
from macaron_tf.data.tasks.definitions import TASKS, get_task
from macaron_tf.data.tasks.prompts import (
    TEMPLATES,
    Template,
    classification_prompts,
    question_prompts,
    read_last_words,
    read_table,
)
from macaron_tf.data.tasks.questions import Answer, Questions
from macaron_tf.data.tasks.reading import Examples
from tests.harness import refuses


def examples(labels=(1, 0)):
    labels = None if labels is None else np.array(labels, np.int32)
    return Examples((["a film", "a bore"],), labels)


def test_every_classification_task_has_a_template_of_its_texts_and_classes():
    asked = {t.name: t for t in TASKS.values() if t.kind == "classification" and t.labels}
    assert set(TEMPLATES) == set(asked)
    for name, template in TEMPLATES.items():
        assert len(template.words) == len(asked[name].labels) == len(set(template.words))
        assert ("{second}" in template.text) == bool(asked[name].second)


def test_examples_become_prompts():
    one, two = classification_prompts(get_task("sst2"), examples(), TEMPLATES["sst2"])
    assert one.query == "Review: a film\nSentiment:"
    assert (one.answers, one.choices, one.label) == (("positive",), ("negative", "positive"), 1)
    assert two.answers == ("negative",)
    assert TEMPLATES["sst2"].query("N/A", "N/A") == "Review: N/A\nSentiment:"
    questions = Questions(["1"], ["Who?"], ["Ann sleeps."], [(Answer("Ann", 0),)])
    [prompt] = question_prompts(questions)
    assert prompt.query == "Ann sleeps.\nQuestion: Who?\nAnswer:"
    assert prompt.answers == ("Ann",) and not prompt.choices


def test_what_cannot_be_asked_is_refused():
    sst2 = get_task("sst2")
    for call, words in (
        (lambda: Template("{third}", ("a", "b")), "other fields"),
        (lambda: Template("Sentiment:", ("a", "b")), "does not say"),
        (lambda: classification_prompts(sst2, examples(), Template("{first}", ("a",))), "1 words"),
        (lambda: classification_prompts(sst2, examples(None), TEMPLATES["sst2"]), "no labels"),
        (
            lambda: classification_prompts(get_task("stsb"), examples(), TEMPLATES["sst2"]),
            "no classes",
        ),
    ):
        refuses(words, call)


def test_tables_of_choices_and_of_answers(tmp_path):
    file = tmp_path / "t.tsv"
    file.write_text("question\tchoice1\tchoice2\tanswer\nsky?\tred\tblue\t2\n")
    [prompt] = read_table(Source("tsv", str(file)), "all")
    assert prompt.choices == ("red", "blue") and prompt.label == 1
    assert prompt.query == "Question: sky?\nAnswer:" and prompt.answers == ("blue",)
    file.write_text("answer\tquestion\nblue\tsky?\n")
    [prompt] = read_table(Source("tsv", str(file)), "all")
    assert prompt.answers == ("blue",) and not prompt.choices
    for text, words in (
        ("question\tchoice1\tchoice2\n", "line 1: no column named 'answer'"),
        ("question\tchoice1\tanswer\n", "line 1: one choice alone"),
        ("question\tanswer\n", "no example"),
        ("question\tanswer\na\n", "line 2: 1 columns"),
        ("question\tanswer\na\t \n", "line 2: the text in column 'answer'"),
        ("question\tchoice1\tchoice2\tanswer\na\tb\tc\t3\n", "1 to 2"),
    ):
        file.write_text(text)
        refuses(words, read_table, Source("tsv", str(file)), "all")
    file = tmp_path / "dev.txt.gz"
    file.write_bytes(gzip.compress(b"he ate the apple\n\nshe saw him\n"))
    prompts = read_last_words(Source("lambada", str(file)), "all")
    assert [p.answers for p in prompts] == [("apple",), ("him",)]
    assert prompts[0].bare_query == "he ate the" and prompts[0].query == "he ate the ____ . ->"
    file.write_bytes(gzip.compress(b"he\n"))
    refuses("fewer than two words", read_last_words, Source("lambada", str(file)), "all")
