"""The pages name files and commands that exist, and show no command that nothing runs."""

import contextlib
import importlib
import importlib.util
import io
import pathlib
import re
import shlex
import sys

import pytest

from experiments import command_line, registry
from macaron_tf.command_names import COMMANDS, module_of
from tests import walk

ROOT = pathlib.Path(__file__).parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILES += [ROOT / "experiments" / "cloud" / "README.md", ROOT / "export" / "deploy" / "README.md"]
PAGES = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in FILES}

# Commands that the walk leaves out, and the tests that run them.
TESTED = {
    "experiments.benchmarks.soak": "experiments/test_benchmark_soak.py",
    "experiments.cloud.cost": "experiments/test_cloud.py",
    "experiments.data_service": "experiments/test_data_service.py",
    "experiments.elmo tag": "experiments/elmo/test_commands.py",
    "experiments.examples.gpt": "experiments/test_examples.py",
    "experiments.finetune submit": "experiments/test_finetune.py",  # walk's RTE has no test
    "experiments.ode": "experiments/test_ode.py",
    "experiments.slides encoders": "experiments/test_studies.py",
    "experiments.slides decoders": "experiments/test_studies.py",
    "experiments.slides sentences": "experiments/test_studies.py",
    "experiments.swish_rnn step-sizes": "experiments/test_studies.py",
    "experiments.tcn train": "experiments/tcn/test_commands.py",
    "experiments.tpu_check": "experiments/test_tpu_check.py",
    "export.client": "export/test_serve_client.py",
    "export.keras_model": "export/test_exported.py",
    "export.serve": "export/test_serve_command.py",
    "export.triton": "export/test_triton.py",
}


def commands_in(text: str) -> list[str]:
    """The words after `python -m` of a text's commands."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    quoted = r"'[^'\n]*(?:\n[^'\n]+)*'"  # over several lines too
    found = re.findall(rf"python -m ((?:experiments|export)\.(?:{quoted}|[^\n`|&#'])*)", text)
    return [line.split("  ")[0].strip() if "'" not in line else line.strip() for line in found]


def key(line: str) -> str:
    """The module of a command, and its sub-command."""
    module, *words = shlex.split(line)
    if importlib.util.find_spec(module) is None:
        raise AssertionError(f"{module} does not exist")
    own = program(module)
    sub = own and words[:1] and re.search(rf"^    {re.escape(words[0])}\b", help_of(own), re.M)
    return f"{module} {words[0]}" if sub else module


def program(module: str):
    """The `main` of a command's module or package; None for a script."""
    if module not in {known for known, _ in COMMANDS.values()}:
        return None
    with contextlib.suppress(ModuleNotFoundError):
        module = importlib.import_module(f"{module}.__main__").__name__
    return getattr(importlib.import_module(module), "main", None)


def help_of(main) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(["--help"])
    return out.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page]):
        made = target.startswith("reference/") or "/reference/" in target  # by `make docs`
        assert made or (ROOT / page).parent.joinpath(target).exists(), target


def test_the_architecture_names_files_that_exist():
    for path in re.findall(
        r"(?:macaron_tf|experiments|export|tests)/[\w/]+\.py", PAGES["docs/architecture.md"]
    ):
        assert (ROOT / path).is_file(), path


def test_the_readme_is_a_page():
    assert len(PAGES["README.md"].splitlines()) <= 150


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    """Every command of the pages and of the recipes' texts, and where it stands."""
    texts = {**PAGES, **{name: registry.documentation(name)[0] for name in registry.names()}}
    return {line: place for place, text in texts.items() for line in commands_in(text)}


def test_every_command_is_run_by_the_walk_or_by_a_test(shown, tmp_path):
    walked = {key(line) for _, line, _ in walk.commands("DATA", tmp_path)}
    missing = {}
    for line, place in shown.items():
        if (name := key(line)) not in walked | TESTED.keys():
            missing[name] = place
    assert not missing
    for name, file in TESTED.items():
        module, _, sub = name.partition(" ")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert module.rpartition(".")[2] in text and (not sub or f'"{sub}"' in text), (name, file)
    assert not walked & TESTED.keys()


class _Parsed(BaseException):
    """The words were accepted."""


def test_the_parsers_accept_every_command(shown, monkeypatch):
    # `parse_intermixed_args`, which calls the second, is bound when one is made.
    for method in ("parse_args", "parse_known_intermixed_args"):
        parse = getattr(command_line.Parser, method)

        def stop(self, *words, parse=parse):
            parsed = parse(self, *words)
            assert not (isinstance(parsed, tuple) and parsed[1]), f"unknown words: {parsed[1]}"
            raise _Parsed

        monkeypatch.setattr(command_line.Parser, method, stop)
    for line, place in shown.items():
        module, *words = shlex.split(line.partition(" > ")[0].partition(" < ")[0])
        main = program(module)
        if "..." in words or main is None or main.__module__ != "experiments.command_line":
            continue
        print(place, line)  # of a refusal
        with pytest.raises(_Parsed):
            main(words)


def test_targets_and_scripts_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page, text in PAGES.items():
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.M):
            assert re.search(rf"^{target}:", makefile, re.M), (page, target)
        for name in re.findall(r"(?:^    |`)macaron ([a-z_.]+)", text, re.M):
            assert module_of(name), (page, name)


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
