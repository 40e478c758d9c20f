"""The JAX and TensorFlow engines make equal updates and resume each other's runs.

JAX runs in other processes, because Keras has one backend per process.
"""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from experiments.commands import main
from macaron_tf.distribution.mesh import parse_mesh
from macaron_tf.model import load
from macaron_tf.training.progress import read_lines
from tests.harness import refuses
from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags, toy_settings, write_documents
from tests.toys.processes import on_jax, python, state_of
from tests.toys.training import CONFIG, run

pytestmark = pytest.mark.thorough

pytest.importorskip("jax")


# Runs the commands in a JSON file, lists of words, one after another.
COMMANDS = """
import json, sys
from experiments.commands import main
for words in json.load(open(sys.argv[1])):
    assert main(words) == 0, words
"""


def run_on_jax(*arguments) -> None:
    # Equal programs of several runs are compiled once.
    cache = {"JAX_COMPILATION_CACHE_DIR": str(arguments[-1].parent / "compiled")}
    cache |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    python(*arguments, **on_jax(), **cache)


def losses_of(run_dir: pathlib.Path, after: int = 0) -> dict[tuple[str, int], float]:
    lines = read_lines(run_dir / "metrics.jsonl")
    return {(line["kind"], line["step"]): line["loss"] for line in lines if line["step"] > after}


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """Returns a folder with a TensorFlow run, a copy of it up to step 5, and runs by `jax_toy`."""
    folder = tmp_path_factory.mktemp("engines")
    run(folder / "tensorflow", dataclasses.replace(CONFIG, keep_last=9), dropout=0.0)
    shutil.copytree(folder / "tensorflow", folder / "from_tensorflow")
    for checkpoint in (folder / "from_tensorflow" / "checkpoints").glob("step-*"):
        if checkpoint.name != "step-00000005":
            shutil.rmtree(checkpoint)
    run_on_jax("-m", "tests.toys.jax_systems", folder)
    return folder


@pytest.mark.slow
def test_updates_are_those_of_tensorflow(toys):
    """JAX and TensorFlow make equal updates.

    The runs have clipping, micro-batches of different shapes, weight decay and weight averaging.
    """
    ours, theirs = (state_of(toys / name, 20) for name in ("from_tensorflow", "tensorflow"))
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
    expected = losses_of(toys / "tensorflow")
    assert losses_of(toys / "from_tensorflow") == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plain"), [("remat", "plain"), ("muon_mesh", "muon")])
def test_recomputing_and_meshes_make_the_same_updates(toys, name, plain):
    """Neither rematerialization nor sharding of weights and moments changes the updates."""
    ours, theirs = (np.load(toys / f"{one}.npz") for one in (name, plain))
    for path, expected in theirs.items():
        np.testing.assert_allclose(ours[path], expected, rtol=1e-6, atol=1e-6, err_msg=path)


@pytest.mark.slow
def test_a_run_ends_at_its_last_skipped_update(toys):
    message = (toys / "diverged.txt").read_text()
    assert message.startswith("3 updates in a row up to step 8 had a NaN or infinite")


@pytest.mark.parametrize("text", ["data", "data=0", "rows=2", "data=2 model=2", "model=-1"])
def test_a_wrong_mesh_is_refused(text):
    refuses("give devices per axis", parse_mesh, text)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        # Keras runs on TensorFlow already.
        (["--engine", "jax"], "--engine jax cannot be selected"),
        (["--mesh", "data=2"], "--mesh data=2 needs --engine jax"),
        (["--engine", "jax", "--strategy", "cpu"], "cpu works only with --engine tensorflow"),
    ],
)
def test_engines_that_cannot_be_are_refused(words, sentence, refused, tmp_path):
    refused(main, ["train", "bert_tiny", tmp_path / "run", *words], sentence, tmp_path)


