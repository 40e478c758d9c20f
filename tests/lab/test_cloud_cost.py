"""The guide's table of costs."""

import json
import pathlib

import pytest

from experiments import cloud, registry
from experiments.lab import cloud_cost as cost
from tests.harness import refuses

CLOUD = pathlib.Path(cloud.__file__).parent

ROW = {
    "ok": True, "recipe": "swish_rnn_base", "topology": "v4:2x2x1", "rows": 32, "length": 512,
    "milliseconds": 600.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("swish_rnn_base", 1024 * 512),
        ("swish_rnn_large", 4096 * 512),
        ("macaron_bert_base", 128 * 1024),
        ("wmt14_macaron_base", 32_768),
        ("wmt14_macaron_big", 262_144),
    ],
)
def test_an_update_has_the_papers_tokens(name, tokens):
    assert cost.tokens_of_update(registry.load(name)) == tokens


def test_chip_hours_are_updates_times_steps_times_chips():
    # 1,024 rows in shares of 32 are 32 cores, 16 chips, as in the paper; 300,000 x 0.6 s are 50 h.
    line = cost.table([ROW]).splitlines()[-1]
    assert line.endswith("| 600.0 | 16 | 50.0 | 800 |")
    # One core a chip: twice the chips.
    assert "| 32 | 50.0 | 1,600 |" in cost.table([ROW | {"topology": "v5e:2x2"}])
    assert len(cost.table([ROW | {"ok": False}]).splitlines()) == 2


def test_the_table_goes_between_the_marks(tmp_path, capsys):
    results, guide = tmp_path / "r.json", tmp_path / "README.md"
    results.write_text(json.dumps({"rows": [ROW]}))
    guide.write_text(f"before\n{cost.MARKS[0]}\nold\n{cost.MARKS[1]}\nafter\n")
    for _ in range(2):
        assert cost.main([str(results), "--readme", str(guide)]) == 0
    text = guide.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "old" not in text and text.count("| swish_rnn_base |") == 1
    refuses("lacks the lines", cost.with_table, "no marks", "", "README.md")
    assert cost.main([str(guide)]) == 2
    assert (
        "is damaged (Expecting value: line 1 column 1 (char 0)): give what"
        in capsys.readouterr().err
    )


def test_the_guides_table_is_what_the_results_say():
    results = json.loads((CLOUD.parent / "results" / "tpu_check.json").read_text())
    assert cost.table(results["rows"]) in (CLOUD / "README.md").read_text()
