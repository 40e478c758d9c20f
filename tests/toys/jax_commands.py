"""Runs commands on Keras's JAX backend, one after another in one process.

    KERAS_BACKEND=jax python -m tests.toys.jax_commands FILE

FILE is a JSON list of pairs: a program, such as "experiments.pretrain", and a list of its
arguments.
"""

import importlib
import json
import pathlib
import sys

if __name__ == "__main__":
    for program, words in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        assert importlib.import_module(f"{program}.__main__").main(words) == 0, words
