"""Tests of language models on a toy language: pre-training, completion, scoring, prompting.

Each document of the toy language repeats one letter.
"""

import json
import pathlib
import shutil
import types

import numpy as np
import pytest

from experiments import registry
from experiments.few_shot.__main__ import main as few_shot
from experiments.few_shot.evaluate import Asker, evaluate
from experiments.few_shot.tasks import PromptTask, baselines, draw_shots, read_task
from experiments.generate.__main__ import main
from experiments.generate.writing import open_model
from experiments.pretrain.__main__ import main as pretrain
from experiments.pretrain.run import PretrainingRecipe
from macaron_tf.data.tasks.prompts import Prompt
from macaron_tf.decoding import GenerationConfig, TextScorer
from macaron_tf.training.progress import read_lines
from tests.harness import refuses
from tests.toys.decoding import llama_2
from tests.toys.pretraining import LETTERS, flags, prepare, toy_settings


@pytest.mark.quick
@pytest.mark.parametrize("recipe", [pytest.param("gpt_tiny", marks=pytest.mark.slow), "gpt2_tiny"])
def test_the_next_token_is_learnt_and_none_filled_in(
    recipe, language_run, source, tmp_path, ran, refused
):
    run = pathlib.Path(language_run)
    if recipe == "gpt_tiny":
        run, settings = tmp_path / "run", toy_settings(source)
        corpus = prepare(recipe, str(tmp_path / "corpus"), settings)
        output = ran(pretrain, "train", recipe, run, "--corpus", corpus, *flags(settings)).out
        assert " fill " not in output and f"experiments.generate complete {run}" in output
    lines = read_lines(run / "metrics.jsonl")
    assert lines[-1]["loss"] < lines[0]["loss"]
    output = ran(pretrain, "evaluate", run, "--corpus", run.parent / "corpus").out
    scores = dict(line.split()[:2] for line in output.splitlines())
    # In nine of ten positions, only the letter before or a full stop can follow.
    assert float(scores["perplexity"]) < 4.0
    refused(pretrain, ["fill", run, "a [MASK]"], "cannot fill [MASK]")


@pytest.mark.quick
def test_complete_goes_on_with_what_the_model_has_learnt(language_run, ran):
    output = ran(main, "complete", language_run, "c c c c", "e e e", "--temperature", "0").out
    lines = output.splitlines()
    assert len(lines) == 2
    for line, letter in zip(lines, "ce", strict=True):
        assert line.startswith(f"{letter} {letter} {letter}")
        assert line.count(letter) > len(line) / 3


def test_a_seed_repeats_and_samples_count_up_from_it(language_run, ran):
    def sampled(seed, *more):
        arguments = ["sample", language_run, "--max-tokens", 9, "--seed", seed, *more]
        return ran(main, *arguments).out.splitlines()

    first, second = sampled(4, "--samples", 2)
    assert [second] == sampled(5) and first != second


def test_a_stream_says_what_complete_says(language_run):
    generator = open_model(language_run).task.generator
    config = GenerationConfig(temperature=1.5, top_p=0.95, num_samples=2, max_tokens=8)
    texts = ["c c", "", "naïve ."]
    for text, completions in zip(texts, generator.complete(texts, config, seed=3), strict=True):
        for k, completion in enumerate(completions):
            assert "".join(generator.stream(text, config, seed=3 + k)) == completion.text
            assert 1 <= completion.length <= 8


def test_score_says_how_likely_texts_are(language_run, tmp_path, ran, monkeypatch):
    (tmp_path / "a.txt").write_text("d d d d .\n\n  d d d d d .\n" * 9)
    (tmp_path / "b.txt").write_text("d q c z .\nx d y d w .\n" * 9)
    files = [tmp_path / "a.txt", tmp_path / "b.txt", "--output", tmp_path / "scores.json"]
    assert ran(main, "score", language_run, *files).out.count(" per word; ") == 2
    assert ran(main, "score", language_run, files[0], files[0]).out.count(" per word; ") == 2
    record = json.loads((tmp_path / "scores.json").read_text())
    usual, odd = record["files"]
    # Counts exclude indentation, empty lines and the last line's end.
    assert usual["words"] == 9 * 11 and usual["bytes"] == 9 * 22 - 1
    assert 1 < usual["token_perplexity"] < odd["token_perplexity"]
    monkeypatch.setattr(TextScorer, "text_ids", lambda self, _: [self.vocabulary.unk_id, 9])
    said = ran(main, "score", language_run, *files[:1]).err
    assert "a.txt: 1 of 2 tokens are unknown to the vocabulary" in said


