"""Tests of model cards of runs: header, settings, and an example that runs."""

import pytest
import yaml

import macaron_tf
from tests.harness import run_card
from tests.toys.marks import slow

RUNS = [
    ("toy_run", "text-classification"),
    ("language_run", "text-generation"),
    ("number_run", "translation"),
    ("t5_run", "text2text-generation"),
]


@pytest.mark.parametrize(("run", "pipeline"), [*RUNS[:2], *slow(*RUNS[2:])])
def test_a_card_s_lines_run_and_its_header_is_the_hub_s(
    run, pipeline, request, tmp_path, monkeypatch
):
    model = macaron_tf.load(request.getfixturevalue(run))
    model.save_pretrained(tmp_path / "mine", license="mit")
    card = (tmp_path / "mine/README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert (header["pipeline_tag"], header["license"]) == (pipeline, "mit")
    assert "masking." not in card and "rows_per_shard" not in card
    names = run_card(tmp_path / "mine", monkeypatch)
    assert "predict" in card and names["model"].name == "mine"
