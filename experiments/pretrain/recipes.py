"""`pretrain recipes`: what can be pre-trained."""

import argparse

from experiments import recipes
from experiments.pretrain.recipe import PretrainingRecipe


def run(options: argparse.Namespace) -> None:
    """Prints each recipe's name and the first line of its documentation."""
    recipes.print_names(PretrainingRecipe)
