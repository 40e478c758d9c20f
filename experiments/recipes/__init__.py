"""Training recipes, returned by public functions that cite the sources of the settings.

`python -m experiments.pretrain recipes` (or `translate`, `elmo`, `tcn`) lists the recipes. With a
NAME, the command prints a recipe as a Python file to edit. The module `experiments.registry` loads
recipes.
"""
