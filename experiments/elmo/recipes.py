"""`elmo recipes`."""

import argparse

from experiments import recipes
from experiments.elmo.recipe import ElmoRecipe


def run(options: argparse.Namespace) -> None:
    """Prints the recipes."""
    recipes.print_names(ElmoRecipe)
