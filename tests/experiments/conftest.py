"""Toy tasks and runs on them, and ways to call commands, shared by the tests of commands."""

import pytest

from tests.experiments.pretraining_toy import prepare, toy_settings, train, write_documents
from tests.experiments.task_toys import train_toy, write_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A folder with the tables of tasks on sentences, and their vocabulary."""
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
def source(tmp_path_factory) -> str:
    """Documents of the letters' language."""
    return write_documents(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="session")
def language_run(source, tmp_path_factory) -> str:
    """A GPT-2 of the letters' language; its corpus lies beside it."""
    folder = tmp_path_factory.mktemp("gpt2")
    settings = [*toy_settings(source), "vocabulary.size=272"]
    corpus = prepare("gpt2_tiny", str(folder / "corpus"), settings)
    assert train("gpt2_tiny", folder / "run", corpus, settings) == 0
    return str(folder / "run")


@pytest.fixture
def ran(capsys):
    """`ran(main, *words)`: the output of a command that succeeds, `.out` and `.err`."""

    def call(main, *words):
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr()

    return call


@pytest.fixture
def answered(tmp_path):
    """`answered(main, *words, text=...)`: the file that a command makes of a text or bytes."""

    def call(main, *words, text: str | bytes) -> str:
        given, out = tmp_path / "in.txt", tmp_path / "out.txt"
        given.write_bytes(text if isinstance(text, bytes) else text.encode())
        words = [*words, "--input", given, "--output", out]
        assert main([str(word) for word in words]) == 0
        return out.read_text(encoding="utf-8")

    return call
