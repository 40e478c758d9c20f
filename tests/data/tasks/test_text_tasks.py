"""Tests of text-to-text inputs and targets, and of prompts."""

import dataclasses
import gzip

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.sources.names import Source
from macaron_tf.data.tasks.definitions import TASKS, get_task
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.prompts import (
    TEMPLATES,
    Template,
    classification_prompts,
    question_prompts,
    read_last_words,
    read_table,
    summary_prompts,
    translation_prompts,
)
from macaron_tf.data.tasks.questions import Answer, Questions
from macaron_tf.data.tasks.text_tasks import (
    answer_text,
    as_texts,
    in_one_line,
    questions_as_texts,
    read_answer,
    read_answers,
    source_text,
    source_texts,
)
from tests.harness import refuses


def examples_of(first, second, labels):
    labels = None if labels is None else np.array(labels)
    return Examples((first,) if second is None else (first, second), labels)


def test_the_papers_examples():
    """Inputs and targets have the format of Raffel et al. 2020, appendix D."""
    pairs = as_texts(get_task("sst2"), examples_of(["it is  so\nfine "], None, [1]))
    assert pairs == [("sst2 sentence: it is so fine", "positive")]
    pairs = as_texts(get_task("rte"), examples_of(["A."], ["B."], [1]))
    assert pairs == [("rte sentence1: A. sentence2: B.", "not_entailment")]
    pairs = as_texts(get_task("stsb"), examples_of(["a"], ["b"], [3.25]))
    assert pairs == [("stsb sentence1: a sentence2: b", "3.2")]
    assert as_texts(get_task("cola"), examples_of(["a"], None, None)) == [("cola sentence: a", "")]
    pairs = as_texts(get_task("mnli"), examples_of(["A b."], ["C."], [2]))
    assert pairs == [("mnli hypothesis: C. premise: A b.", "contradiction")]
    asked = Questions(
        ["1"], ["Who?"], ["Ann  Lee sleeps."], [(Answer("Ann  Lee", 0), Answer("A", 0))]
    )
    assert questions_as_texts(asked) == [("question: Who? context: Ann Lee sleeps.", "Ann Lee")]
    assert questions_as_texts(dataclasses.replace(asked, labels=None))[0][1] == ""


def test_sources_in_the_graph_are_the_same():
    lines = ["a  b\tc\td", " a\u00a0b \u3000", "a\x0b\x1c\x85b\t", "", "\\1 \\"]
    for name in ("rte", "sst2", "mnli", "squad"):
        task = get_task(name)
        expected = []
        for line in lines:
            first, tab, second = line.partition("\t")
            expected.append(source_text(task, first, second if tab else None))
        found = source_texts(task, tf.constant(lines)).numpy()
        assert [line.decode() for line in found] == expected
    assert source_text(get_task("sst2"), "good", "film") == "sst2 sentence: good film"
    spaces = [f"a{chr(code)}b" for code in range(1, 0x3100) if not chr(code).isalnum()]
    found = in_one_line(tf.constant(spaces)).numpy()
    assert [line.decode() for line in found] == [" ".join(line.split()) for line in spaces]


def test_answers_come_back():
    for task in TASKS.values():
        if task.kind == "classification":
            for label in range(task.num_classes) if task.labels else (0.0, 0.6, 3.8, 5.0):
                assert read_answer(task, answer_text(task, label)) == pytest.approx(label)
    task = get_task("mrpc")
    assert read_answer(task, "Not _ equivalent ") == 0
    assert read_answer(task, "equivalent equivalent") is None
    assert read_answer(get_task("stsb"), "3 . 8") == 3.8
    assert read_answer(get_task("stsb"), "3.8.1") is None
    task = get_task("mnli")
    found = read_answers(task, ["neutral", "what", "", "entailment"], np.array([1, 2, 0, 0]))
    np.testing.assert_array_equal(found, [1, 0, 1, 0])
    found = read_answers(get_task("cola"), ["acceptable", "what"], np.array([1, 1]))
    np.testing.assert_array_equal(found, [1, -1])
    found = read_answers(get_task("stsb"), ["7.0", "no", "2.4"], np.zeros(3))
    np.testing.assert_allclose(found, [5.0, 0.0, 2.4])


FILMS = examples_of(["a film", "a bore"], None, [1, 0])


