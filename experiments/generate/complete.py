"""`generate complete` and `generate sample`: text as it is drawn."""

import argparse
import sys
from collections.abc import Iterable

from experiments.generate.opening import open_model
from experiments.lines import decoded
from macaron_tf.decoding import GenerationConfig, SequenceGenerator, TextGenerator
from macaron_tf.errors import UserError


def run(options: argparse.Namespace) -> None:
    """Continues the texts given, the lines of stdin, or nothing at all."""
    config = GenerationConfig(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        num_samples=options.samples,
        max_tokens=options.max_tokens,
        min_tokens=options.min_tokens,
    )
    generator = open_model(options.run, options.checkpoint).generator()
    if options.command == "sample":
        if isinstance(generator, SequenceGenerator):
            raise UserError(f"{options.run} answers texts: give it some, by `complete`")
        texts: Iterable[str] = [""]
    else:
        texts = options.text or decoded(sys.stdin.buffer)
    for text in texts:
        print_samples(generator, text, config, options.seed)


def print_samples(generator: TextGenerator, text: str, config: GenerationConfig, seed: int) -> None:
    """Prints a text and what follows it, or its answer, each on a line of its own, as it comes.

    Args:
        generator: of the model.
        text: the prompt.
        config: the settings.
        seed: of the first sample.
    """
    shown = "" if isinstance(generator, SequenceGenerator) else text.rstrip()
    for sample in range(config.num_samples):
        pieces = generator.stream(text, config, seed + sample)
        first = next(pieces, "")  # a text that is too long is refused before it is printed
        print(shown + first, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print(flush=True)