def without_keys(path: str, array: np.ndarray) -> np.ndarray:
    """Removes the key biases from the fused bias of an attention layer.

    The exact gradient of a key bias is 0, so key biases change only by rounding errors, which Adam
    scales up.
    """
    if "query_key_value/vars/1" in path:
        queries, _, values = np.split(array, 3)
        return np.concatenate([queries, values])
    return np.split(array, 2)[1] if "key_value/vars/1" in path else array


SMALL = {
    "model.num_heads": 4,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "training.learning_rate": 0.005,
    "training.schedule": "constant",
    "training.warmup_steps": 4,
    "training.validate_every": 5,
    "training.save_every_steps": 5,
    "training.log_every": 5,
    "training.keep_last": 9,
}
SYSTEMS = ("bert_tiny", "swish_rnn_tiny", "gpt2_tiny", "t5_tiny", "multi30k_macaron_tiny")
SYSTEMS += ("electra_tiny", "bart_tiny", "transformer_xl_tiny", "xlnet_tiny")
MESHES = {"1": "data=1", "8x1": "data=8", "4x2": "data=4,model=2", "2x4": "data=2,model=4"}


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_learn_the_same_on_every_mesh(system, tmp_path, number_text):
    """20 updates after 5 TensorFlow updates have equal losses in TensorFlow and on JAX meshes.

    Losses agree to 1e-5 between TensorFlow and one JAX device, and to 1e-6 between meshes. XLNet's
    position and segment biases have tiny gradients, which Adam would scale up, so XLNet's epsilon
    is 1e-3. A run of a mesh is a model that TensorFlow loads.
    """
    small = flags([f"{name}={value}" for name, value in SMALL.items()])
    if system == "xlnet_tiny":
        small += ["--set", "training.epsilon=1e-3"]
    if system == "multi30k_macaron_tiny":
        data, settings = [], number_settings(number_text, 5)
        settings += ["data.validation_lines=8", "model.activation_dropout=0.0"]
    else:
        source = write_documents(tmp_path)
        settings = toy_settings(source, 5)
        if system == "gpt2_tiny":  # the 256 bytes and the special tokens
            settings.append("data.vocabulary.size=261")
        if system in ("t5_tiny", "bart_tiny"):
            (tmp_path / "words.txt").write_text("the letters alone make too few pieces.\n" * 200)
            settings = [*toy_settings(source, 5, system), "data.vocabulary.size=60"]
        corpus = str(tmp_path / "corpus")
        assert main(["prepare", system, corpus, *flags(settings), *small]) == 0
        data = ["--corpus", corpus]

    def words(name: str, steps: int, *more: str) -> list[str]:
        given = [*flags(settings), *small, "--set", f"training.max_steps={steps}"]
        return ["train", system, str(tmp_path / name), *data, *given, *more]

    assert main(words("tensorflow", 5)) == 0
    for name in MESHES:
        shutil.copytree(tmp_path / "tensorflow", tmp_path / name)
    assert main(words("tensorflow", 25)) == 0
    mesh = {name: ["--engine", "jax", "--mesh", text] for name, text in MESHES.items()}
    commands = [words(name, 25, *more) for name, more in mesh.items()]
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    run_on_jax("-c", COMMANDS, tmp_path / "commands.json")
    for name, base, precision in (
        ("1", "tensorflow", 1e-5),
        *((name, "1", 1e-6) for name in MESHES if name != "1"),
    ):
        ours, theirs = (losses_of(tmp_path / one, after=5) for one in (name, base))
        assert ours == pytest.approx(theirs, rel=precision), name
        ours, theirs = (state_of(tmp_path / one, 25) for one in (name, base))
        for path, expected in theirs.items():
            if path.startswith("model.weights"):
                found, expected = (without_keys(path, array) for array in (ours[path], expected))
                np.testing.assert_allclose(
                    found, expected, rtol=precision, atol=precision, err_msg=f"{name} {path}"
                )
    assert load(tmp_path / "4x2").network.count_params() > 0
