import json
import pathlib
from itertools import pairwise

import pytest

from experiments import compare_blocks, figures, registry, studies
from experiments.compare_blocks import main
from experiments.recipe import override
from tests.conftest import number_settings


@pytest.mark.slow
def test_a_table_from_two_blocks(number_text, tmp_path, capsys):
    arguments = ["--seeds", "1", "--steps", "40", "--warmup", "10", "--name", "numbers"]
    arguments += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    for setting in number_settings(number_text):
        if not setting.startswith(("training.max_steps", "training.warmup_steps")):
            arguments += ["--set", setting]
    arguments += ["--set", "training.validate_every=20", "--set", "training.save_every_steps=10"]
    assert main(arguments) == 0
    record = json.loads((tmp_path / "results" / "numbers.json").read_text())
    assert [row["block"] for row in record["rows"]] == ["macaron", "transformer"]
    table = capsys.readouterr().out
    assert "| macaron | mean |" in table and "| 1 | " in table
    assert (tmp_path / "results" / "numbers.png").stat().st_size > 10_000
    # Complete runs are not trained again.
    assert main(arguments) == 0


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """Runs the comparison of blocks with a stand-in for the commands; returns what they were."""
    called = []

    def stand_in(script, command, *words):
        called.append(command)
        run = pathlib.Path(words[1] if command == "train" else words[0])
        if command == "train":
            settings = [value for flag, value in pairwise(words) if flag == "--set"]
            recipe = override(registry.load(words[0]), settings)
            (run / "checkpoints" / f"step-{recipe.training.max_steps:08d}").mkdir(parents=True)
            (run / "recipe.json").write_text(recipe.to_json())
            (run / "timing.jsonl").write_text('{"step": 1, "kind": "train", "seconds": 60.0}\n')
            (run / "metrics.jsonl").write_text('{"kind": "validation", "step": 1, "loss": 1.0}\n')
        if command == "evaluate":
            saved = [int(path.name[5:]) for path in (run / "checkpoints").iterdir()]
            output = pathlib.Path(words[words.index("--output") + 1])
            write_scores(output / "a.json", "average", [max(saved)], run=str(run))

    monkeypatch.setattr(studies, "command", stand_in)
    monkeypatch.setattr(figures, "mean_curves", lambda *arguments: None)

    def compare(*more):
        called.clear()
        arguments = ["--seeds", "1", "--steps", "500", "--name", "table", *more]
        arguments += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
        return compare_blocks.main(arguments), list(called)

    return compare


def write_scores(path, checkpoint, steps, bleu=30.0, run=""):
    lines = ["ein hund rennt schnell"]
    record = {"checkpoint": checkpoint, "steps": steps, "split": "validation", "run": run}
    record |= {"tokenized_bleu": bleu, "bleu": bleu, "chrf": bleu}
    record |= {"tokenized_signature": "t", "bleu_signature": "b", "metric": {"language": "de"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**record, "hypotheses": lines, "references": lines}))


def test_the_comparison_takes_its_own_evaluations_alone(blocks, tmp_path, capsys):
    # What a person evaluated before the comparison did is not taken for it.
    write_scores(tmp_path / "runs" / "macaron-1" / "scores" / "0.json", "average", [500], 99.0)
    assert blocks() == (0, ["train", "average", "evaluate"] * 2)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["bleu"] for row in rows] == [30.0, 30.0]
    assert blocks() == (0, [])
    own = tmp_path / "runs" / "macaron-1" / "comparison"
    write_scores(own / "best.json", "step-00000500", [500])
    write_scores(own / "older.json", "average", [250])
    assert blocks() == (0, [])
    write_scores(own / "twice.json", "average", [500])
    assert blocks()[0] == 2
    assert "holds 2 evaluations of the run's last average" in capsys.readouterr().err
    (own / "twice.json").write_text("{}")
    assert blocks()[0] == 2
    assert "twice.json cannot be read as scores" in capsys.readouterr().err


def test_the_comparison_refuses_a_run_of_other_settings(blocks, capsys):
    assert blocks()[0] == 0
    for flags, words in (
        (["--steps", "1000"], "was trained with training.max_steps=500, not 1000"),
        (["--set", "label_smoothing=0.2"], "was trained with label_smoothing=0.1, not 0.2"),
        (["--recipe", "demo"], "macaron-1 was trained with"),
        (["--set", "training.seed=7"], "--set training.seed=7: give --blocks, --seeds"),
    ):
        status, called = blocks(*flags)
        error = capsys.readouterr().err
        assert (status, called) == (2, [])
        assert error.startswith("error: ") and error.count("\n") == 1 and words in error
