"""Training recipes: public functions that return recipes and name the sources of the settings.

`python -m experiments.pretrain recipes` lists the recipes for pre-training.
`experiments.translate`, `experiments.elmo` and `experiments.tcn` have the same command. With a
NAME, the command prints a recipe as a Python file to edit. The module `experiments.registry` loads
recipes.
"""
