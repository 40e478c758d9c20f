"""Fixtures shared by all tests."""

import gc
import os
import pathlib
import shutil
import signal
import sys
import tempfile

gc.disable()  # until the tests are collected: a quarter of the time of imports, whose objects stay
# Set before TensorFlow is imported by any test module: its start-up notes are not test output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Tests compile for XLA's own passes; LLVM's optimization behind these takes longer than it saves.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# A shell that starts the tests in the background has them, and their processes, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A cache for the session alone (token caches, pip's and Matplotlib's files). Only the default
# corpus and the native kernels are the user's cache's: they are 51 MB, and half a minute of
# compiling, which one worker of xdist does for all.
_CACHE = tempfile.TemporaryDirectory(prefix="macaron_tf_tests-")
_KEPT = pathlib.Path(
    os.environ.get("MACARON_TF_CACHE") or pathlib.Path.home() / ".cache" / "macaron_tf"
)
(_KEPT / "native").mkdir(parents=True, exist_ok=True)
for _file in (_KEPT / "native", *_KEPT.glob("homeassistant-*.whl")):
    (pathlib.Path(_CACHE.name) / _file.name).symlink_to(_file.resolve())
os.environ["MACARON_TF_CACHE"] = os.environ["XDG_CACHE_HOME"] = _CACHE.name
os.environ["XDG_CONFIG_HOME"] = _CACHE.name  # signatures' key

import filelock
import numpy as np
import pytest

if np.__version__.startswith("1."):  # Triton's: JAX, which TensorFlow tries, needs NumPy 2
    sys.modules["jax"] = None

from macaron_tf import plug_ins
from macaron_tf.errors import USER_FILES

SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def no_autotuning():
    """Switches tf.data's tuning off in tests' own datasets too, see `prefetched`.

    The garbage collector ends iterators in whatever test runs, and held some of them up for 20 to
    60 seconds.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    iterate = tf.data.Dataset.__iter__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.data.Dataset, "__iter__", lambda self: iterate(self.with_options(options)))
        yield


@pytest.fixture(scope="module", autouse=True)
def seeded():
    """Gives every file the same random weights, whatever ran before it."""
    import keras

    keras.utils.set_random_seed(1)


# Rooms of commands, exports, processes, other libraries and hostile input: their tests are thorough
# unless they are marked quick.
THOROUGH = ("distribution", "engines", "experiments", "export", "fuzz", "interop")
# Rooms that come first, so that the workers of xdist end together.
LONG = (*THOROUGH, "training")


@pytest.hookimpl(tryfirst=True)  # before -m reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `THOROUGH` rooms, and sorts files of long tests before the others."""
    root = pathlib.Path(__file__).parent

    def room(item: pytest.Item) -> str:
        return item.path.relative_to(root).parts[0]

    for item in items:
        if room(item) in THOROUGH and not item.get_closest_marker("quick"):
            item.add_marker("thorough")
    items.sort(key=lambda item: room(item) not in LONG and not room(item).endswith(".py"))


def pytest_collection_finish() -> None:
    """Has the garbage collector look seldom: graphs are traced by millions of small objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


def pytest_unconfigure() -> None:
    """Removes the session's cache."""
    _CACHE.cleanup()


