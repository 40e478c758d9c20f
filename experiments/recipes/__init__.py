"""Recipes by name: each module here holds one `RECIPE`, documented."""

import importlib
import pkgutil

from experiments.recipe import TranslationRecipe
from macaron_tf.errors import UserError


def names() -> list[str]:
    """The recipes there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> TranslationRecipe:
    """The recipe of that name; a UserError lists the names."""
    if name not in names():
        raise UserError(f"no recipe is called {name!r}; there are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}").RECIPE
