"""The documentation names only files and commands that exist, and tests run its commands."""

import contextlib
import functools
import importlib
import importlib.util
import io
import itertools
import pathlib
import re
import shlex
import sys

import pytest
import yaml

import macaron_tf
from experiments import registry
from experiments.embed.run import paper_recipe
from experiments.finetune.run import preset
from experiments.recipe import Recipe, override, settings_of
from experiments.text_to_text.run import TextRecipe
from macaron_tf.cli import arguments
from macaron_tf.cli.launcher import COMMANDS, command
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.errors import UserError
from tests import lab, walk

ROOT = pathlib.Path(__file__).parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILES += [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]
PAGES = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in FILES}

# Commands that `tests.walk` does not run, and the tests that run them.
TESTED = {
    "hub": "test_publishing.py",
    "hugging_face": "interop/test_hugging_face_out.py",
    "elmo tag": "experiments/elmo/test_commands.py",
    "experiments.examples.ask_server": "experiments/test_examples.py",
    "experiments.examples.gpt": "experiments/test_examples.py",
    "finetune submit": "experiments/test_finetune.py",  # no test split in the walk
    "experiments.lab.ode": "lab/test_ode.py",
    "pretrain vocabulary": "experiments/pretrain/test_commands.py",
    "tcn train": "experiments/tcn/test_commands.py",
    "experiments.lab.tpu_check": "lab/test_tpu_check.py",
    "keras_model": "export/test_every_text.py",
    "serve": "export/test_serve_command.py",
}


