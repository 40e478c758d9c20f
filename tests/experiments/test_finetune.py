"""The commands, from weights to scores and files, on a task that is learnt in seconds."""

import io
import json

import numpy as np
import pytest

from experiments.finetune.__main__ import main
from experiments.finetune.grid import combinations, markdown
from experiments.finetune.kinds import kind_of
from experiments.finetune.run import FinetuningRun, measure, preset
from experiments.recipe import override
from macaron_tf.data.tasks.definitions import TASKS, get_task
from macaron_tf.data.tasks.reading import Examples, read_examples
from macaron_tf.errors import UserError
from macaron_tf.training.checkpoints import CheckpointDirectory
from tests.experiments.task_toys import (
    PAIR_HEADER,
    check_resumed,
    scores_in,
    sentences,
    toy_flags,
    validations,
    without,
    write_table,
    write_toy,
)


def test_evaluate_says_what_the_training_has_measured(toy_run, toy, tmp_path, capsys):
    lines, run = validations(toy_run), FinetuningRun.open(toy_run)
    assert [line["step"] for line in lines] == [20, 40]
    assert {"loss", "accuracy", "score"} <= set(lines[0])
    assert lines[-1]["score"] > 0.95 and lines[-1]["loss"] < 0.3
    result = run.result()
    assert (result.reason, result.step) == ("max_steps", 40)
    assert result.best_score == max(line["score"] for line in lines)
    assert json.loads((toy_run / "recipe.json").read_text())["kind"] == "finetuning"
    assert dict(run.recipe.model_options)["hidden_dim"] == 32

    assert main(["evaluate", str(toy_run), "--output", str(tmp_path)]) == 0
    assert "50 examples of validation" in capsys.readouterr().out
    record = scores_in(tmp_path)
    assert record["step"] == result.best_step
    assert record["metrics"]["score"] == result.best_score
    assert len(record["predictions"]["validation"]) == 50
    other = ["--source", f"tsv:{toy}/test.tsv", "--output", str(tmp_path)]
    assert main(["evaluate", str(toy_run), *other]) == 0
    assert "10 examples of all" in capsys.readouterr().out


def test_predict_gives_one_line_for_each_line_in_order(toy_run, tmp_path, monkeypatch, capfd):
    pairs = sentences(300, seed=9)  # more than one chunk
    text = "".join(f"{sentence}\n" for sentence, _ in pairs[:299]) + "\n" + pairs[299][0]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["predict", str(toy_run)]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert len(rows) == 301
    right = [row[0] == label for row, (_, label) in zip(rows, pairs[:299], strict=False)]
    assert np.mean(right) > 0.9
    for row in rows:
        parts = [float(part) for part in row[1:]]
        assert sum(parts) == pytest.approx(1, abs=2e-4)
        assert row[0] == ("negative", "positive")[int(np.argmax(parts))]

    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"the plot was great\n" + b"very " * 2_000_000 + b"\n\xff dull\n")
    assert main(["predict", str(toy_run), "--input", str(source), "--output", str(target)]) == 0
    lines = target.read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("positive") and lines[2].startswith("negative")
    assert "line 3 is not UTF-8" in capfd.readouterr().err


def test_the_same_command_goes_on_where_it_stopped(tmp_path, capsys, refused):
    write_toy(tmp_path)

    def command(run, **settings):
        return ["train", "sst2", str(run), *toy_flags(tmp_path, **settings)]

    parts, settings = check_resumed(main, command, tmp_path, capsys)

    def again(words, **changes):
        changes = {"training__max_steps": 14, **settings, **changes}
        refused(main, command(parts, **changes), words, parts)

    for path, value in (("model__num_heads", 4), ("training__seed", 9), ("batch_size", 8)):
        again(f"{parts} was trained with", **{path: value})
    write_table(tmp_path / "train.tsv", sentences(240, seed=7))
    again("the training text is not what")


def test_a_grid_is_one_table_and_trains_nothing_twice(toy, toy_run, tmp_path, capsys):
    flags = toy_flags(toy, training__max_skipped_updates=3)
    flags = without(flags, "training.learning_rate", "batch_size")
    arguments = ["grid", "sst2", str(tmp_path), *flags, "--learning-rates", "0.01", "1e30"]
    arguments += ["--seeds", "1", "--batch-sizes", "16", "--baseline"]
    assert main(arguments) == 0
    assert "diverged" in capsys.readouterr().err
    record = json.loads((tmp_path / "grid.json").read_text())
    best, worst = record["combinations"]
    assert (best["learning_rate"], best["diverged"]) == (0.01, 0)
    assert best["mean"] == best["runs"][0]["score"] > 0.8 and best["deviation"] is None
    assert (worst["learning_rate"], worst["diverged"], worst["mean"]) == (1e30, 1, None)
    table = (tmp_path / "grid.md").read_text()
    assert f"| bert_tiny | {100 * best['mean']:.1f} |" in table
    assert "| baseline | 100.0 | 100.0 |" in table and "| diverged |" in table

    # Of every run only the checkpoint of its score is left, which can still be evaluated.
    runs = tmp_path / "sst2" / "bert_tiny"
    for run in record["runs"]:
        name = f"lr{run['learning_rate']:g}-batch16-steps40-seed{run['seed']}"
        kept = CheckpointDirectory(runs / name).steps()
        assert kept == ([] if run["best_step"] is None else [run["best_step"]])
    winner = runs / "lr0.01-batch16-steps40-seed1"
    assert main(["evaluate", str(winner), "--output", str(tmp_path)]) == 0
    assert f"score {best['mean']:.4f}" in capsys.readouterr().out
    # A run of a grid is what the same settings give alone.
    assert (winner / "metrics.jsonl").read_bytes() == (toy_run / "metrics.jsonl").read_bytes()

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert main(arguments) == 0
    assert "step " not in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert json.loads((tmp_path / "grid.json").read_text())["runs"] == record["runs"]


