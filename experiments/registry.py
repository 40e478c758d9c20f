"""The recipes by name: every public function in a module of `experiments.recipes` makes one."""

import argparse
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable

from experiments.recipe import Recipe, override, settings_of
from macaron_tf.errors import UserError

# Imported by its name, since recipes import the commands, and the commands this module.
_PACKAGE = "experiments.recipes"


@functools.cache
def _makers() -> dict[str, Callable[[], Recipe]]:
    path = importlib.import_module(_PACKAGE).__path__
    modules = (importlib.import_module(f"{_PACKAGE}.{m.name}") for m in pkgutil.iter_modules(path))
    found = {
        name: function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    return dict(sorted(found.items()))


def names(kind: type[Recipe] = Recipe) -> list[str]:
    """The names of the recipes of a class."""
    return [name for name, make in _makers().items() if isinstance(make(), kind)]


def load(name: str, kind: type[Recipe] = Recipe, settings: Iterable[str] = ()) -> Recipe:
    """Makes the recipe of a name, with settings replaced as by `override`."""
    if name not in _makers():
        raise UserError(f"no recipe is called {name!r}; there are {', '.join(names(kind))}")
    recipe = _makers()[name]()
    if not isinstance(recipe, kind):
        raise UserError(
            f"{name} is a recipe of kind {recipe.kind!r}: use {recipe.command}, or one of "
            f"{', '.join(names(kind))}"
        )
    return override(recipe, settings)


def documentation(name: str) -> tuple[str, str]:
    """A recipe's text, and its family's: the sources of its numbers, the measured result."""
    make = _makers()[name]
    return inspect.getdoc(make), inspect.getdoc(inspect.getmodule(make))


def run(options: argparse.Namespace) -> None:
    """The command `recipes [NAME]`: all recipes with their first lines, or one recipe whole."""
    kind, name = pkgutil.resolve_name(options.kind), options.name
    if name is None:
        for each in names(kind):
            print(f"{each:28} {documentation(each)[0].splitlines()[0]}")
        return
    recipe = load(name, kind)
    print("\n\n".join(documentation(name)))
    if recipe.steps:
        print()
    for step in recipe.steps:
        print(f"    {recipe.command} {step.format(name=name)}")
    print()
    for path, value, range_, text in settings_of(recipe):
        print(f"{path}={value}\n    {range_}: {text}" if text else f"{path}={value}\n    {range_}")