def commands_in(text: str) -> list[str]:
    """Returns the arguments of `macaron`, or of `python -m`, in each command of a text."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    names = rf"macaron (?={'|'.join(COMMANDS)})|python -m (?=experiments\.|export\.)"
    quoted = r"'[^'\n]*(?:\n[^'\n]+)*'|\"[^\"\n]*\""  # single quotes may span several lines
    commands = re.findall(rf"(?:{names})((?:{quoted}|[^\n`|&#'\"])*)", text)
    return [line.split("  ")[0].strip() if "'" not in line else line.strip() for line in commands]


def key(line: str) -> str:
    """Returns the command or module of a command line, and its sub-command if there is one.

    Raises an AssertionError if the module does not exist.
    """
    name, *argv = shlex.split(line)
    if name not in COMMANDS and importlib.util.find_spec(name) is None:
        raise AssertionError(f"{name} does not exist")
    main = program(name)
    sub = main and argv[:1] and re.search(rf"^    {re.escape(argv[0])}\b", help_of(main), re.M)
    return f"{name} {argv[0]}" if sub else name


def program(name: str):
    """Returns the `main` function of a command or a module of the lab, or `None` for a script."""
    if name in COMMANDS:
        return command(name)
    if name not in lab.COMMANDS:
        return None
    with contextlib.suppress(ModuleNotFoundError):
        name = importlib.import_module(f"{name}.__main__").__name__
    return getattr(importlib.import_module(name), "main", None)


@functools.cache
def help_of(main, *argv) -> str:
    """Returns the help of a command or sub-command, or "" if no such sub-command exists."""
    out, errors = io.StringIO(), io.StringIO()
    redirected = contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors)
    with redirected[0], redirected[1], contextlib.suppress(SystemExit):
        main([*argv, "--help"])
    return out.getvalue()


@functools.cache
def helps() -> dict[tuple[str, ...], str]:
    """Returns a dict mapping (command,) and (command, sub-command) to the help text."""
    texts = {}
    for name in COMMANDS:
        if main := program(name):
            texts[(name,)] = help_of(main)
            for sub in re.findall(r"^    ([a-z][a-z-]*)(?:  |$)", texts[(name,)], re.M):
                if (text := help_of(main, sub)) not in ("", texts[(name,)]):
                    texts[(name, sub)] = text
    return texts


def inline_code(text: str) -> list[str]:
    """Returns the inline code in a Markdown page; code blocks are left out."""
    text = re.sub(r"^```.*?^```|^    .*?$", "", text, flags=re.S | re.M)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def command_lines(span: str) -> list[tuple[tuple[str, ...], str]]:
    """Returns the commands that inline code may stand for, each with its arguments.

    `train RUN` may stand for the sub-command `train` of any command.
    """
    argv = shlex.split(span.removeprefix("macaron "))
    candidates = []
    for head in helps():
        for name in (head, head[1:]):  # the full command, or the sub-command alone
            longer = (*name, *argv[len(name) : len(name) + 1]) in helps()
            if name and [*name] == argv[: len(name)] and not longer:
                candidates.append((head, argv[len(name) :]))
    return candidates


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]):
        # `make docs` writes the reference.
        made = target.startswith(("https://", "reference/")) or "/reference/" in target
        assert made or (ROOT / page).parent.joinpath(target).exists(), target


def test_the_architecture_names_files_that_exist():
    for path in re.findall(
        r"(?:macaron_tf|experiments|export|tests)/[\w/]+\.py", PAGES["docs/architecture.md"]
    ):
        assert (ROOT / path).is_file(), path


def test_the_files_for_contributors_are_in_step():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == macaron_tf.__version__
    for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        yaml.safe_load(file.read_text(encoding="utf-8"))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]


def test_the_readme_is_a_page():
    assert len(PAGES["README.md"].splitlines()) <= 150


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    """Returns a dict mapping each command to the page or recipe that shows the command."""
    texts = {**PAGES, **{name: registry.documentation(name)[0] for name in registry.names()}}
    return {
        line: page
        for page, text in texts.items()
        for line in commands_in(text)
        if line != key(line)  # the name alone, in a sentence
    }


def test_every_command_is_run_by_the_walk_or_by_a_test(shown, tmp_path):
    walked = {key(line) for _, line, _ in walk.commands("DATA", tmp_path)}
    missing = {}
    for line, page in shown.items():
        if (name := key(line)) not in walked | TESTED.keys():
            missing[name] = page
    assert not missing
    for name, file in TESTED.items():
        module, _, sub = name.partition(" ")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert module.rpartition(".")[2] in text and (not sub or f'"{sub}"' in text), (name, file)
    assert not walked & TESTED.keys()


class _Parsed(BaseException):
    """An exception raised once a parser has accepted its arguments."""


@pytest.fixture
def accepted(monkeypatch, capsys):
    """Returns `accepts(line)`, which tells whether a command's parser accepts a command line.

    Scripts, and lines with "...", are always accepted.
    """
    # `parse_intermixed_args` calls `parse_known_intermixed_args`.
    for method in ("parse_args", "parse_known_intermixed_args"):
        parse = getattr(arguments.Parser, method)

        def stop(self, *parse_arguments, parse=parse):
            parsed = parse(self, *parse_arguments)
            assert not (isinstance(parsed, tuple) and parsed[1]), f"unknown words: {parsed[1]}"
            raise _Parsed

        monkeypatch.setattr(arguments.Parser, method, stop)

    def accepts(line: str) -> bool:
        name, *argv = shlex.split(line.partition(" > ")[0].partition(" < ")[0])
        main = program(name)
        if "..." in argv or main is None or main.__module__ != "macaron_tf.cli.arguments":
            return True
        try:
            main(argv)
        except _Parsed:
            return True
        except SystemExit:
            return False
        raise AssertionError(f"{line} was not parsed")

    return accepts


def test_the_parsers_accept_every_command(shown, accepted):
    assert not {line: page for line, page in shown.items() if not accepted(line)}


def test_every_command_of_the_results_exists_and_is_accepted(accepted):
    """The result pages name only modules, flags and settings that exist."""
    for file in (ROOT / "experiments" / "results").rglob("*.md"):
        text = file.read_text(encoding="utf-8")
        for line in commands_in(text):
            assert key(line) == line or accepted(line), (file, line)
        assert not [setting for setting in settings_in(text) if not is_setting(setting)], file


@pytest.mark.parametrize("page", PAGES)
def test_inline_command_lines_are_accepted(page, accepted):
    """Inline code such as `train classify runs/mine` is accepted by some command's parser."""
    for span in inline_code(PAGES[page]):
        lines = command_lines(span) if "..." not in span else []
        for head, argv in lines:
            flags = re.findall("--[a-z-]+", " ".join(argv))
            if not argv or (argv[0][0] == "-" and all(flag in helps()[head] for flag in flags)):
                break  # the command's name alone, or with flags only
            if accepted(shlex.join([*head, *argv])):
                break
        else:
            assert not lines, span