def test_a_grids_table_puts_seeds_together():
    common = {"model": "bert", "task": "cola", "batch_size": 16, "epochs": 3.0, "max_steps": 9}
    runs = [
        {**common, "learning_rate": rate, "seed": seed, "score": score, "metrics": {}, "reason": ""}
        for rate, scores in ((1e-3, (0.9, None)), (1e-4, (0.5, 0.7)))
        for seed, score in enumerate(scores)
    ]
    best, worst = found = combinations(runs)
    assert (best["learning_rate"], best["diverged"]) == (1e-4, 0)
    assert best["mean"] == pytest.approx(0.6)
    assert best["deviation"] == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert (worst["mean"], worst["deviation"], worst["diverged"]) == (0.9, None, 1)
    record = {"tasks": ["cola", "rte"], "models": ["bert"], "baselines": {}, "command": "grid"}
    table = markdown({**record, "planned": 5, "runs": runs, "combinations": found})
    assert "# Fine-tuning (4 of 5 runs)" in table and "over seeds (0, 1)" in table
    assert "| bert | 60.0 ± 14.1 |  |  |" in table
    assert "| cola | bert | 0.001 | 16 | 3 | 2 | 90.0 (diverged) |  |" in table


def test_the_servers_files(toy_run, toy, tmp_path, monkeypatch, refused):
    def read(task, split, data_dir, download, source):
        assert (split, source) == ("test", "tfds:glue/sst2")
        return read_examples(task, "validation", source=f"tsv:{toy}/{{split}}.tsv")

    monkeypatch.setattr("experiments.finetune.evaluate.read_examples", read)
    assert main(["submit", str(toy_run), str(tmp_path / "glue")]) == 0
    lines = (tmp_path / "glue" / "SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and len(lines) == 51
    wanted = [label == "positive" for _, label in sentences(50, seed=2)]
    assert np.mean([line.endswith("\t1") for line in lines[1:]] == np.array(wanted)) > 0.9
    twice = ["submit", str(toy_run), str(toy_run), str(tmp_path / "twice")]
    refused(main, twice, "give one run for each task", tmp_path)


def test_a_missing_test_set_is_one_sentence(toy_run, tfds_dir, tmp_path, refused):
    arguments = ["submit", str(toy_run), str(tmp_path / "glue"), "--data-dir", tfds_dir]
    refused(main, arguments, "glue/sst2 has no split 'test'", tmp_path)


def test_counting_words_is_a_baseline_for_every_kind_of_task(toy, tmp_path, capsys):
    output = tmp_path / "baseline.json"
    arguments = ["baseline", "sst2", "--source", f"tsv:{toy}/{{split}}.tsv"]
    assert main([*arguments, "--output", str(output)]) == 0
    assert json.loads(output.read_text())["score"] > 0.95
    texts = [text for text, _ in sentences(80, seed=4)]
    rows = [
        (a, b, 5 * len(set(a.split()) & set(b.split())) / len(set(a.split()) | set(b.split())))
        for a, b in zip(texts, texts[1:] + texts[:1], strict=True)
    ]
    for split, part in (("train", rows[:60]), ("validation", rows[60:])):
        write_table(tmp_path / f"{split}.tsv", part, PAIR_HEADER)
    assert main(["baseline", "stsb", "--source", f"tsv:{tmp_path}/{{split}}.tsv"]) == 0
    assert float(capsys.readouterr().out.split("score ")[-1]) > 0.7


def test_the_papers_numbers():
    recipe = preset("macaron", get_task("rte")).resolved(2490)
    assert (recipe.batch_size, recipe.epochs, recipe.max_length) == (32, 3, 128)
    training = recipe.training
    assert (training.max_steps, training.warmup_steps, training.validate_every) == (234, 23, 78)
    assert (training.learning_rate, training.schedule) == (5e-5, "linear")
    assert (training.epsilon, training.weight_decay) == (1e-6, 0.01)
    halved = override(recipe, ["training.accumulation_steps=2"]).resolved(2490)
    assert halved.training.max_steps == 117
    assert override(recipe, ["training.max_steps=50"]).resolved(2490).training.max_steps == 50
    for task in TASKS.values():
        training = preset("swish_rnn", task).resolved(1000).training
        assert (training.warmup_steps, training.validate_every) == (1000, 1000)
        assert (training.schedule, training.weight_decay) == ("constant", 0)
    steps = {name: preset("swish_rnn", get_task(name)).training.max_steps for name in TASKS}
    assert (steps["boolq"], steps["mnli"], steps["sst2"]) == (50_000, 200_000, 80_000)


def test_a_diverged_models_outputs_score_nan():
    labels = np.array([0, 1, 2], np.int32)
    examples = Examples((["a"] * 3, ["b"] * 3), labels)
    outputs = {
        "validation_matched": np.full((3, 3), np.nan, np.float32),
        "validation_mismatched": np.eye(3, dtype=np.float32),
    }
    metrics = measure(get_task("mnli"), outputs, dict.fromkeys(outputs, examples))
    assert np.isnan(metrics["score"]) and np.isnan(metrics["accuracy"])
    assert metrics["validation_mismatched_accuracy"] == 1


def test_a_pair_needs_its_tab():
    rte = kind_of(get_task("rte"))
    pairs = rte.parse(["a b\tc", "\t"], 1)
    assert (pairs.first, pairs.second, len(pairs)) == (["a b", ""], ["c", ""], 2)
    with pytest.raises(UserError, match="line 6: 1 columns, not 2"):
        rte.parse(["a\tb", "a"], 5)
