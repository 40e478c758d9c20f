"""Fixtures for command tests: toy tasks, runs on toy tasks, and functions that call commands."""

import numpy as np
import pytest
import scipy.io

from tests.toys.pretraining import prepare, t5_settings, toy_settings, train, write_documents
from tests.toys.studies import calls, study, study_corpus  # noqa: F401
from tests.toys.tasks import train_toy, write_toy


@pytest.fixture(scope="session")
def toy(once):
    """Returns a folder that `write_toy` filled with toy task tables and a vocabulary."""
    return once("toy", write_toy)


@pytest.fixture(scope="session")
def toy_run(once, toy):
    """Returns the folder of a run that was trained on the toy SST-2."""
    return once("toy_run", lambda folder: train_toy(toy, folder / "toy"), own=True) / "toy"


@pytest.fixture(scope="session")
def source(once) -> str:
    """Returns the `text:` source of toy documents, each of which repeats one letter."""
    return f"text:{once('documents', write_documents)}/*.txt"


@pytest.fixture(scope="session")
def language_run(once, source) -> str:
    """Returns the folder of a GPT-2 run pre-trained on the toy documents.

    The folder also holds the corpus.
    """
    settings = [*toy_settings(source), "vocabulary.size=272", "model.num_layers=2"]

    def make(folder) -> None:
        corpus = prepare("gpt2_tiny", str(folder / "corpus"), settings)
        assert train("gpt2_tiny", folder / "run", corpus, settings) == 0

    return str(once("language_run", make, own=True) / "run")


@pytest.fixture(scope="session")
def t5_corpus(once) -> str:
    """Prepares a T5 corpus from toy documents and the words of a toy SST-2; returns its folder.

    Without the SST-2 words, the vocabulary would contain only letters.
    """

    def make(folder) -> None:
        (folder / "documents").mkdir()
        source = write_documents(folder / "documents")
        words = "sst2 sentence : a c negative . positive .\n" * 200
        (folder / "documents" / "words.txt").write_text(words)
        prepare("t5_tiny", str(folder / "corpus"), t5_settings("t5_tiny", "macaron", source))

    return str(once("t5_corpus", make) / "corpus")


@pytest.fixture(scope="session")
def t5_run(once, t5_corpus) -> str:
    """Returns the folder of a pre-trained T5 run."""

    def make(folder) -> None:
        settings = t5_settings("t5_tiny", "macaron")
        assert train("t5_tiny", folder / "t5", t5_corpus, settings) == 0

    return str(once("t5_run", make, own=True) / "t5")


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> str:
    """Returns a `tsv:` source of sentences that are positive if they begin with "a"."""
    folder = tmp_path_factory.mktemp("tables")
    for split, count in (("train", 64), ("validation", 16)):
        rows = [f"{'ab'[i % 2]} {'cd'[i // 2 % 2]}\t{1 - i % 2}" for i in range(count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return f"tsv:{folder}/{{split}}.tsv"


@pytest.fixture(scope="session")
def tunes(tmp_path_factory) -> str:
    """Returns a MATLAB file of short piano rolls that cycle through three notes."""

    def pieces(count: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        held = np.empty((1, count), object)
        for number in range(count):
            frames = np.zeros((rng.integers(6, 12), 88), "uint8")
            frames[np.arange(len(frames)), np.arange(len(frames)) % 3 * 10] = 1
            held[0, number] = frames
        return held

    file = tmp_path_factory.mktemp("music") / "tunes.mat"
    splits = {"traindata": 12, "validdata": 5, "testdata": 3}
    scipy.io.savemat(file, {name: pieces(n, n) for name, n in splits.items()})
    return str(file)


@pytest.fixture
def ran(capsys):
    """Returns `ran(main, *words)`, which runs a command and asserts that the command succeeds.

    The function returns the captured output with the attributes `out` and `err`.
    """

    def call(main, *words):
        capsys.readouterr()
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr()

    return call


@pytest.fixture
def answered(tmp_path):
    """Returns `answered(main, *words, text=...)`, which runs a command on a file with `text`.

    The function asserts that the command succeeds, and returns the content of the output file.
    """

    def call(main, *words, text: str | bytes) -> str:
        given, out = tmp_path / "in.txt", tmp_path / "out.txt"
        given.write_bytes(text if isinstance(text, bytes) else text.encode())
        words = [*words, "--input", given, "--output", out]
        assert main([str(word) for word in words]) == 0
        return out.read_text(encoding="utf-8")

    return call
