"""`text_to_text predict`: lines in, answers out, in order."""

import argparse
import sys

from experiments.lines import arriving, decoded, opened_input, opened_output
from experiments.text_to_text.framing import framed
from experiments.text_to_text.run import open_checkpoint


def run(options: argparse.Namespace) -> None:
    """Answers a file's lines or stdin's: a text each, or two with a tab between."""
    with opened_input(options.input) as lines, opened_output(options.output) as out:
        with options.devices.scope():
            opened, network = open_checkpoint(options.run, options.checkpoint)
            writer = opened.writer(network)
        first = 1
        for chunk in arriving(decoded(lines)):
            found = writer.translate([framed(opened.recipe.task, line) for line in chunk], first)
            first += len(chunk)
            for warning in found.warnings:
                print(f"warning: {warning}", file=sys.stderr)
            out.write("".join(f"{answer}\n" for answer in found.best).encode())
            out.flush()