def test_a_text_that_cannot_go_on_is_refused_in_a_sentence(language_run, tmp_path, refused):
    other = tmp_path / "other"
    other.mkdir()
    (other / "recipe.json").write_text('{"kind": "translation"}')
    for arguments, words in (
        (["complete", str(other), "a"], "experiments.translate translate"),
        (["complete", str(tmp_path), "a"], "is not a run"),
        (["complete", language_run, "a " * 40], "shorten the prompt"),
        (["complete", language_run, "a", "--top-p", "0"], "top_p"),
        (["sample", language_run, "--checkpoint", "9"], "has no checkpoint 9"),
        (["score", language_run, str(tmp_path / "none.txt")], "cannot read"),
        (["score", language_run, "x", "--stride", "0"], "--stride 0"),
    ):
        refused(main, arguments, words, tmp_path)


def test_a_masked_model_is_sent_to_fill(language_run, tmp_path):
    shutil.copytree(language_run, tmp_path, dirs_exist_ok=True)
    model = json.loads(pathlib.Path(language_run, "model.json").read_text())
    model["usage"]["objective"] = "masked_language"
    (tmp_path / "model.json").write_text(json.dumps(model))
    refuses("pretrain fill", open_model, tmp_path)


@pytest.mark.parametrize("kind", ["iid_spans", "mass_style", "prefix_lm"])
def test_gaps_are_what_the_corruption_has_taught(kind, t5_run, tmp_path, ran, refused):
    recipe = registry.load("t5_tiny", PretrainingRecipe, [f"corruption.kind={kind}"])
    shutil.copytree(t5_run, tmp_path, dirs_exist_ok=True)
    model = json.loads((tmp_path / "model.json").read_text())
    model["usage"] = recipe.usage()
    (tmp_path / "model.json").write_text(json.dumps(model))
    generator = open_model(tmp_path).task.generator
    gaps = [number - generator.vocabulary.size for number in generator.row("a [MASK] b [MASK] c")]
    taught = {"iid_spans": [0, 1], "mass_style": [0, 0], "prefix_lm": []}[kind]
    assert [gap for gap in gaps if gap >= 0] == taught
    words = ["complete", tmp_path, "a [MASK] c", "--max-tokens", "2"]
    if taught:
        ran(main, *words)
    else:
        refused(main, words, "cannot fill [MASK], because its corruption.kind marks no gaps")


def letters(count, seed):
    """Returns prompts that repeat one letter, each with two letters as choices.

    The right choice is the repeated letter.
    """
    rng = np.random.default_rng(seed)
    prompts = []
    for _ in range(count):
        right, wrong = rng.permutation(list(LETTERS))[:2]
        label = int(rng.integers(2))
        choices = (right, wrong) if label == 0 else (wrong, right)
        prompts.append(Prompt(" ".join(right * 4), (right,), choices, label))
    return prompts


def test_the_model_answers_better_than_chance_and_calibration_is_done(language_run):
    task = PromptTask("letters", "choice", letters(40, 1), letters(20, 2), content_free=("", "."))
    opened = open_model(language_run)
    records = evaluate(opened, [task], [0, 2], [1, 2])
    assert [(one["shots"], one["seed"]) for one in records] == [(0, None), (2, 1), (2, 2)]
    assert records[0]["score"] > 0.8
    assert records[0]["shown"] == 0 and 0 < records[1]["shown"] <= 2
    guess = baselines(task)
    assert abs(guess["chance"] - 0.5) < 0.1 and 0.2 < guess["majority"] < 0.8
    found = Asker(opened, "sum", calibrate=True).ask(task, [])
    assert found["score"] > 0.8
    sums, means = (
        Asker(opened, kind)._choice_scores([[9]], [[[9], [9, 8]]]) for kind in ("sum", "token")
    )
    np.testing.assert_allclose(means, sums / [[1, 2]])


def test_shots_are_drawn_by_seed_and_go_on():
    task = PromptTask("letters", "choice", letters(4, 1), letters(20, 2))
    assert draw_shots(task, 3, 1) == draw_shots(task, 8, 1)[:3]
    assert draw_shots(task, 8, 1) != draw_shots(task, 8, 2)


def rows_of_choices(*choices: str) -> str:
    """Returns a tab-separated table of two equal questions with the given answer choices."""
    names = [f"choice{n}" for n in range(1, len(choices) + 1)]
    lines = (["question", "answer", *names], *2 * [["o o", "1", *choices]])
    return "".join("\t".join(line) + "\n" for line in lines)


def test_tables_that_cannot_be_asked_are_refused(tmp_path):
    for asked, shown, words in (
        (rows_of_choices("o", "x"), "question\tanswer\no\to\n", "but 0 in the training split"),
        (rows_of_choices("o", "x"), rows_of_choices("o", "x", "i"), "but 3 in the training split"),
    ):
        (tmp_path / "t-validation.tsv").write_text(asked)
        (tmp_path / "t-train.tsv").write_text(shown)
        refuses(words, read_task, f"tsv:{tmp_path}/t-{{split}}.tsv")
    for pairs in ("a\t\n\tb\n", "a\tb\nc\t\n"):
        (tmp_path / "pairs.tsv").write_text(pairs)
        refuses("provides only 0 and ", read_task, f"translation:en-fr:tsv:{tmp_path}/pairs.tsv")


