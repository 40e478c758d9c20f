"""`translate recipes`: what can be trained."""

import argparse
import importlib

from experiments import recipes
from experiments.translation.recipe import TranslationRecipe


def run(options: argparse.Namespace) -> None:
    """Prints each recipe's name and the first line of its documentation."""
    for name in recipes.names(TranslationRecipe):
        text = importlib.import_module(f"experiments.recipes.{name}").__doc__
        print(f"{name:28} {text.splitlines()[0]}")
