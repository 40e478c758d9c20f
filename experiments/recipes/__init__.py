"""Recipes by name: each module here holds one `RECIPE`, documented."""

import importlib
import pkgutil

from experiments.recipe import Recipe
from macaron_tf.errors import UserError


def names(kind: type[Recipe] = Recipe) -> list[str]:
    """The recipes there are.

    Args:
        kind: only those of this class.
    """
    every = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [name for name in every if kind is Recipe or isinstance(_recipe(name), kind)]


def load(name: str, kind: type[Recipe] = Recipe) -> Recipe:
    """The recipe of that name.

    Args:
        name: one of `names()`.
        kind: the class that it must be of.

    Raises:
        UserError: no such recipe, or one of another kind; it lists the names.
    """
    if name not in names():
        raise UserError(f"no recipe is called {name!r}; there are {', '.join(names(kind))}")
    recipe = _recipe(name)
    if not isinstance(recipe, kind):
        raise UserError(
            f"{name} is a recipe of kind {recipe.kind!r}: use {recipe.command}, or one of "
            f"{', '.join(names(kind))}"
        )
    return recipe


def print_names(kind: type[Recipe]) -> None:
    """Prints each recipe's name and the first line of its documentation."""
    for name in names(kind):
        text = importlib.import_module(f"{__name__}.{name}").__doc__
        print(f"{name:28} {text.splitlines()[0]}")


def _recipe(name: str) -> Recipe:
    return importlib.import_module(f"{__name__}.{name}").RECIPE