def test_every_classification_task_has_a_template_of_its_texts_and_classes():
    asked = {t.name: t for t in TASKS.values() if t.kind == "classification" and t.labels}
    assert set(TEMPLATES) == set(asked)
    for name, template in TEMPLATES.items():
        assert len(template.words) == len(asked[name].labels) == len(set(template.words))
        assert ("{second}" in template.text) == bool(asked[name].second)


def test_examples_become_prompts():
    one, two = classification_prompts(get_task("sst2"), FILMS, TEMPLATES["sst2"])
    assert one.query == "Review: a film\nSentiment:"
    assert (one.answers, one.choices, one.label) == (("positive",), ("negative", "positive"), 1)
    assert two.answers == ("negative",)
    assert TEMPLATES["sst2"].query("N/A", "N/A") == "Review: N/A\nSentiment:"
    questions = Questions(["1"], ["Who?"], ["Ann sleeps."], [(Answer("Ann", 0),)])
    for style, (before, asked) in (
        ("gpt2", ("", "Q: {}\nA:")),
        ("gpt3", ("Background: ", "Q: {}\nA:")),
    ):
        [prompt] = question_prompts(questions, style)
        text = f"{before}{questions.contexts[0]}\n" + asked.format(questions.questions[0])
        assert prompt.query == text
    [prompt] = question_prompts(questions)
    assert prompt.query == "Ann sleeps.\nQuestion: Who?\nAnswer:"
    assert prompt.answers == ("Ann",) and not prompt.choices


def test_templates_that_cannot_be():
    for text in ("{third}", "{first.third}", "{first[third]}"):
        refuses("or a field other than", Template, text, ("a", "b"))
    refuses("does not contain .first.", Template, "Sentiment:", ("a", "b"))


@pytest.mark.parametrize(
    ("task", "examples", "template", "message"),
    [
        ("sst2", FILMS, Template("{first}", ("a",)), "2 classes, but the template has 1 word:"),
        ("sst2", Examples(FILMS.texts, None), TEMPLATES["sst2"], "no labels"),
        ("stsb", FILMS, TEMPLATES["sst2"], "is not a classification task"),
    ],
)
def test_examples_that_cannot_be_asked(task, examples, template, message):
    refuses(message, classification_prompts, get_task(task), examples, template)


def test_tables_of_choices_and_of_answers(table):
    def read(*lines):
        return read_table(Source.of(table(*lines)), "all")

    [prompt] = read("question\tchoice1\tchoice2\tanswer", "sky?\tred\tblue\t2")
    assert prompt.choices == ("red", "blue") and prompt.label == 1
    assert prompt.query == "Question: sky?\nAnswer:" and prompt.answers == ("blue",)
    [prompt] = read("answer\tquestion", "blue\tsky?")
    assert prompt.answers == ("blue",) and not prompt.choices
    refuses("line 1 has no columns named 'answer'", read, "question\tchoice1\tchoice2")
    refuses("table.tsv: 'choice1' is the only choice col", read, "question\tchoice1\tanswer")
    refuses("1 to 2", read, "question\tchoice1\tchoice2\tanswer", "a\tb\tc\t3")


def test_passages_whose_last_word_is_asked(tmp_path):
    file = tmp_path / "dev.txt.gz"
    file.write_bytes(gzip.compress(b"he ate the apple\n\nshe saw him\n"))
    prompts = read_last_words(Source("lambada", str(file)), "all")
    assert [p.answers for p in prompts] == [("apple",), ("him",)]
    assert prompts[0].bare_query == "he ate the" and prompts[0].query == "he ate the ____ . ->"
    file.write_bytes(gzip.compress(b"he\n"))
    refuses("has a single word", read_last_words, Source("lambada", str(file)), "all")


def test_pairs_are_asked_as_the_papers_of_gpt_2_and_3_ask_them():
    pairs = [("A dog\nruns.", "Un chien court."), ("", "nothing"), ("An ox.", " ")]
    [prompt] = summary_prompts(pairs)
    assert (prompt.query, prompt.answers) == ("A dog runs.\nTL;DR:", ("Un chien court.",))
    [prompt] = translation_prompts(pairs, "fr", "gpt2")
    assert (prompt.query, prompt.bare_query) == ("A dog runs. =", None)
    [prompt] = translation_prompts(pairs, "fr", "gpt3")
    assert prompt.bare_query == "Q: What is the French translation of A dog runs. A:"