@pytest.fixture(autouse=True)
def no_plug_ins():
    """Forgets plug-ins: their files, whose presence makes sentences of other errors, and trust."""
    yield
    USER_FILES.clear()
    plug_ins._files.clear()
    plug_ins._Trust.places.clear()
    plug_ins._Trust.texts.clear()


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data beside the checkout; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data not found: no folder {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tfds_dir(shared_data: pathlib.Path) -> str:
    """The TFDS `data_dir` among the real data."""
    return str(shared_data / "tfds")


@pytest.fixture(scope="session")
def tfds(tfds_dir: str):
    """The real data, for readers."""
    from macaron_tf.data.sources.tfds import Tfds

    return Tfds(tfds_dir)


@pytest.fixture
def refused(capsys):
    """`refused(main, arguments, words, *folders)`: bad input is one sentence, exit status 2.

    The sentence holds the words, and nothing changes in the folders.
    """

    def check(main, arguments: list, words: str, *folders) -> None:
        def content():
            return sorted(path for folder in folders for path in folder.rglob("*"))

        before = content()
        capsys.readouterr()
        assert main([str(word) for word in arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1, error
        assert words in error, error
        assert content() == before

    return check


@pytest.fixture(params=["disk", "bucket"])
def disk_or_bucket(request, tmp_path: pathlib.Path) -> str:
    """An empty folder of a test's own, on the disk and in a bucket in turn."""
    from tests import ram_paths

    return str(tmp_path) if request.param == "disk" else ram_paths.folder(tmp_path)


NUMBERS = {
    "zero": "null", "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf",
    "six": "sechs", "seven": "sieben", "eight": "acht", "nine": "neun",
}  # fmt: skip


def number_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Distinct English and German spellings of numbers, digit by digit: a language learnt fast."""
    rng = np.random.default_rng(seed)
    pairs = {}
    while len(pairs) < count:
        words = rng.choice(list(NUMBERS), rng.integers(2, 6))
        pairs[" ".join(words)] = " ".join(NUMBERS[word] for word in words)
    return list(pairs.items())


def write_numbers(folder: pathlib.Path, train: int, validation: int, step: int = 1) -> str:
    """Writes so many number pairs in two splits, German first where `step` is -1; the source."""
    for split, count, seed in (("train", train, 1), ("validation", validation, 2)):
        lines = "".join("\t".join(pair[::step]) + "\n" for pair in number_pairs(count, seed))
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8")
    return f"tsv:{folder}/{{split}}.tsv"


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """`once(name, make, own=False)`: the folder that `make(folder)` fills, a single time a session.

    The first worker of xdist that asks for it makes it and the others wait. Nobody may write into
    it; `own` gives a copy of this worker's own, for tests that do.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def made(name: str, make, own: bool = False) -> pathlib.Path:
        folder, done = root / "once" / name, root / "once" / f"{name}.done"
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{folder}.lock"):
            if not done.exists():
                make(folder)
                done.touch()
        if own:
            return shutil.copytree(folder, tmp_path_factory.mktemp(name) / name)
        return folder

    return made


@pytest.fixture(scope="session")
def number_text(once) -> str:
    """A `tsv:` source of number pairs with splits train and validation."""
    folder = once("number_text", lambda folder: write_numbers(folder, 600, 40))
    return f"tsv:{folder}/{{split}}.tsv"


def number_settings(source: str, steps: int = 300) -> list[str]:
    """The settings that shrink any translation recipe to the number language: seconds a run."""
    settings = {
        "data.source": source,
        "data.vocabulary_size": 40,
        "data.source_language": "en",
        "data.target_language": "de",
        "data.batching.max_tokens": 512,
        "data.batching.shapes": 2,
        "model.hidden_dim": 32,
        "model.feed_forward_dim": 64,
        "model.num_heads": 2,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.dropout": 0.0,
        "training.max_steps": steps,
        "training.learning_rate": 0.01,
        "training.warmup_steps": min(30, steps // 2),
        "training.validate_every": 150,
        "training.save_every_steps": 25,
        "training.log_every": 25,
        "training.keep_last": 6,
        "training.max_minutes": None,
        "average_last": 2,
    }
    return [f"{name}={value}" for name, value in settings.items()]


@pytest.fixture(scope="session")
def number_run(once, number_text) -> pathlib.Path:
    """A run trained by the command line on the number language."""
    from experiments.translate.__main__ import main

    def make(folder: pathlib.Path) -> None:
        arguments = ["train", "multi30k_macaron_tiny", str(folder / "numbers")]
        # Seeds end at 80 to 96 BLEU; 2 is ahead of the others at step 150 already.
        for setting in [*number_settings(number_text), "training.seed=2"]:
            arguments += ["--set", setting]
        assert main(arguments) == 0
        assert main(["average", str(folder / "numbers")]) == 0

    return once("number_run", make, own=True) / "numbers"
