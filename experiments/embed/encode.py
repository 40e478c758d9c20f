"""`embed encode`: lines to vectors, one for each, in order."""

import argparse
import sys
import time

import numpy as np

from experiments.embed.start import open_encoder
from experiments.lines import decoded, opened_input, opened_output
from macaron_tf.errors import UserError
from macaron_tf.evaluation.similarity import unit_vectors


def run(options: argparse.Namespace) -> None:
    """Encodes a file or stdin to an array of NumPy's."""
    with opened_input(options.input) as lines:
        texts = list(decoded(lines))
    if not texts:
        raise UserError(f"{options.input or 'stdin'} is empty: give a sentence a line")
    with options.devices.scope():
        encoder, _ = open_encoder(
            options.encoder, options.pooling, options.max_length, options.lower_case
        )
    with opened_output(options.output) as file:
        began = time.monotonic()
        vectors = encoder.encode(texts)
        if options.unit:
            vectors = unit_vectors(vectors)
        np.save(file, vectors)
    seconds = time.monotonic() - began
    empty = sum(not text.strip() for text in texts)
    if empty:
        print(
            f"warning: {empty:,} of {len(texts):,} lines are empty: their vectors say nothing",
            file=sys.stderr,
        )
    print(
        f"{options.output}: {len(vectors):,} vectors of {vectors.shape[1]} in {seconds:.1f} s, "
        f"{len(vectors) / seconds:,.0f} a second"
    )
