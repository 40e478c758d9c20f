"""Named recipes, and commands that train, evaluate and compare the models of these recipes.

The commands check their input before they write files. Invalid input raises a `UserError` with a
one-sentence message.
"""

import sys

from macaron_tf.cli.program import begin_command

if sys.argv[:1] == ["-m"]:  # Python is looking up the module that `python -m` runs
    begin_command()
