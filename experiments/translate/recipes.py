"""`translate recipes`: what can be trained."""

import argparse

from experiments import recipes
from experiments.translate.recipe import TranslationRecipe


def run(options: argparse.Namespace) -> None:
    """Prints each recipe's name and the first line of its documentation."""
    recipes.print_names(TranslationRecipe)
