"""Commands to use a trained model: export as a SavedModel, a server, and clients."""

import sys

from macaron_tf.cli.program import begin_command

if sys.argv[:1] == ["-m"]:  # `python -m` is looking up its module, so this process is a command
    begin_command()
