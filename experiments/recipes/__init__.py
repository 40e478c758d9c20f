"""Training recipes: public functions that return recipes and name the sources of the settings.

`macaron recipes` lists the recipes, and `macaron recipes NAME` prints a recipe as a Python file to
edit. The module `experiments.registry` loads recipes.
"""
