"""Training recipes: public functions that return recipes and name the sources of the settings.

`macaron pretrain recipes` lists the recipes for pre-training.
`macaron translate`, `macaron elmo` and `macaron tcn` have the same command. With a
NAME, the command prints a recipe as a Python file to edit. The module `experiments.registry` loads
recipes.
"""
