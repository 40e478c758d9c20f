"""Recipes, and the commands that train, score and compare what they describe.

Every function refuses bad input with a `UserError`: one sentence, and nothing is left behind.
"""

import sys

from macaron_tf.cli.program import begin_command

if sys.argv[:1] == ["-m"]:  # `python -m` looks its module up: this process is a command's
    begin_command()
