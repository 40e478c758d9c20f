"""The installed wheel in an environment without the checkout."""

import os
import pathlib
import shutil
import subprocess
import sys
import venv

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# The environment without the checkout on PYTHONPATH.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
# Loads each model and prints its predictions; this checkout serves what the script exports.
PREDICT = """
import json
import pathlib
import sys
import macaron_tf
out, *requests = map(json.loads, sys.argv[1:])
for name, location, columns, options in requests:
    model = macaron_tf.load(location)
    print(json.dumps([name, model.predict(*columns, **options)]))
    model.export(pathlib.Path(out, name))
assert not {"experiments", "export"} & sys.modules.keys()
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
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel
    )
    return python.parent
