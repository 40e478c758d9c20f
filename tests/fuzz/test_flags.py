"""Fuzz tests of command-line flags, in which only the parsers run."""

import argparse
import contextlib
import functools
import importlib
import io
import pkgutil
import re
import types

import pytest

from tests.fuzz.profiles import examples, hypothesis, strategies, survive, values  # isort: skip

from export.server.config import ServerConfig
from macaron_tf.cli import arguments
from macaron_tf.cli.launcher import COMMANDS, RUNS, import_command
from macaron_tf.cli.launcher import main as launched
from macaron_tf.errors import check_path
from macaron_tf.settings import describe
from tests import lab

OF_RUNS = [*import_command(RUNS).COMMANDS]
PARSED = sorted([*OF_RUNS, *(module for module, _ in COMMANDS.values()), *lab.COMMANDS])


@functools.cache
def main_of(name: str):
    """Returns the `main` function of a command or of a module."""
    if name in OF_RUNS:
        return lambda words: import_command(RUNS).main([name, *words])
    return importlib.import_module(name).main


def said(main, *words: str) -> str:
    """Runs a command with the arguments `words`, such as --help, and returns its output."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert survive(main, [*words]) in (None, 0)
    return shown.getvalue()


@functools.cache
def flags_of(command: str) -> list[str]:
    shown = said(main_of(command), "--help")
    return sorted({*re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown)})


@pytest.fixture(scope="module", autouse=True)
def nothing_runs():
    """Replaces the function of every command with a function that does nothing."""
    idle = types.SimpleNamespace(resolve_name=lambda name: lambda options: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "pkgutil", idle)
        patch.setattr("macaron_tf.distribution.make_strategy", lambda *given: None)
        patch.setattr("export.serve.run", lambda *given, **options: True)
        patch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO()))
        idle_signal = types.SimpleNamespace(signal=lambda *given: None, SIGINT=2, SIGTERM=15)
        patch.setattr("export.serve.signal", idle_signal)
        patch.setattr("logging.basicConfig", lambda **options: None)
        yield
    assert arguments.pkgutil is pkgutil


@examples(400, 400)
@hypothesis.given(strategies.data())
def test_any_words(data):
    command = data.draw(strategies.sampled_from(PARSED))
    flags, words = flags_of(command), []
    for _ in range(data.draw(strategies.integers(0, 4))):
        words.append(data.draw(strategies.sampled_from(["run", *flags]) | values))
        words += data.draw(strategies.lists(values, max_size=2))
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = survive(main_of(command), words)
    assert status in (0, 2, None), (command, words)
    if status == 2:
        assert errors.getvalue().startswith("error: ") and errors.getvalue().count("\n") == 1


# Arguments that are not paths. `cli.arguments.path_argument` must declare every other argument.
WORDS = [
    "arms", "beam", "callback", "decoding", "differ", "host",
    "input", "labels", "language", "languages", "license", "mesh", "model", "name", "only",
    "probe", "query", "sentences", "set", "source_language", "split", "target_language", "task",
    "tasks", "text", "texts", "tokenize", "topology", "tpu", "word", "words",
]  # fmt: skip
ALSO = {"experiments.lab.tpu_check": ["recipe"]}
ALSO["export.serve"] = [setting.name for setting in describe(ServerConfig)]
BENCHMARKS = ("decoding", "input_pipeline", "serving")
BENCHMARKS = [f"experiments.lab.benchmarks.{name}" for name in BENCHMARKS]


class Parsed(BaseException):
    """An exception that stops a command's `main` and holds the command's parser."""


def places(parser: argparse.ArgumentParser, names: list[str]):
    """Yields (arguments before, arguments after) for each path argument of a command.

    Asserts that `names` contains all arguments that are not paths.
    """
    before, options = [], [one for one in parser._actions if one.option_strings]
    needed = [word for one in options if one.required for word in (one.option_strings[0], "x")]
    for action in parser._actions:
        if action.nargs == 0 or action.choices or "count." in repr(action.type):
            continue
        elif getattr(action.type, "func", action.type) is not check_path:
            assert action.dest in names, (parser.prog, action.dest)
        else:
            flag = action.option_strings[:1]
            yield flag or before, [] if flag else needed
        before = before if action.option_strings else [*before, "x"]


def test_no_command_goes_to_another_place_than_was_said(monkeypatch, capsys, tmp_path):
    def stop(self, *given):
        raise Parsed(self)

    monkeypatch.chdir(tmp_path)
    tried = []
    for name in [*BENCHMARKS, *PARSED]:
        main = main_of(name)
        with monkeypatch.context() as patch, pytest.raises(Parsed) as caught:
            for method in ("parse_known_args", "parse_known_intermixed_args"):
                patch.setattr(argparse.ArgumentParser, method, stop)
            main([])
        for words, more in places(caught.value.args[0], [*WORDS, *ALSO.get(name, ())]):
            tried.append(words)
            for bad in ("gs:/b/x", "gs://", "s3://b/x"):
                assert main([*words, bad, *more]) == 2, (name, words)
                said, why = capsys.readouterr().err, f"{bad} is not a supported path: give a local"
                assert said.startswith(f"error: {why}") and said.count("\n") == 1, said
    assert len(tried) > 40 and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "words",
    ["evaluate RUN --split", "train bert_tiny RUN --tpu", "compare OUT --data-dir",
     "train finetune:sst2 RUN --init"],
)  # fmt: skip
def test_a_flag_s_empty_word_is_refused(words, capsys):
    """An empty string, as from an unset variable in `--split "$SPLIT"`, is refused."""
    assert launched([*words.split(), ""]) == 2
    assert capsys.readouterr().err.startswith(f"error: {words.split()[-1]} is empty: ")


@pytest.mark.parametrize("same", ["{}/lines", "{}/d/../lines", "{}/lines-link"])
def test_an_output_that_is_the_input_is_refused(same, capsys, tmp_path):
    (tmp_path / "lines").write_text("kept\n")
    (tmp_path / "lines-link").symlink_to(tmp_path / "lines")
    (tmp_path / "d").mkdir()
    file, same = str(tmp_path / "lines"), same.format(tmp_path)
    assert launched(["predict", "RUN", "--input", file, "--output", same]) == 2
    said = f"error: --output {same} is also the input: give another file\n"
    assert capsys.readouterr().err == said and (tmp_path / "lines").read_text() == "kept\n"
