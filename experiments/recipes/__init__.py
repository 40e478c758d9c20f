"""Documented runs: each public function makes one recipe, and its docstring names the sources.

`python -m experiments.pretrain recipes` (or `translate`, `elmo`) lists them; with a NAME it prints
that recipe's commands, documentation and settings. `experiments.registry` finds them.
"""
