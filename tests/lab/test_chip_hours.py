"""Tests of the table of chip-hours in the cloud guide."""

import json
import pathlib

import pytest

from experiments import cloud, registry
from experiments.lab import chip_hours
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
    assert chip_hours.tokens_of_update(registry.load(name)) == tokens


def test_chip_hours_are_updates_times_steps_times_chips():
    # 1,024 rows at 32 per core need 32 cores, which are 16 chips, as in the paper. 300,000 updates
    # at 0.6 s take 50 h.
    line = chip_hours.table([ROW]).splitlines()[-1]
    assert line.endswith("| 600.0 | v4-32 | 16 | 1 | 50.0 | 800 |")
    # With one core per chip, the number of chips doubles.
    v5e = ROW | {"topology": "v5e:2x2"}
    assert "| v5litepod-32 | 32 | 1 | 50.0 | 1,600 |" in chip_hours.table([v5e])
    assert len(chip_hours.table([ROW | {"ok": False}]).splitlines()) == 2
    # A row of cores that share a micro-batch is left out. The JAX engine writes data=1 by default.
    for mesh, lines in (("data=2,model=2", 2), ("data=1", 3), (None, 3)):
        assert len(chip_hours.table([ROW | {"mesh": mesh}]).splitlines()) == lines


def test_elmo_counts_words_and_tcn_is_left_out():
    elmo = ROW | {"recipe": "elmo_tiny", "rows": 32, "length": 32}
    assert chip_hours.tokens_of_update(registry.load("elmo_tiny")) == 32 * 32
    assert chip_hours.table([elmo, ROW | {"recipe": "tcn_jsb"}]).count("\n") == 3


def test_slices_are_ones_that_can_be_rented():
    # 512 chips at 8 rows per core need two steps on the largest slice of v5e.
    large = ROW | {"recipe": "swish_rnn_large", "topology": "v5e:2x2", "rows": 8}
    assert "| v5litepod-256 | 256 | 2 | 100.0 | 25,600 |" in chip_hours.table([large])
    # 32 cores at 28 rows need 18.3 chips: a slice of 16, whose second step is not full.
    assert "| v4-32 | 16 | 2 | 100.0 | 1,600 |" in chip_hours.table([ROW | {"rows": 28}])
    # One core of a v4 is enough, but the smallest slice has eight.
    assert "| v4-8 | 4 | 1 | 50.0 | 200 |" in chip_hours.table([ROW | {"rows": 1024}])


def test_the_table_goes_between_the_marks(tmp_path, capsys):
    results, guide = tmp_path / "r.json", tmp_path / "README.md"
    results.write_text(json.dumps({"rows": [ROW]}))
    guide.write_text(f"before\n{chip_hours.MARKS[0]}\nold\n{chip_hours.MARKS[1]}\nafter\n")
    for _ in range(2):
        assert chip_hours.main([str(results), "--readme", str(guide)]) == 0
    text = guide.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "old" not in text and text.count("| swish_rnn_base |") == 1
    refuses("does not contain the lines", chip_hours.with_table, "no marks", "", "README.md")
    assert chip_hours.main([str(guide)]) == 2
    assert (
        "is damaged (Expecting value: line 1 column 1 (char 0)): give a file"
        in capsys.readouterr().err
    )


def test_the_guides_table_is_what_the_results_say():
    results = json.loads((CLOUD.parent / "results" / "tpu_check.json").read_text())
    assert chip_hours.table(results["rows"]) in (CLOUD / "README.md").read_text()
