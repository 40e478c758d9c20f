"""Tests of the study of local errors: theorem 1 of the Macaron paper, and its assumptions."""

import json

import pytest

from experiments.lab import ode
from macaron_tf.io.paths import as_path
from macaron_tf.model import Model
from macaron_tf.models import EncoderConfig, PretrainingEncoder
from tests.harness import built
from tests.toys.marks import slow


def network(folder, norm, **options):
    config = EncoderConfig(24, 16, 32, 1, 2, norm=norm, **options)
    Model(built(PretrainingEncoder, config, noise=0.1)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("trained", [False, *slow(True)])
def test_strang_splitting_needs_sub_steps_of_second_order(
    tmp_path, disk_or_bucket, monkeypatch, trained
):
    tokens_first, splitting, *_, branches = ode.SPLITTINGS
    kept = {name: ode.SPLITTINGS[name] for name in (tokens_first, splitting, branches)}
    monkeypatch.setattr(ode, "SPLITTINGS", kept)
    monkeypatch.setattr(ode, "SUB_STEPS", (ode.EXACT, "euler", "heun"))
    monkeypatch.setattr(ode, "STEPS", (0.05, 0.025))
    runs = ["--runs", network(tmp_path / "run", "pre")] if trained else ["--seeds", "1"]
    assert ode.main([*runs, "--results", f"{disk_or_bucket}/out", "--name", "orders"]) == 0
    out = as_path(disk_or_bucket) / "out"
    rows = json.loads((out / "orders.json").read_text())["rows"]
    found = {(row["splitting"], row["sub_step"]): row["order"] for row in rows}
    for sub_step, order in ((ode.EXACT, 3), ("euler", 2), ("heun", 3)):
        assert found[splitting, sub_step] == pytest.approx(order, abs=0.1)
        assert found[tokens_first, sub_step] == pytest.approx(2, abs=0.1)
        assert found[branches, sub_step] == pytest.approx(2, abs=0.1)
    assert "| splitting | exact | euler | heun |" in (out / "orders.md").read_text()


def test_what_cannot_be_read_or_written_is_said_before_minutes_are_spent(
    tmp_path, refused, monkeypatch
):
    monkeypatch.setattr(ode, "flows_of", lambda *given: pytest.fail("it computes"))
    (tmp_path / "file").touch()
    words = f"--results {tmp_path}/file/out cannot be made ("
    refused(ode.main, ["--seeds", "1", "--results", tmp_path / "file/out"], words, tmp_path)
    after = network(tmp_path / "after", "post")
    words = ["--runs", network(tmp_path / "good", "pre"), after, "--results", tmp_path / "out"]
    refused(ode.main, words, f"{after} is post-norm", tmp_path)
