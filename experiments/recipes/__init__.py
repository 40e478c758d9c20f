"""Recipes: each public function makes one, and its docstring names the sources of its numbers.

`python -m experiments.pretrain recipes` (or `translate`, `elmo`, `tcn`) lists them; with a NAME it
prints a recipe as a file to start from. `experiments.registry` loads them.
"""
