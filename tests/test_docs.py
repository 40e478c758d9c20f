"""The documentation names only files, commands and settings that exist.

The committed results stay small, and no file names a path of the machine that made it.
"""

import argparse
import contextlib
import functools
import importlib
import importlib.util
import itertools
import pathlib
import re
import shlex
import sys

import pytest

from experiments import registry
from experiments.predict import AnswerSettings
from macaron_tf.cli import arguments
from macaron_tf.cli.launcher import COMMANDS, RUNS, import_command
from macaron_tf.errors import UserError
from macaron_tf.runs.recipe import Recipe, named_settings, override, settings_of
from macaron_tf.settings import hints_of
from tests import lab
from tests.toys import guides

ROOT = pathlib.Path(__file__).parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILES += [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]
RESULTS = [path for path in (ROOT / "experiments" / "results").rglob("*") if path.is_file()]
FILES += sorted(path for path in RESULTS if path.suffix == ".md")
PAGES = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in FILES}


OF_RUNS = {*import_command(RUNS).COMMANDS}
NAMES = (*COMMANDS, *OF_RUNS)


def commands_in(text: str) -> list[str]:
    """Returns the arguments of `macaron`, or of `python -m`, in each command of a text."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    names = rf"macaron (?={'|'.join(NAMES)})|python -m (?=experiments\.|export\.)"
    quoted = r"'[^'\n]*(?:\n[^'\n]+)*'|\"[^\"\n]*\""  # single quotes may span several lines
    commands = re.findall(rf"(?:{names})((?:{quoted}|[^\n`|&#'\"])*)", text)
    return [line.split("  ")[0].strip() if "'" not in line else line.strip() for line in commands]


def key(line: str) -> str:
    """Returns the command or module of a command line."""
    name = shlex.split(line)[0]
    if name not in NAMES and importlib.util.find_spec(name) is None:
        raise AssertionError(f"{name} does not exist")
    return name


def program(name: str):
    """Returns the `main` function of a command or a module of the lab, or `None` for a script."""
    if name in OF_RUNS:
        return import_command(RUNS).main
    if name in COMMANDS:
        return import_command(COMMANDS[name][0]).main
    if name not in lab.COMMANDS:
        return None
    with contextlib.suppress(ModuleNotFoundError):
        name = importlib.import_module(f"{name}.__main__").__name__
    return getattr(importlib.import_module(name), "main", None)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page])
    for target in targets + re.findall(r"^\[[a-z-]+\]: ([^#\n]+)", PAGES[page], re.M):
        # `make docs` writes the reference.
        made = target.startswith(("https://", "reference/")) or "/reference/" in target
        assert made or (ROOT / page).parent.joinpath(target).exists(), target


def test_the_pages_are_short():
    assert PAGES["README.md"].count("\n") <= 110 and PAGES["README.md"].count("](") <= 25
    assert sum(len(text.encode()) for page, text in PAGES.items() if page[:5] == "docs/") <= 210_000


def test_the_architecture_names_files_that_exist():
    for path in re.findall(
        r"(?:macaron_tf|experiments|export|tests)/[\w/]+\.py", PAGES["docs/architecture.md"]
    ):
        assert (ROOT / path).is_file(), path


class _Parsed(BaseException):
    """An exception raised once a parser has accepted its arguments."""


def test_the_parsers_accept_every_command(monkeypatch):
    """Scripts, names of commands in sentences, and lines with "..." are left out."""
    # `parse_intermixed_args` calls `parse_known_intermixed_args`.
    for method in ("parse_args", "parse_known_intermixed_args"):
        parse = getattr(argparse.ArgumentParser, method)

        def stop(self, *parse_arguments, parse=parse):
            parsed = parse(self, *parse_arguments)
            assert not (isinstance(parsed, tuple) and parsed[1]), f"unknown words: {parsed[1]}"
            raise _Parsed

        monkeypatch.setattr(argparse.ArgumentParser, method, stop)
    texts = [*PAGES.values(), *(registry.documentation(name)[0] for name in registry.names())]
    for line in {line for text in texts for line in commands_in(text)}:
        argv = shlex.split(line.partition(" > ")[0].partition(" < ")[0])
        main, is_name = program(argv[0]), line == key(line)
        if is_name or "..." in argv or getattr(main, "__module__", "") != arguments.__name__:
            continue
        with pytest.raises(_Parsed):  # a parser that refuses its words prints them and exits
            main(argv if argv[0] in OF_RUNS else argv[1:])


@functools.cache
def recipes() -> list[tuple[Recipe, set[str]]]:
    """Returns recipes of every kind, each with the paths of its settings."""
    names = [*registry.names(), "text_to_text:sst2"]
    names += [f"sentence_bert:{task}" for task in ("snli", "stsb", "triplets")]
    tasks = ("squad", "classify", "tag", "choose", "sst2")
    names += [f"{name}:{task}" for name in ("finetune_elmo", "finetune") for task in tasks]
    made = [registry.load(name) for name in names]
    made.append(made[-1].changed(data=dict(languages=("en", "de"))))
    return [(recipe, {path for path, *_ in settings_of(recipe)}) for recipe in made]


def settings_in(text: str) -> list[str]:
    """Returns the settings after `--set` and in inline code such as `training.max_steps=1000`."""
    text = "\n".join(line for line in text.splitlines() if "error: " not in line)
    settings = re.findall(r"--set[ \n]+('[^']+'|\"[^\"]+\"|[^\s`\"]+=[^\s`\"]*)", text)
    settings += re.findall(r"`('?[a-z_]+\.[a-z_.]+=[^`\n]+)`", text)
    return [shlex.split(setting)[0] for setting in settings]


def is_setting(setting: str) -> bool:
    """Returns whether some recipe, or the command `predict`, accepts a setting.

    If the value is a placeholder, only the path must exist.
    """
    path, _, value = setting.partition("=")
    recipes_with_path = [recipe for recipe, paths in recipes() if path in paths]
    is_of_answers = path in hints_of(AnswerSettings)
    if re.fullmatch(r"|\.\.\.|[A-Z]+|\w+:[A-Z]\w+|python:[\w.:]+", value):
        return bool(recipes_with_path) or is_of_answers
    if is_of_answers:
        with contextlib.suppress(UserError):
            return bool(named_settings(AnswerSettings, [setting]))
    for recipe in recipes_with_path:
        with contextlib.suppress(UserError):
            override(recipe, [setting])
            return True
    return False


PLACEHOLDERS = ("PATH=VALUE", "NAME=VALUE")


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_of_a_page_is_one_of_a_recipe(page):
    settings = [setting for setting in settings_in(PAGES[page]) if setting not in PLACEHOLDERS]
    assert not [setting for setting in settings if not is_setting(setting)]


def test_targets_and_scripts_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page, text in PAGES.items():
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.M):
            assert re.search(rf"^{target}:", makefile, re.M), (page, target)
        for name in re.findall(r"(?:^    |`)macaron ([a-z_.]+)", text, re.M):
            assert name in NAMES, (page, name)


def test_every_test_is_run_once():
    """`make test-all` runs every test in exactly one pytest pass, except slow tests."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    chosen = re.findall(r'-m "(.*thorough.*)"', makefile)
    for values in itertools.product((False, True), repeat=2):
        marks = dict(zip(("thorough", "slow"), values, strict=True))
        runs = sum(eval(expression, marks) for expression in chosen)
        assert runs == (not marks["slow"]), marks


