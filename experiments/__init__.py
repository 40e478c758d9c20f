"""Named recipes, and commands that train, evaluate and compare the models of these recipes.

The commands check their input before they write files. Invalid input raises a `UserError` with a
one-sentence message.
"""

import sys

from macaron_tf.cli.program import begin_command

if sys.argv[:1] == ["-m"]:  # `python -m` is looking up its module: this process runs a command
    begin_command()
