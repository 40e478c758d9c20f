"""Few-shot evaluation of a toy language: the next letter is the one before."""

import json

import numpy as np

from experiments.few_shot.__main__ import main
from experiments.few_shot.evaluate import Asker, baselines, draw_shots, evaluate
from experiments.few_shot.tasks import PromptTask
from experiments.generate.run import open_model
from macaron_tf.data.tasks.prompts import Prompt

LETTERS = "abcdefghij"


def letters(count, seed):
    """Prompts whose answer is the letter before, not another one."""
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


def test_shots_are_drawn_by_seed_and_go_on():
    task = PromptTask("letters", "choice", letters(4, 1), letters(20, 2))
    assert draw_shots(task, 3, 1) == draw_shots(task, 8, 1)[:3]
    assert draw_shots(task, 8, 1) != draw_shots(task, 8, 2)


def test_files_of_ones_own_become_a_table_and_figures(language_run, tmp_path, capsys):
    passages = [" ".join(letter * 6) for letter in LETTERS for _ in range(2)]
    (tmp_path / "words.txt").write_text("\n".join(passages))
    rows = [f"{letter} {letter}\t{letter}\t{'x'}\t1" for letter in LETTERS]
    (tmp_path / "t.tsv").write_text("question\tchoice1\tchoice2\tanswer\n" + "\n".join(rows))
    rows = [f"{letter} {letter}\t{letter}" for letter in LETTERS]
    (tmp_path / "free.tsv").write_text("question\tanswer\n" + "\n".join(rows))
    out = tmp_path / "out"
    files = [f"lambada:{tmp_path}/words.txt", f"tsv:{tmp_path}/t.tsv", f"tsv:{tmp_path}/free.tsv"]
    arguments = [
        language_run,
        "--task",
        *files,
        "--shots",
        "0",
        "1",
        "--seeds",
        "1",
        "2",
        "--calibrate",
    ]
    assert main([*arguments, "--out", str(out)]) == 0
    table = capsys.readouterr().out
    assert table.count("\n| words.txt |") == 2 and table.count("\n| t.tsv |") == 2
    assert " ± " in table and "chance | majority" in table
    record = json.loads((out / "few_shot.json").read_text())
    assert len(record["runs"]) == 3 * 3
    [last_word] = [r for r in record["runs"] if r["task"] == "words.txt" and not r["shots"]]
    assert last_word["score"] > 0.8 and last_word["perplexity"] < 5
    assert (out / "few_shot.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "sizes.png").exists()


def test_classes_are_asked_by_their_words(language_run, tfds_dir, tmp_path, capsys, refused):
    common = ["--shots", "0", "--max-examples", "8", "--data-dir", tfds_dir]
    out = str(tmp_path / "out")
    assert main([language_run, "--task", "rte", "cola", *common, "--out", out]) == 0
    table = capsys.readouterr().out
    assert "| rte | accuracy | 8 |" in table and "| cola | matthews | 8 |" in table
    for more, words in (
        (["--task", "stsb"], "not asked in words"),
        (["--task", "rte", "--words", "a", "b"], "--template and --words"),
        (["--task", "rte", "--template", "{first}", "--words", "a"], "1 words for the 2"),
        (["--task", "rte", "--shots", "-1"], "--shots -1"),
        (["--task", "nothing"], "no task 'nothing'"),
    ):
        refused(main, [language_run, *common, *more, "--out", out], words, tmp_path)
