"""Runs commands on Keras's JAX backend, one after another in one process.

    KERAS_BACKEND=jax python -m tests.toys.jax_commands FILE

FILE is a JSON list of pairs: the name of a command and a list of its arguments.
"""

import json
import pathlib
import sys

from macaron_tf.cli.launcher import command

if __name__ == "__main__":
    for name, words in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        assert command(name)(words) == 0, words
