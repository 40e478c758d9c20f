"""Fixtures and helpers shared by all tests."""

import gc
import os
import pathlib
import shutil
import signal
import tempfile

from tests.toys.numbers import number_settings, write_numbers

gc.disable()  # until the tests are collected: garbage collection takes 25% of the import time
# Set before any test module imports TensorFlow: its start-up messages are not test output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Tests compile with XLA's own passes only: LLVM's optimizations take longer than they save.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# A shell that starts the tests in the background makes them, and their subprocesses, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Caches of this session alone (token caches, files of pip and Matplotlib). Two things come from the
# user's cache: the default corpus, which takes 51 MB, and the native kernels, which take half a
# minute to compile. One worker of xdist compiles the kernels for all.
_CACHE = tempfile.TemporaryDirectory(prefix="macaron_tf_tests-")
_USER_CACHE = pathlib.Path(
    os.environ.get("MACARON_TF_CACHE") or pathlib.Path.home() / ".cache" / "macaron_tf"
)
(_USER_CACHE / "native").mkdir(parents=True, exist_ok=True)
for _file in (_USER_CACHE / "native", *_USER_CACHE.glob("homeassistant-*.whl")):
    (pathlib.Path(_CACHE.name) / _file.name).symlink_to(_file.resolve())
os.environ["MACARON_TF_CACHE"] = os.environ["XDG_CACHE_HOME"] = _CACHE.name

import filelock
import pytest

from macaron_tf.io import plug_ins

SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def no_autotuning():
    """Switches tf.data's autotuning off in every dataset that a test iterates over.

    The garbage collector deletes iterators while later tests run. Deleting an autotuned iterator
    blocked a test for 20 to 60 seconds.
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
    """Sets the same random seed before each test file.

    So the random weights in a file do not depend on the files that run before.
    """
    import keras

    keras.utils.set_random_seed(1)


# Test folders of commands, exports, processes, other libraries and hostile input. Their tests get
# the mark `thorough` unless they are marked `quick`.
THOROUGH = ("distribution", "engines", "experiments", "export", "fuzz", "hub")
# Test folders with long tests. They come first, so that the workers of xdist finish together.
LONG = (*THOROUGH, "training")


@pytest.hookimpl(tryfirst=True)  # before -m reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests in `THOROUGH` folders as `thorough`, and runs folders with long tests first."""
    root = pathlib.Path(__file__).parent

    def top_folder(item: pytest.Item) -> str:
        return item.path.relative_to(root).parts[0]

    for item in items:
        if top_folder(item) in THOROUGH and not item.get_closest_marker("quick"):
            item.add_marker("thorough")
    items.sort(key=lambda one: top_folder(one) not in LONG and not top_folder(one).endswith(".py"))


def pytest_collection_finish() -> None:
    """Makes garbage collection rare.

    Tracing a graph creates millions of objects, so frequent collections would take long.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


def pytest_unconfigure() -> None:
    """Removes the session's cache folder."""
    _CACHE.cleanup()


@pytest.fixture(autouse=True)
def no_plug_ins():
    """Clears the registered plug-in files after each test."""
    yield
    plug_ins._files.clear()
    plug_ins._functions.clear()


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Returns the folder of real data beside the checkout, or skips the test."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data not found: no folder {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tfds_dir(shared_data: pathlib.Path) -> str:
    """Returns the TFDS `data_dir` in the folder of real data."""
    return str(shared_data / "tfds")


@pytest.fixture(scope="session")
def tfds(tfds_dir: str):
    """Returns a `Tfds` reader of the real data sets in `tfds_dir`."""
    from macaron_tf.data.sources.tfds import Tfds

    return Tfds(tfds_dir)


@pytest.fixture
def refused(capsys):
    """Returns `refused(main, arguments, phrase, *folders)`, which asserts that a command fails.

    The command must exit with status 2 and print a one-line error that contains `phrase`. It must
    neither add files to `folders` nor remove files.
    """

    def check(main, arguments: list, phrase: str, *folders) -> None:
        def content():
            return sorted(path for folder in folders for path in folder.rglob("*"))

        before = content()
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1, error
        assert phrase in error, error
        assert content() == before

    return check


@pytest.fixture(params=["disk", "bucket"])
def disk_or_bucket(request, tmp_path: pathlib.Path) -> str:
    """Returns an empty folder for this test, either on disk or in an emulated bucket."""
    from tests import ram_paths

    return str(tmp_path) if request.param == "disk" else ram_paths.folder(tmp_path)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Returns `once(name, make, own=False)`, which returns a folder that `make(folder)` filled.

    `make` is called once per session. The first xdist worker calls `make`, and the other workers
    wait. Tests share the folder and must not write into it. With `own=True`, the caller gets a copy
    to write into.
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
    """Returns a `tsv:` source of number pairs with the splits "train" and "validation"."""
    folder = once("number_text", lambda folder: write_numbers(folder, 600, 40))
    return f"tsv:{folder}/{{split}}.tsv"


@pytest.fixture(scope="session")
def number_run(once, number_text) -> pathlib.Path:
    """Returns a run that was trained on number pairs."""
    from experiments.commands import main

    def make(folder: pathlib.Path) -> None:
        arguments = ["train", "multi30k_macaron_tiny", str(folder / "numbers")]
        # Seeds end at 80 to 96 BLEU; at step 150, seed 2 is already ahead of the others.
        for setting in [*number_settings(number_text), "training.seed=2"]:
            arguments += ["--set", setting]
        assert main(arguments) == 0
        assert main(["average", str(folder / "numbers")]) == 0

    return once("number_run", make, own=True) / "numbers"
