"""Tests of the installed package: one wheel in an environment without the checkout."""

import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv
import zipfile

import pytest

import macaron_tf
from tests.toys.numbers import number_settings

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[1]
# The environment without the checkout on PYTHONPATH.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
ANSWER = """
import sys
import tensorflow as tf
import tensorflow_text
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print(serve(text=tf.constant(["one two three"]))["translations"].numpy().tolist()[0][0].decode())
assert "macaron_tf" not in sys.modules
"""
IMPORT = """
import sys
import macaron_tf
assert "site-packages" in macaron_tf.__file__ and "tensorflow_text" not in sys.modules
macaron_tf.build("swish_rnn_tiny", vocab_size=10)
print(macaron_tf.load(sys.argv[1]).network.count_params() > 0)
"""


def run(*command, stdin: str = "", **options) -> str:
    process = subprocess.run(
        [*map(str, command)],
        input=stdin,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        **options,
    )
    assert process.returncode == 0, f"{command}: {process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    """Returns the wheel, built from a copy of the sources."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("macaron_tf", "experiments", "export"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    flags = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", out]
    run(sys.executable, "-m", "pip", "wheel", *flags, source)
    (wheel_file,) = out.glob("*.whl")
    return wheel_file


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory) -> pathlib.Path:
    """Returns the `bin` folder of an environment with the wheel and the current packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    installed = [path for path in sys.path if path.endswith("-packages")]
    (packages / "present.pth").write_text("\n".join(installed))
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-index", "--no-deps", wheel)
    return python.parent


def test_the_wheel_has_one_top_level_name_and_what_commands_read(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"macaron_tf", f"macaron_tf-{macaron_tf.__version__}.dist-info"}
    packaged = {name.removeprefix("macaron_tf/commands/") for name in names}
    for folder in ("experiments", "export"):
        for path in (ROOT / folder).rglob("*"):
            left_out = {"results", "lab"} & {*path.relative_to(ROOT).parts}
            if path.is_file() and path.suffix != ".pyc":
                assert (str(path.relative_to(ROOT)) in packaged) == (not left_out), path
    required = {"py.typed", "kernels/native/ops.cc", "hub/remote/modeling_macaron.py"}
    assert {f"macaron_tf/{name}" for name in required} <= {*names}


def test_the_metadata_name_what_the_package_is(wheel):
    name = f"macaron_tf-{macaron_tf.__version__}.dist-info/METADATA"
    metadata = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    found = metadata["License-Expression"], metadata["Requires-Python"]
    assert found == ("Apache-2.0", ">=3.11")
    assert "Programming Language :: Python :: 3.13" in metadata.get_all("Classifier")
    text = metadata.get_payload()
    assert text.startswith("# macaron_tf") and "any block (with a few exceptions)" in text
    assert "    macaron train " in text
    # A relative link does not work on a package index's page.
    assert not re.search(r"\]\((?!http)", text)


def test_the_quick_start_from_an_empty_folder(scripts, number_text, tmp_path):
    macaron = scripts / "macaron"
    settings = [
        argument for setting in number_settings(number_text, 20) for argument in ("--set", setting)
    ]
    train = ["train", "multi30k_macaron_tiny", "run", *settings]
    shown = run(macaron, *train, cwd=tmp_path)
    assert "next: macaron evaluate run" in shown
    answer = run(macaron, "predict", "run", stdin="one two three\n", cwd=tmp_path)
    shown = run(macaron, "export", "run", "served", cwd=tmp_path)
    assert "serve it with: macaron serve served" in shown
    assert run(scripts / "python", "-c", ANSWER, "served/1", cwd=tmp_path) == answer
    assert run(scripts / "python", "-c", IMPORT, "run", cwd=tmp_path) == "True\n"
