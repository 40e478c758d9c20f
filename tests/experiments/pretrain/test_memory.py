"""Tests of pre-training with segment memory: bit-identical resumption, and longer memories."""

import json
import shutil

import numpy as np
import pytest

from experiments.commands import main
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.runs.run import Run
from macaron_tf.training import state
from tests.toys.pretraining import flags, prepare, toy_settings
from tests.toys.runs import check_resumed
from tests.toys.tasks import scores_in, validations

SETTINGS = ["data.batch_size=4", "objective.memory_length=12", "data.validation_run=4"]
SETTINGS += ["model.block=swish_rnn", "model.num_layers=2", "model.dropout=0.1"]
SETTINGS += ["model.adaptive_cutoffs=9,16", "model.adaptive_divisor=2"]
SETTINGS.append("training.accumulation_steps=2")


@pytest.mark.slow
def test_a_resumed_run_has_its_memory_and_is_scored_with_longer_ones(
    source, tmp_path, monkeypatch, ran, refused
):
    settings = [*toy_settings(source), *SETTINGS]
    corpus = prepare("transformer_xl_tiny", str(tmp_path / "corpus"), settings)
    words = ["train", "transformer_xl_tiny", "RUN", "--corpus", corpus, *flags(settings)]
    run = check_resumed(words, tmp_path)
    with np.load(Run.open(run).checkpoint("last") / "training_state.npz") as arrays:
        memory = [arrays[name] for name in arrays.files if name.startswith("memory/")]
    # For each of 2 blocks: attention's hidden states, the mask of visible states, and the recurrent
    # state.
    assert len(memory) == 2 * 3 and all(array.any() for array in memory)
    with monkeypatch.context() as patch:
        # As on two devices with four rows each.
        patch.setattr(state, "_copies", lambda model, variable: [variable] * 2)
        words = ["train", "--resume", run, "--set", "training.max_steps=4"]
        refused(main, words, "other batch_size, memory_length and devices")

    command = ["evaluate", f"{run}@last", "--corpus", corpus]
    for length in (12, 40):
        ran(main, *command, "--set", f"objective.memory_length={length}")
    records = [json.loads(path.read_text()) for path in (run / "scores").glob("*.json")]
    found = {record["memory"]: record["nll"] for record in records}
    assert set(found) == {12, 40} and found[12] != found[40]
    assert found[12] == pytest.approx(validations(run)[-1]["nll"], abs=1e-6)
    # All texts have one length; a split with fewer rows than the batch size has shorter texts.
    rows = PretrainingCorpus.open(corpus).rows("validation")
    assert {record["rows"] for record in records} == {rows - rows % 4}
    wide = shutil.copytree(run, tmp_path / "wide")
    recipe = (wide / "recipe.json").read_text()
    recipe = recipe.replace('"batch_size": 4', f'"batch_size": {rows + 1}')
    (wide / "recipe.json").write_text(recipe)
    ran(main, "evaluate", wide, *command[2:], "--output", tmp_path / "scores")
    assert scores_in(tmp_path / "scores")["rows"] == rows