def test_the_committed_results_are_small():
    assert len(RESULTS) <= 70 and sum(path.stat().st_size for path in RESULTS) <= 1_500_000
    assert {path.suffix for path in RESULTS} <= {".md", ".json", ".png"}


def test_no_result_has_a_path_of_a_machine_and_every_figure_is_shown():
    linked = set()
    for path in RESULTS:
        if path.suffix != ".png":
            text = path.read_text(encoding="utf-8")
            machine = r"(?<![\w.:<)/}-])/\w+/\w+|\.\./shared|\b[A-Z]:\\"
            assert not re.findall(machine, text), path
        if path.suffix == ".md":
            links = re.findall(r"\]\(([^)#\s]+)", text)
            linked |= {path.parent.joinpath(target).resolve() for target in links}
    assert not [path for path in RESULTS if path.suffix == ".png" and path not in linked]


@pytest.mark.parametrize("page", ["docs/own_block.md", "docs/own_objective.md"])
def test_the_code_of_the_guides_runs(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    modules = guides.write_modules(tmp_path, PAGES[page])
    assert modules
    for name in modules:
        importlib.import_module(name)
        del sys.modules[name]
    for code in re.findall(r"```python\n(.*?)```", PAGES[page], re.S):
        exec(compile(code, page, "exec"), {"__name__": "guide"})