def test_files_of_ones_own_become_a_table_and_figures(language_run, tmp_path, ran, refused, capsys):
    passages = [" ".join(letter * 6) for letter in LETTERS for _ in range(2)]
    (tmp_path / "words.txt").write_text("\n".join(passages))
    rows = [f"{letter} {letter}\t{letter}\t{'x'}\t1" for letter in LETTERS]
    (tmp_path / "t.tsv").write_text("question\tchoice1\tchoice2\tanswer\n" + "\n".join(rows))
    rows = [f"{letter} {letter}\t{letter}" for letter in LETTERS]
    (tmp_path / "free.tsv").write_text("question\tanswer\n" + "\n".join(rows))
    out = tmp_path / "out"
    files = [f"lambada:{tmp_path}/words.txt", f"tsv:{tmp_path}/t.tsv", f"tsv:{tmp_path}/free.tsv"]
    options = ["--shots", "0", "1", "--seeds", "1", "2", "--calibrate"]
    table = ran(few_shot, language_run, "--task", *files, *options, "--out", out).out
    assert table.count("\n| words.txt |") == 2 and table.count("\n| t.tsv |") == 2
    assert " ± " in table and "chance | majority" in table
    record = json.loads((out / "few_shot.json").read_text())
    assert len(record["runs"]) == 3 * 3
    [last_word] = [r for r in record["runs"] if r["task"] == "words.txt" and not r["shots"]]
    assert last_word["score"] > 0.8 and last_word["perplexity"] < 5
    assert (out / "few_shot.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "sizes.png").exists()
    ask = [language_run, "--task", *files[:1], "--out", tmp_path / "words.txt"]
    refused(few_shot, ask, "--out", tmp_path)  # a file in the way of OUT is refused first
    ask = [language_run, "--task", "sst2", "--template", "{first}", "--out", out]
    refused(few_shot, [*ask, "--words", "good", "good"], "has an empty or repeated word")
    refused(
        few_shot, [*ask, "--shots", "1", "1"], "--shots 1 1 repeats a value: give each value once"
    )
    # An invalid second model is refused before the first is asked and OUT is made.
    ask = [language_run, "--out", tmp_path / "other", "--task"]
    refused(few_shot, [tmp_path / "nowhere", *ask, *files], "nowhere is not a run", tmp_path)
    refused(few_shot, [*ask, *files[::2], "--calibrate"], "but --task names no such task", tmp_path)
    (tmp_path / "long.tsv").write_text(rows_of_choices("x", "o " * 99))
    ask += [f"tsv:{tmp_path}/long.tsv", "--shots", "0"]
    assert few_shot([str(word) for word in ask]) == 2
    assert "error: --task long.tsv: answer 2 to score has " in capsys.readouterr().err


class Reader:
    """A fake byte-level language model that continues every prompt with `says`."""

    window, trained_length, prefix = 500, None, ()

    def __init__(self, says):
        self.says, self.rows, self.scored = says, [], []
        self.task = self.generator = self.vocabulary = self

    def scorer(self, window):
        return self

    def score(self, pairs):
        self.scored += [bytes(ids).decode() for ids, _ in pairs]
        ones = np.ones(len(pairs))
        return types.SimpleNamespace(log_probs=-ones, lengths=ones)

    def encode_lines(self, texts):
        return [[*text.encode()] for text in texts]

    def continue_rows(self, rows, config):
        self.rows, self.config = [bytes(row).decode() for row in rows], config
        return [[types.SimpleNamespace(text=self.says)] for _ in rows]


@pytest.mark.parametrize(
    ("style", "prompt", "separator"),
    [("plain", "Question: o o Answer:", " "), ("gpt3", "Q: o o\nA:", "\n\n")],
)
def test_a_prompt_and_its_answer_have_the_ids_of_the_whole_text(style, prompt, separator, tmp_path):
    """A Llama 2 adds a space to each text that it encodes, but none before an answer."""
    (tmp_path / "q.tsv").write_text(rows_of_choices("Paris", "a cat"))
    task, reader = read_task(f"tsv:{tmp_path}/q.tsv", style=style), Reader("")
    reader.vocabulary, pairs = llama_2(), []

    def score(given):
        pairs.extend(given)
        return types.SimpleNamespace(log_probs=np.ones(len(given)), lengths=np.ones(len(given)))

    reader.score, encode = score, reader.vocabulary.processor.encode
    for shown in ("", f"{prompt} Paris{separator}"):
        pairs.clear()
        Asker(reader, calibrate=True).ask(task, task.pool[: bool(shown)])
        for answer, (context, ids) in zip((" Paris", " a cat"), pairs[:2], strict=True):
            assert [*context, *ids] == encode(shown + prompt + answer)
            assert "".join(map(reader.vocabulary.piece_name, ids)) == answer


def test_published_prompts_to_the_letter(tmp_path):
    """Prompts equal the published prompts; greedy translations are cut to the first sentence."""
    sides = {"en": "One.\nTwo.\nThree.\nFour.\n", "fr": "Un.\nDeux.\nTrois.\nQ.\n"}
    for side, lines in sides.items():
        (tmp_path / f"t.{side}").write_text(lines)
    name = f"translation:en-fr:text:{tmp_path}/t.en,{tmp_path}/t.fr"
    reader = Reader(" Deux. Trois.\nFour. = Q.")
    for style, shots, asked in (
        ("plain", 0, "Two. ="),
        ("gpt2", 1, "One. = Un.\nTwo. ="),
        ("gpt3", 1, "One. = Un.\n\nTwo. ="),
        ("gpt3", 0, "Q: What is the French translation of Two. A:"),
    ):
        task = read_task(name, style=style)
        found = Asker(reader).ask(task, task.pool[:shots])
        assert reader.rows[0] == asked and len(reader.rows) == 3
        assert reader.config.temperature == 0 and 0 < found["chrf"] < 1
    assert task.free_form.answers([reader.says]) == ["Deux."]
    (tmp_path / "q.tsv").write_text("question\tanswer\n" + "Who?\tI\nWhat?\tIt\n")
    task = read_task(f"tsv:{tmp_path}/q.tsv", style="gpt2")
    Asker(reader).ask(task, task.pool)
    assert reader.rows == ["Q: Who?\nA: I\nQ: What?\nA:"]
    (tmp_path / "q.tsv").write_text(rows_of_choices("o", "x"))
    task = read_task(f"tsv:{tmp_path}/q.tsv", style="gpt3")
    Asker(reader, calibrate=True).ask(task, task.pool)
    assert reader.scored[0] == "Q: o o\nA: o\n\nQ: o o\nA:"
    assert reader.scored[2] == "Q: o o\nA: o\n\nQ: N/A\nA:"
    task = read_task(name.replace("translation:", "summarization:"))
    assert task.free_form.answers(["\n\nA b. C d! E? F."]) == ["A b. C d! E?"]
    Asker(reader).ask(task, [])
    assert reader.rows[0] == "Two.\nTL;DR:"
    assert (reader.config.top_k, reader.config.max_tokens) == (2, 100)
    refuses(
        "does not have the form translation:FROM-TO:SOURCE", read_task, "translation:en:text:a,b"
    )


def test_published_prompts_by_the_command(language_run, tmp_path, ran):
    for side in ("one", "two"):
        (tmp_path / f"t.{side}").write_text("".join(f"{one} {one}\n" for one in LETTERS))
    pairs = f"one-two:text:{tmp_path}/t.one,{tmp_path}/t.two"
    tasks = ["--task", f"translation:{pairs}", f"summarization:{pairs}", "--prompts", "gpt3"]
    out = ["--shots", "0", "1", "--seeds", "1", "--out", tmp_path / "out"]
    table = ran(few_shot, language_run, *tasks, *out).out
    assert "| one-two | BLEU |" in table and "| summarization | ROUGE-1, 2, L |" in table


def test_classes_are_asked_by_their_words(language_run, tfds_dir, tmp_path, ran, refused):
    common = ["--shots", "0", "--max-examples", "8", "--data-dir", tfds_dir]
    common += ["--out", tmp_path / "out"]
    table = ran(few_shot, language_run, language_run, "--task", "rte", "cola", *common).out
    # Runs with the same name have separate rows.
    assert table.count("| rte | accuracy | 8 |") == table.count("| cola | matthews | 8 |") == 2
    for more, words in (
        (["--task", "stsb"], "no prompt template exists for the task"),
        (["--task", "rte", "--words", "a", "b"], "--template and --words"),
        (
            ["--task", "rte", "--template", "{first}", "--words", "a"],
            "2 classes, but the template has 1 word:",
        ),
        (["--task", "rte", "--shots", "-1"], "--shots -1"),
        (["--task", "nothing"], "no task is called 'nothing'"),
        (["--task", "rte", "rte"], "two values of --task have the same name, 'rte'"),
        (
            ["--task", "squad", "--template", "{first}", "--words", "a", "b"],
            "--template applies only to classification tasks, but squad",
        ),
    ):
        refused(few_shot, [language_run, *common, *more], words, tmp_path)
