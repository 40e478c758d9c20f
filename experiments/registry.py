"""Named recipes. Loading a recipe imports only the module that defines the recipe."""

import argparse
import dataclasses
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterable

from macaron_tf.errors import UserError, nearest
from macaron_tf.io.plug_ins import clear_errors, find, find_sources, is_import_path, origin_of
from macaron_tf.runs.recipe import Recipe, override, settings_of

# Dict mapping a recipe to its module in `experiments.recipes`. The files are only read, because
# importing all modules would import every kind of training.
FAMILY_OF = {
    name: path.stem
    for path in sorted(pathlib.Path(__file__).with_name("recipes").glob("[a-z]*.py"))
    for name in re.findall(r"^def ([a-z]\w*)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
}
_RECIPES = "experiments.recipes"
# Modules whose recipes need a task, as in `finetune:sst2`.
_OF_TASKS = ("finetuning",)


def _split(name: str) -> tuple[str, str | None]:
    """Splits `RECIPE:TASK` into the location of a recipe and its task, or `None` without a task."""
    builtin, _, task = name.partition(":")
    if builtin in FAMILY_OF:
        return builtin, task or None
    match = re.fullmatch(r"(.+:[A-Za-z_]\w*):([\w+]+)", name, re.S)
    return match.groups() if match else (name, None)


def names() -> list[str]:
    """Returns the sorted names of all recipes that need no task."""
    return [name for name, family in sorted(FAMILY_OF.items()) if family not in _OF_TASKS]


def load(name: str, recipe_class: type[Recipe] = Recipe, settings: Iterable[str] = ()) -> Recipe:
    """Makes a recipe and replaces settings.

    `name` is such as `bert_tiny`, with its task `finetune:sst2`, or a user's function as
    `./my_recipes.py[:NAME]` or `package.module:NAME`, also with a task. `settings` are for
    `override`.
    """
    location, task = _split(name)
    arguments, builtin = [task] if task else [], name.partition(":")[0]
    if is_builtin := location in FAMILY_OF:
        if bool(task) != (needs_task := FAMILY_OF[location] in _OF_TASKS):
            problem = f"needs a task: write {location}:TASK" if needs_task else "has no tasks"
            raise UserError(f"{location} {problem}")
        # Imported late, because the modules of recipes import modules that import this module.
        module = importlib.import_module(f"{_RECIPES}.{FAMILY_OF[location]}")
        recipe = vars(module)[location](*arguments)
    else:
        similar = nearest(builtin, FAMILY_OF)
        # RECIPE:TASK with a typing error is no module:NAME.
        if not is_import_path(location) or (similar and origin_of(name) is None):
            listed = f"`macaron recipes` lists the recipes{similar}"
            mend = f"for your own file write ./{builtin}.py"
            raise UserError(f"no recipe is called {name!r}: {listed}; {mend}")
        function = find(location, trust_code=True)
        with clear_errors(location):
            recipe = function(*arguments)
    if not isinstance(recipe, recipe_class):
        raise UserError(
            f"{name} is a {type(recipe).__name__}, not a {recipe_class.__name__}: give another "
            "recipe"
        )
    if not is_builtin:
        find_sources(dataclasses.asdict(recipe))
    return override(recipe, settings)


def documentation(name: str) -> tuple[str, str]:
    """Returns the docstring of a built-in recipe and the docstring of its module."""
    location = _split(name)[0]
    module = importlib.import_module(f"{_RECIPES}.{FAMILY_OF[location]}")
    return inspect.getdoc(vars(module)[location]), inspect.getdoc(module)


def source_code(name: str) -> str:
    """Returns the text of a Python file that defines a copy of a recipe, for a user to change."""
    function, _, task = name.partition(":")
    call = f'base("{task}")' if task else "base()"
    return f'''"""A copy of the recipe {name} to change.

    macaron train ./{function}.py runs/{function}

`macaron settings {name}` lists the settings.
"""

from {_RECIPES}.{FAMILY_OF[function]} import {function} as base


def {function}():
    return {call}.changed(training=dict(seed=1))
'''


def run(options: argparse.Namespace) -> None:
    """Runs the command `recipes [NAME]`: lists all recipes, or prints a recipe as a Python file."""
    name = options.name
    if name is None:
        for listed, family in sorted(FAMILY_OF.items()):
            shown = f"{listed}:TASK" if family in _OF_TASKS else listed
            print(f"{shown:28} {documentation(listed)[0].splitlines()[0]}")
        return
    if _split(name)[0] not in FAMILY_OF and is_import_path(name):
        raise UserError(f"{name} is your own recipe: edit its file, or name a built-in recipe")
    load(name)  # raises for a wrong name
    print(source_code(name), end="")


def run_settings(options: argparse.Namespace) -> None:
    """Runs `settings RECIPE [WORD ...]`: prints the settings, with any word in path or meaning."""
    recipe, words = load(options.recipe, settings=options.set), options.words
    shown = [
        f"{path}={value}\n    {range_}{text and f': {text}'}"
        for path, value, range_, text in settings_of(recipe)
        if not words or any(word in f"{path} {text}" for word in words)
    ]
    print("\n".join(shown))
