"""Checks of the Dockerfiles' text; no image is built."""

import fnmatch
import importlib.util
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
CLOUD = ROOT / "experiments" / "cloud"
# Dict mapping Dockerfile to its build context.
IMAGES = {
    CLOUD / "Dockerfile": ROOT,
    CLOUD / "beam.Dockerfile": ROOT,
}
KNOWN = {"FROM", "RUN", "WORKDIR", "ARG", "COPY", "USER", "ENTRYPOINT", "CMD"}


def instructions(file: pathlib.Path) -> list[tuple[str, str]]:
    """Returns a Dockerfile's instructions, each as (keyword, arguments) without comments."""
    lines = [line for line in file.read_text().splitlines() if line.strip()[:1] != "#"]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in whole.splitlines() if line]


def ignored(path: pathlib.Path, context: pathlib.Path) -> bool:
    """Returns whether `.dockerignore` excludes a path from the build context."""
    file = context / ".dockerignore"
    patterns = [line for line in file.read_text().split("\n") if line and line[0] != "#"]
    parts = path.relative_to(context).parts
    prefixes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return any(
        fnmatch.fnmatch(name, pattern.removeprefix("**/"))
        for pattern in patterns
        for name in (parts if pattern.startswith("**/") else prefixes)
    )


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_an_image_is_made_of_what_exists(file):
    steps, context = instructions(file), IMAGES[file]
    assert {name for name, _ in steps} <= KNOWN and steps[0][0] == "FROM"
    image, _, tag = steps[0][1].partition(":")
    assert image and re.search(r"\d\.\d", tag), "the base image has no version"
    for name, text in steps:
        if name == "COPY" and not text.startswith("--from="):
            for path in text.split()[:-1]:
                assert (context / path).exists(), path
                assert context != ROOT or not ignored(context / path, context), path
        if name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(argument, str) for argument in json.loads(text))
    for script in re.findall(r"bash (\S+\.sh)", file.read_text()):
        assert (ROOT / script).is_file(), script


def test_what_trains_is_in_the_image_and_what_is_large_is_not():
    for name in ("requirements.txt", "macaron_tf/__init__.py", "experiments/pretrain/__main__.py"):
        assert not ignored(ROOT / name, ROOT), name
    for name in (".git", ".venv", ".venv-tpu", "runs/bert", "tests/walk.py", "export/__pycache__"):
        assert ignored(ROOT / name, ROOT), name


def test_the_training_image_is_a_command_of_no_root():
    step_of_keyword = dict(instructions(CLOUD / "Dockerfile"))
    program, flag = json.loads(step_of_keyword["ENTRYPOINT"])
    module, *_ = json.loads(step_of_keyword["CMD"])
    assert (program, flag) == (".venv/bin/python", "-m") and importlib.util.find_spec(module)
    assert step_of_keyword["USER"].isdecimal() and step_of_keyword["USER"] != "0"
    devices = re.findall(r"^  ([a-z-]+(?: \| [a-z-]+)?)\)", (CLOUD / "set_up.sh").read_text(), re.M)
    assert step_of_keyword["ARG"].partition("=")[2] in devices


def test_versions_agree():
    """The images and requirements pin the same versions of TensorFlow, Beam and Python."""
    pins = (ROOT / "requirements.txt").read_text()
    beam = (ROOT / "experiments" / "pretrain" / "requirements-beam.txt").read_text()
    bases = [instructions(file)[0][1] for file in IMAGES]
    assert bases[0].startswith("python:3.11-") and "beam_python3.11_sdk" in bases[1]
    assert f"apache-beam=={bases[1].rpartition(':')[2]}" in beam
    assert f"tensorflow=={bases[2].rpartition(':')[2]}" in pins
