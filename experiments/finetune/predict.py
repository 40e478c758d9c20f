"""`finetune predict`: lines in, answers out, in order."""

import argparse

from experiments.finetune.run import FinetuningRun
from experiments.lines import arriving, decoded, opened_input, opened_output


def run(options: argparse.Namespace) -> None:
    """Answers a file or stdin to a file or stdout."""
    opened = FinetuningRun.open(options.run)
    with opened_input(options.input) as lines, opened_output(options.output) as out:
        predictor = opened.predictor(options.checkpoint)
        number = 1
        for chunk in arriving(decoded(lines)):
            examples = predictor.kind.parse(chunk, number)
            number += len(chunk)
            text = predictor.kind.lines(predictor.of_examples(examples), examples)
            out.write(text.encode())
            out.flush()
