"""The toy task and a run on it, shared by the tests of fine-tuning."""

import pytest

from tests.experiments.finetuning_toy import train_toy, write_toy


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
