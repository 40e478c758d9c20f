"""Recipes by name: each module here holds one `RECIPE`, documented."""

import importlib
import pkgutil

from experiments.recipe import Recipe, settings_of
from macaron_tf.errors import UserError


def names(kind: type[Recipe] = Recipe) -> list[str]:
    """The names of the recipes of a class."""
    every = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [name for name in every if kind is Recipe or isinstance(_module(name).RECIPE, kind)]


def load(name: str, kind: type[Recipe] = Recipe) -> Recipe:
    """The recipe of a name.

    Raises:
        UserError: no such recipe, or one of another kind; it lists the names.
    """
    if name not in names():
        raise UserError(f"no recipe is called {name!r}; there are {', '.join(names(kind))}")
    recipe = _module(name).RECIPE
    if not isinstance(recipe, kind):
        raise UserError(
            f"{name} is a recipe of kind {recipe.kind!r}: use {recipe.command}, or one of "
            f"{', '.join(names(kind))}"
        )
    return recipe


def show(kind: type[Recipe], name: str | None = None) -> None:
    """Prints each recipe's name and the first line of its documentation; of one recipe all.

    Args:
        kind: class of the recipes.
        name: of the recipe whose documentation and settings are printed.

    Raises:
        UserError: no such recipe, or one of another kind.
    """
    if name is None:
        for each in names(kind):
            print(f"{each:28} {_module(each).__doc__.splitlines()[0]}")
        return
    recipe = load(name, kind)
    print(_module(name).__doc__)
    for path, value, range_, text in settings_of(recipe):
        print(f"{path}={value}\n    {range_}: {text}" if text else f"{path}={value}\n    {range_}")


def _module(name: str):
    return importlib.import_module(f"{__name__}.{name}")
