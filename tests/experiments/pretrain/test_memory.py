"""Tests of pre-training with segment memory: bit-identical resumption, and longer memories."""

import json
import shutil

import numpy as np
import pytest

from experiments.commands import main
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.runs.run import Run
from macaron_tf.training import state
from macaron_tf.training.progress import read_lines
from tests.harness import ids
from tests.toys.pretraining import flags, prepare, toy_settings, train
from tests.toys.processes import python
from tests.toys.runs import check_resumed
from tests.toys.tasks import not_yet_trained, scores_in, validations

XL = "transformer_xl_tiny"


@pytest.fixture(scope="module")
def settings(source) -> list[str]:
    return [
        *toy_settings(source, steps=12),
        "batch_size=4",
        "model.num_layers=2",
        "training.accumulation_steps=2",
        "objective.memory_length=12",
        "corpus.validation_run=4",
        "model.block=swish_rnn",
        "model.adaptive_cutoffs=9,16",
        "model.adaptive_divisor=2",
        "training.schedule=constant",
        "training.warmup_steps=2",
        "training.validate_every=6",
        "training.save_every_steps=6",
        "training.log_every=3",
    ]


@pytest.fixture(scope="module")
def corpus(settings, tmp_path_factory) -> str:
    return prepare(XL, str(tmp_path_factory.mktemp("corpora") / "toy"), settings)


def memory_of(run) -> dict[str, np.ndarray]:
    with np.load(Run.open(run).checkpoint("last") / "training_state.npz") as arrays:
        return {name: arrays[name] for name in arrays.files if name.startswith("memory/")}


@pytest.mark.slow
def test_a_resumed_run_has_its_memory(settings, corpus, tmp_path, monkeypatch, refused):
    """A resumed run is bit-identical to an uninterrupted run, including the memory."""
    words = ["train", XL, "RUN", "--corpus", corpus, *flags([*settings, "model.dropout=0.1"])]
    run = check_resumed(words, tmp_path)
    memory = memory_of(run)
    # For each of 2 blocks: attention's hidden states, the mask of visible states, and the recurrent
    # state.
    assert len(memory) == 2 * 3 and all(array.any() for array in memory.values())
    # As on two devices with four rows each.
    monkeypatch.setattr(state, "_copies", lambda model, variable: [variable] * 2)
    words = ["train", "--resume", run, "--set", "training.max_steps=4"]
    refused(main, words, "other batch_size, memory_length and devices")


@pytest.mark.slow
def test_longer_memories_are_compared(settings, corpus, tmp_path, ran):
    whole = tmp_path / "whole"
    assert train(XL, whole, corpus, [*settings, "model.dropout=0.1"]) == 0
    command = ["evaluate", whole, "--corpus", corpus, "--checkpoint", "last"]
    for length in (12, 40):
        ran(main, *command, "--set", f"objective.memory_length={length}")
    records = [json.loads(path.read_text()) for path in (whole / "scores").glob("*.json")]
    found = {record["memory"]: record["nll"] for record in records}
    assert set(found) == {12, 40} and found[12] != found[40]
    assert found[12] == pytest.approx(validations(whole)[-1]["nll"], abs=1e-6)
    # All texts have one length; a split with fewer rows than the batch size has shorter texts.
    rows = PretrainingCorpus.open(corpus).rows("validation")
    assert {record["rows"] for record in records} == {rows - rows % 4}
    wide = shutil.copytree(whole, tmp_path / "wide")
    recipe = (wide / "recipe.json").read_text()
    recipe = recipe.replace('"batch_size": 4', f'"batch_size": {rows + 1}')
    (wide / "recipe.json").write_text(recipe)
    ran(main, "evaluate", wide, *command[2:], "--output", tmp_path / "scores")
    assert scores_in(tmp_path / "scores")["rows"] == rows


@pytest.mark.slow
@pytest.mark.parametrize("block", ["transformer", "macaron"])
def test_xlnet_s_content_stream_is_fine_tuned(block, settings, corpus, tmp_path):
    run = tmp_path / "xlnet"
    settings = [*settings, f"model.block={block}", "training.max_steps=2", "model.num_layers=1"]
    settings += ["training.warmup_steps=1"]
    assert train("xlnet_tiny", run, corpus, settings) == 0
    network = Run.open(run).load_network()
    _, _, classifier = not_yet_trained(str(run))
    vocabulary = Run.open(run).vocabulary
    token_ids = ids(2, 9, vocab_size=vocabulary.pieces)
    segment_ids = (np.arange(9) > np.array([[3], [5]])).astype("int32")
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids}
    np.testing.assert_array_equal(classifier.encoder(inputs), network.encoder(inputs))


@pytest.mark.slow
def test_two_replicas_make_the_same_run_each_with_its_own_texts(settings, corpus, tmp_path):
    settings = [*settings, "training.max_steps=6"]
    assert train(XL, tmp_path / "one", corpus, settings) == 0
    # A process of its own, because TensorFlow's devices can no longer be changed here.
    arguments = ["train", XL, str(tmp_path / "two"), "--corpus", corpus]
    arguments += ["--strategy", "mirrored", "--replicas", "2", *flags(settings)]
    python("-m", "macaron_tf", *arguments)
    one, two = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in two], abs=1e-4)
    mine, theirs = memory_of(tmp_path / "one"), memory_of(tmp_path / "two")
    for name in mine:
        assert mine[name].shape == theirs[name].shape and mine[name].shape[:2] == (4, 2)
        np.testing.assert_allclose(mine[name] * 1.0, theirs[name] * 1.0, atol=1e-3)


@pytest.mark.parametrize(
    ("recipe", "setting", "words"),
    [
        (XL, "corpus.packing=doc_text", "corpus.packing=full_text"),
        (XL, "model.positions=learned", "model.positions=transformer_xl"),
        (
            XL,
            "isolate_documents=True",
            "translation pairs join documents",
        ),
        ("xlnet_tiny", "model.block=swish_rnn", "would reveal each token to its own prediction"),
    ],
)
def test_bad_settings_are_refused(recipe, setting, words, settings, corpus, tmp_path, refused):
    command = ["train", recipe, tmp_path / "run", "--corpus", corpus]
    refused(main, [*command, *flags([*settings, setting])], words, tmp_path)
