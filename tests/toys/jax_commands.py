"""Runs commands on Keras's JAX backend, one after another in one process.

    KERAS_BACKEND=jax python -m tests.toys.jax_commands FILE

FILE is a JSON list of commands. Each is a list of the name and the arguments.
"""

import json
import pathlib
import sys

from experiments.commands import main

if __name__ == "__main__":
    for words in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        assert main(words) == 0, words
