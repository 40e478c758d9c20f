"""The toy task and a run on it, shared by the tests of commands."""

import pytest

from tests.experiments.pretraining_toy import train_language_toy
from tests.experiments.task_toys import train_toy, write_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A folder with the task's tables and vocabulary."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder)
    return folder


@pytest.fixture(scope="session")
def toy_run(toy, tmp_path_factory):
    """A run trained by the command line."""
    run = tmp_path_factory.mktemp("runs") / "toy"
    train_toy(toy, run)
    return run


@pytest.fixture(scope="session")
def language_run(tmp_path_factory):
    """A language model of the letters' language."""
    return train_language_toy(tmp_path_factory.mktemp("language"))
