"""Tests of text-to-text inputs and targets."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.tasks.definitions import TASKS, get_task
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.questions import Answer, Questions
from macaron_tf.data.tasks.text_tasks import (
    answer_text,
    as_texts,
    in_one_line,
    questions_as_texts,
    read_answer,
    read_answers,
    source_texts,
)


def test_the_papers_examples():
    """Inputs and targets have the format of Raffel et al. 2020, appendix D."""
    for name, texts, label, text in (
        ("sst2", ["it is  so\nfine "], 1, "sst2 sentence: it is so fine -> positive"),
        ("rte", ["A.", "B."], 1, "rte sentence1: A. sentence2: B. -> not_entailment"),
        ("stsb", ["a", "b"], 3.25, "stsb sentence1: a sentence2: b -> 3.2"),
        ("mnli", ["A b.", "C."], 2, "mnli hypothesis: C. premise: A b. -> contradiction"),
        ("cola", ["a"], None, "cola sentence: a -> "),
    ):
        labels = None if label is None else np.array([label])
        [pair] = as_texts(get_task(name), Examples(tuple([text] for text in texts), labels))
        assert " -> ".join(pair) == text
    answers = Answer("Ann  Lee", 0), Answer("A", 0)
    asked = Questions(["1"], ["Who?"], ["Ann  Lee sleeps."], [answers])
    assert questions_as_texts(asked) == [("question: Who? context: Ann Lee sleeps.", "Ann Lee")]
    assert questions_as_texts(dataclasses.replace(asked, labels=None))[0][1] == ""


def test_sources_in_the_graph_are_the_same():
    lines = ["a  b\tc\td", " a\u00a0b \u3000", "a\x0b\x1c\x85b\t", "", "\\1 \\"]
    for name, before, between in (
        ("rte", "rte sentence1: ", " sentence2: "),
        ("sst2", "sst2 sentence: ", " "),
        ("mnli", "mnli hypothesis: ", " premise: "),
        ("squad", "question: ", " context: "),
    ):
        expected = []
        for line in lines:
            first, tab, second = line.partition("\t")
            texts = [first, *[second] * bool(tab)][:: -1 if name == "mnli" else 1]
            expected.append(" ".join(f"{before}{between.join(texts)}".split()))
        found = source_texts(get_task(name), tf.constant(lines)).numpy()
        assert [line.decode() for line in found] == expected
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
