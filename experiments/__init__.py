"""Recipes, and the commands that train, score and compare the models that they describe.

Every function raises `UserError` with a one-sentence message for bad input, before it writes files.
"""

import sys

from macaron_tf.cli.program import begin_command

if sys.argv[:1] == ["-m"]:  # `python -m` is looking up its module: this process runs a command
    begin_command()
