"""Fixtures for command tests: toy tasks, runs on toy tasks, and functions that call commands."""

import pathlib

import numpy as np
import pytest
import scipy.io

from experiments import registry
from tests.toys import runs
from tests.toys.numbers import number_pairs
from tests.toys.pretraining import prepare, toy_settings, train, write_documents
from tests.toys.studies import calls, study, study_corpus  # noqa: F401
from tests.toys.tasks import train_toy, write_reading, write_toy


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
def reading(once) -> pathlib.Path:
    """Returns a folder with SQuAD and CoNLL files, and with a trained run for each task."""

    def make(folder) -> None:
        write_reading(folder, unanswerable=True)
        for task in ("squad2", "conll2003"):
            train_toy(folder, folder / task, task)

    return once("reading", make, own=True)


@pytest.fixture(scope="session")
def embedding_run(once, toy) -> pathlib.Path:
    """Returns the folder of a run that learnt to score pairs of toy sentences."""
    make = lambda folder: train_toy(toy, folder / "sts", "stsb")  # noqa: E731
    return once("embedding_run", make, own=True) / "sts"


@pytest.fixture(scope="session")
def masked_run(once, source) -> pathlib.Path:
    """Returns the folder of a BERT run on the toy documents, beside the folder of its corpus."""
    settings = [*toy_settings("text:/nowhere/*", 90), "training.validate_every=30"]
    settings += ["training.schedule=inverse_sqrt", "training.save_every_steps=30"]
    settings += ["model.num_layers=2", "model.dropout=0.1", "data.vocabulary.size=999"]

    def make(folder) -> None:
        corpus = prepare("bert_tiny", str(folder / "corpus"), toy_settings(source))
        assert train("bert_tiny", folder / "run", corpus, settings) == 0

    return once("masked_run", make, own=True) / "run"


@pytest.fixture(scope="session")
def language_run(once, source) -> str:
    """Returns the folder of a GPT-2 run pre-trained on the toy documents.

    The folder also holds the corpus.
    """
    settings = [*toy_settings(source), "data.vocabulary.size=272", "model.num_layers=2"]

    def make(folder) -> None:
        corpus = prepare("gpt2_tiny", str(folder / "corpus"), settings)
        assert train("gpt2_tiny", folder / "run", corpus, settings) == 0

    return str(once("language_run", make, own=True) / "run")


@pytest.fixture(scope="session")
def t5_run(once) -> str:
    """Returns the folder of a T5 run pre-trained on toy documents and the words of a toy SST-2.

    Without the SST-2 words, the vocabulary would contain only letters.
    """

    def make(folder) -> None:
        (folder / "documents").mkdir()
        source = write_documents(folder / "documents")
        words = "sst2 sentence : a c negative . positive .\n" * 200
        (folder / "documents" / "words.txt").write_text(words)
        settings = [*toy_settings(source, 20, "t5_tiny"), "data.vocabulary.size=90"]
        settings.append("model.block=macaron")
        corpus = prepare("t5_tiny", str(folder / "corpus"), settings)
        assert train("t5_tiny", folder / "t5", corpus, settings) == 0

    return str(once("t5_run", make, own=True) / "t5")


@pytest.fixture(scope="session")
def digits(once) -> str:
    """Returns the `text:` source of documents whose sentences spell digits or name a task."""

    def make(folder) -> None:
        pairs = number_pairs(900, seed=3)
        for index in range(60):
            lines = [f"{side} ." for pair in pairs[index::60] for side in pair]
            lines += ["sst2 sentence : a c b d negative . positive ."] * 4
            (folder / f"{index:02d}.txt").write_text("\n".join(lines), encoding="utf-8")

    return f"text:{once('digits', make)}/*.txt"


@pytest.fixture(scope="session")
def value(request, once):
    """Returns a function from a fixture's name to its value, and from a recipe to a run of it."""

    def get(name: str):
        if name not in registry.FAMILY_OF:
            return request.getfixturevalue(name)
        folder = once(f"ten_updates_{name}", lambda folder: runs.train(name, folder / "run", get))
        return str(folder / "run")

    return get


@pytest.fixture(scope="session")
def files(tunes, tmp_path_factory) -> pathlib.Path:
    """Returns a folder of texts, tables and folders that a command refuses."""
    folder = tmp_path_factory.mktemp("files")
    for name, text in {
        "secret.tsv": "sentence\nfilm was fun\n",
        "pairs": "Who?\ta\nWho? a\n",
        "one.txt": "a few words\n",
        "lines": "he ate the apple\nshe saw him\n",
        "long": "\n" * 257 + "one " * 300,
        "small_train.tsv": "one two\teins zwei\nthree\tdrei\n" * 3,
        "small_validation.tsv": "one\teins\n",
        "same_train.tsv": "one two three four\teins zwei drei vier\n" * 300,
        "same_validation.tsv": "one two\teins zwei\n" * 9,
    }.items():
        (folder / name).write_text(text)
    (folder / "damaged").mkdir()
    (folder / "damaged" / "model.json").write_text('{"kind": "poetry"}')
    pieces = scipy.io.loadmat(tunes)
    loud = {name: pieces[name] for name in ("traindata", "testdata")}
    scipy.io.savemat(folder / "loud.mat", {**loud, "validdata": pieces["validdata"] * 60})
    scipy.io.savemat(folder / "other.mat", {"traindata": np.zeros((3, 88))})
    return folder


@pytest.fixture(scope="session")
def elmo_run(once, value) -> pathlib.Path:
    """Returns the folder of an ELMo run on texts in which each number is followed by its colour."""
    settings = ["model.lstm_dim=12", "model.projection_dim=8", "model.max_characters=7"]
    training = ["max_steps=60", "warmup_steps=5", "learning_rate=0.02", "validate_every=30"]
    settings += [f"training.{setting}" for setting in training]

    def make(folder) -> None:
        texts = (" and ".join(map("{0[0]} {0[1]}".format, runs.colours(4, n))) for n in range(120))
        (folder / "colours.txt").write_text("".join(f"{text} .\n" for text in texts))
        sources = f"data.sources=text-lines:{folder}/colours.txt"
        runs.train("elmo_tiny", folder / "elmo", value, sources, *settings)

    return once("elmo_run", make, own=True) / "elmo"


@pytest.fixture(scope="session")
def tcn_run(once, value) -> pathlib.Path:
    """Returns the folder of a TCN run on the piano rolls."""
    training = ["max_steps=40", "validate_every=20", "learning_rate=0.02", "schedule=constant"]
    settings = [f"training.{setting}" for setting in training]
    make = lambda folder: runs.train("tcn_jsb", folder / "tcn", value, *settings)  # noqa: E731
    return once("tcn_run", make, own=True) / "tcn"


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
