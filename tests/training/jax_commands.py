"""Commands on Keras's JAX engine, one after the other in one process.

    KERAS_BACKEND=jax python -m tests.training.jax_commands FILE

FILE is JSON: pairs of a program, such as "experiments.pretrain", and its words.
"""

import importlib
import json
import pathlib
import sys

if __name__ == "__main__":
    for program, words in json.loads(pathlib.Path(sys.argv[1]).read_text()):
        assert importlib.import_module(f"{program}.__main__").main(words) == 0, words
