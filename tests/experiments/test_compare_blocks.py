import json

import pytest

from experiments.compare_blocks import main
from experiments.figures import loss_curves
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


def test_curves_are_drawn_whole_or_not_at_all(tmp_path):
    lines = [
        {"step": step, "kind": "validation", "loss": 5 - step, "bleu": 10 * step}
        for step in (1, 2, 3)
    ]
    loss_curves({"macaron 1": lines, "transformer 1": lines}, tmp_path / "curves.png")
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
