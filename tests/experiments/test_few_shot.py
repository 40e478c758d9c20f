"""Tests of zero- and few-shot prompts, on a language model of a toy language.

Each document of the toy language repeats one letter.
"""

import json
import types

import numpy as np
import pytest

from experiments.few_shot import tasks
from experiments.few_shot.commands import main
from experiments.few_shot.evaluate import ask, evaluate
from macaron_tf.data.tasks.definitions import TASKS
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.evaluation.glue import accuracy
from macaron_tf.model import load
from tests.toys.decoding import llama_2
from tests.toys.pretraining import LETTERS


def test_every_classification_task_has_a_template_of_its_texts_and_classes():
    asked = {t.name: t for t in TASKS.values() if t.kind == "classification" and t.labels}
    assert set(tasks.TEMPLATES) == set(asked)
    for name, template in tasks.TEMPLATES.items():
        assert len(template.words) == len(asked[name].labels) == len(set(template.words))
        assert ("{second}" in template.text) == bool(asked[name].second)


def test_examples_become_prompts():
    examples = Examples((["a film", "a bore"],), np.array([1, 0]))
    one, two = tasks.classification_prompts(examples, tasks.TEMPLATES["sst2"])
    assert one == tasks.Prompt("Review: a film\nSentiment:", "positive", 1)
    assert two.answer == "negative"


def letters_of(*prompts) -> tasks.PromptTask:
    return tasks.PromptTask("letters", *prompts, "accuracy", accuracy)


def words_task() -> tasks.PromptTask:
    """Returns a task that asks which letter a prompt repeats, with all letters as choices."""

    def prompts(count, seed):
        labels = np.random.default_rng(seed).integers(len(LETTERS), size=count).tolist()
        return [tasks.Prompt(" ".join(LETTERS[n] * 4), LETTERS[n], n) for n in labels]

    return letters_of(prompts(40, 1), prompts(20, 2), tuple(LETTERS))


def test_the_model_answers_better_than_chance(language_run):
    task, opened = words_task(), load(language_run)
    records = evaluate(opened, [task], [0, 2], [1, 2])
    assert [(one["shots"], one["seed"]) for one in records] == [(0, None), (2, 1), (2, 2)]
    assert records[0]["score"] > 0.8
    assert records[0]["shown"] == 0 and 0 < records[1]["shown"] <= 2
    guess = tasks.baselines(task)
    assert abs(guess["chance"] - 1 / len(LETTERS)) < 0.1 and guess["majority"] < 0.5


def test_shots_are_drawn_by_seed_and_go_on():
    task = words_task()
    assert tasks.draw_shots(task, 3, 1) == tasks.draw_shots(task, 8, 1)[:3]
    assert tasks.draw_shots(task, 8, 1) != tasks.draw_shots(task, 8, 2)


def test_answers_become_a_table_and_figures(language_run, tmp_path, ran, refused, monkeypatch):
    monkeypatch.setattr("experiments.few_shot.evaluate.read_task", lambda *given: words_task())
    out, options = tmp_path / "out", ["--shots", "0", "1", "--seeds", "1", "2"]
    table = ran(main, language_run, "--task", "letters", *options, "--out", out).out
    assert table.count("\n| letters |") == 2
    assert " ± " in table and "chance | majority" in table
    record = json.loads((out / "few_shot.json").read_text())
    assert len(record["runs"]) == 3 and record["runs"][0]["score"] > 0.8
    assert (out / "few_shot.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").touch()
    ask = [language_run, "--task", "letters", "--out", tmp_path / "file"]
    refused(main, ask, "--out", tmp_path)  # a file in the way of OUT is refused first


def test_a_prompt_and_its_answer_have_the_ids_of_the_whole_text():
    """A Llama 2 adds a space to each text that it encodes, but none before an answer."""
    vocabulary, pairs = llama_2(), []

    def score(given):
        pairs.extend(given)
        # The second answer is less probable, but not per token.
        return types.SimpleNamespace(log_probs=-np.array([3.0, 4.0]), lengths=np.array([1, 2]))

    scorer = types.SimpleNamespace(score=score, window=500, vocabulary=vocabulary)
    prompts = [tasks.Prompt("Question: o o\nAnswer:", "Paris", 0)]
    asked = letters_of(prompts, prompts, ("Paris", "a cat"))
    prompt = "Question: o o Answer:"
    for shown in ("", f"{prompt} Paris "):
        pairs.clear()
        assert ask(scorer, asked, prompts[: bool(shown)])["score"] == 0.0
        for answer, (context, ids) in zip((" Paris", " a cat"), pairs[:2], strict=True):
            assert [*context, *ids] == vocabulary.processor.encode(shown + prompt + answer)
            assert "".join(map(vocabulary.piece_name, ids)) == answer


@pytest.mark.slow
def test_classes_are_asked_by_their_words(
    language_run, tfds_dir, tmp_path, ran, refused, monkeypatch
):
    common = ["--shots", "0", "--max-examples", "8", "--data-dir", tfds_dir]
    common += ["--out", tmp_path / "out"]
    table = ran(main, language_run, language_run, "--task", "rte", "cola", *common).out
    # Runs with the same name have separate rows.
    assert table.count("| rte | accuracy | 8 |") == table.count("| cola | matthews | 8 |") == 2
    rte = ["--task", "rte"]
    template = tasks.Template(tasks.TEMPLATES["rte"].text, ("a", "o " * 99))
    monkeypatch.setitem(tasks.TEMPLATES, "rte", template)
    refused(main, [language_run, *common, *rte], "--task rte: answer 2 must have 1 to ", tmp_path)