@functools.cache
def recipes() -> list[tuple[Recipe, set[str]]]:
    """Returns named recipes and some task recipes, each with the paths of its settings."""
    tasks = [get_task(name, own=True) for name in ("squad", "classify", "tag", "choose", "sst2")]
    made = [registry.load(name) for name in registry.names()]
    made += [paper_recipe(name) for name in ("snli", "stsb", "triplets")]
    made += [preset(name, task) for name in ("elmo", "macaron") for task in tasks]
    text = dict(model="t5_tiny", task="sst2", source="tsv:x", init="x", training=made[0].training)
    made += [TextRecipe(**text), made[-1].changed(languages=("en", "de"))]
    return [(recipe, {path for path, *_ in settings_of(recipe)}) for recipe in made]


def settings_in(text: str) -> list[str]:
    """Returns the settings after `--set` and in inline code such as `training.max_steps=1000`."""
    text = "\n".join(line for line in text.splitlines() if "error: " not in line)
    settings = re.findall(r"--set[ \n]+('[^']+'|\"[^\"]+\"|[^\s`\"]+=[^\s`\"]*)", text)
    settings += [
        span for span in inline_code(text) if re.fullmatch(r"'?[a-z_]+\.[a-z_.]+=.*", span)
    ]
    return [shlex.split(setting)[0] for setting in settings]


def is_setting(setting: str) -> bool:
    """Returns whether some recipe accepts a setting.

    If the value is a placeholder, only the path must exist.
    """
    path, _, value = setting.partition("=")
    recipes_with_path = [recipe for recipe, paths in recipes() if path in paths]
    if re.fullmatch(r"|\.\.\.|[A-Z]+|\w+:[A-Z]\w+", value):
        return bool(recipes_with_path)
    for recipe in recipes_with_path:
        with contextlib.suppress(UserError):
            override(recipe, [setting])
            return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_of_a_page_is_one_of_a_recipe(page):
    settings = [setting for setting in settings_in(PAGES[page]) if setting != "PATH=VALUE"]
    assert not [setting for setting in settings if not is_setting(setting)]


def test_what_is_wrong_is_found(accepted):
    assert not is_setting("training.lerning_rate=1") and not is_setting("training.seed=x")
    assert settings_in("`--set\nmodel.x=1` `'data.y=(1, 2)'`") == ["model.x=1", "data.y=(1, 2)"]
    for span in "finetune predict RUN --nope", "translate average RUN RUN":
        [(head, argv)] = command_lines(span)
        assert not accepted(shlex.join([*head, *argv])), span


def test_every_setting_of_a_help_is_one_of_a_recipe():
    settings = {
        setting
        for text in helps().values()
        for setting in re.findall(r"[a-z_]+\.\w+=[^\s,;)]+", text)
    }
    assert len(settings) > 5 and not [setting for setting in settings if not is_setting(setting)]


def test_targets_and_scripts_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page, text in PAGES.items():
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.M):
            assert re.search(rf"^{target}:", makefile, re.M), (page, target)
        for name in re.findall(r"(?:^    |`)macaron ([a-z_.]+)", text, re.M):
            assert name in COMMANDS, (page, name)


def test_every_test_is_run_once():
    """`make test-all` runs every test in exactly one pytest pass, except slow tests."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    chosen = re.findall(r'-m "(.*thorough.*)"', makefile)
    for values in itertools.product((False, True), repeat=2):
        marks = dict(zip(("thorough", "slow"), values, strict=True))
        runs = sum(eval(expression, marks) for expression in chosen)
        assert runs == (not marks["slow"]), marks


@pytest.mark.parametrize("page", ["docs/own_block.md", "docs/own_objective.md"])
def test_the_code_of_the_guides_runs(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    modules = walk.write_modules(tmp_path, PAGES[page])
    assert modules
    for name in modules:
        importlib.import_module(name)
        del sys.modules[name]
    for code in re.findall(r"```python\n(.*?)```", PAGES[page], re.S):
        exec(compile(code, page, "exec"), {"__name__": "guide"})
