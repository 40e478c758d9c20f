"""Taking a model into use: SavedModel export, a server, and its clients."""

import sys

from macaron_tf.cli.program import begin_command

if sys.argv[:1] == ["-m"]:  # `python -m` looks its module up: this process is a command's
    begin_command()
