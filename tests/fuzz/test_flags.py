"""Flags of the commands: the parsers alone, nothing runs."""

import contextlib
import functools
import importlib
import importlib.util
import io
import pkgutil
import re
import types

import pytest

from tests.fuzz.profiles import examples, hypothesis, strategies, survive, values  # isort: skip

from experiments import command_line
from macaron_tf.command_names import COMMANDS

PARSED = sorted(
    name for name, (module, _) in COMMANDS.items() if module.startswith(("experiments.", "export."))
)


@functools.cache
def main_of(command: str):
    """The `main` of a command; a package's stands in `__main__`."""
    module = COMMANDS[command][0]
    package = importlib.util.find_spec(module).submodule_search_locations is not None
    return importlib.import_module(f"{module}.__main__" if package else module).main


def said(main, *words: str) -> str:
    """The output of a command that ends with status 0."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert survive(main, [*words]) in (None, 0)
    return shown.getvalue()


@functools.cache
def forms(command: str) -> list[tuple[list[str], list[str]]]:
    """Of each sub-command (one, without a name, where there are none): its words, its flags."""
    shown = said(main_of(command), "--help")
    names = re.findall("^    ([a-z_-]+)  ", shown, re.MULTILINE) if "COMMAND" in shown else []
    found = []
    for words in [[name] for name in names] or [[]]:
        flags = re.findall(r"(?<![\w-])--[a-z][a-z-]*", said(main_of(command), *words, "--help"))
        found.append((words, sorted(set(flags))))
    return found


@pytest.fixture(scope="module", autouse=True)
def nothing_runs():
    """Puts a function that does nothing in the place of every command's."""
    idle = types.SimpleNamespace(resolve_name=lambda name: lambda options: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_line, "pkgutil", idle)
        patch.setattr("macaron_tf.distribution.make_strategy", lambda *given: None)
        # The commands of `export` are no tables.
        for place in ("serve.run", "keras_model.run", "saved_model.export"):
            patch.setattr(f"export.{place}", lambda *given, **options: None)
        patch.setattr("export.client.Client.answers", lambda *given, **options: [])
        patch.setattr("export.client.Client.n_best", lambda *given, **options: [])
        patch.setattr("export.client.decoded", lambda stream: [])
        patch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO()))
        idle_signal = types.SimpleNamespace(signal=lambda *given: None, SIGINT=2, SIGTERM=15)
        patch.setattr("export.serve.signal", idle_signal)
        patch.setattr("logging.basicConfig", lambda **options: None)
        yield
    assert command_line.pkgutil is pkgutil


@examples(400, 400)
@hypothesis.given(strategies.data())
def test_any_words(data):
    command = data.draw(strategies.sampled_from(PARSED))
    begin, flags = data.draw(strategies.sampled_from(forms(command)))
    words = list(begin)
    for _ in range(data.draw(strategies.integers(0, 4))):
        words.append(data.draw(strategies.sampled_from(["run", *flags]) | values))
        words += data.draw(strategies.lists(values, max_size=2))
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = survive(main_of(command), words)
    assert status in (0, 2, None), (command, words)
    if status == 2:
        assert errors.getvalue().startswith("error: ") and errors.getvalue().count("\n") == 1
