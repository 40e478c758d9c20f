"""`embed encode` and `embed search`: lines to vectors, and the lines nearest to a query."""

import argparse
import contextlib
import hashlib
import pathlib
import sys
import time

import numpy as np

from experiments.embed.run import SentenceEncoder, encoder_of
from experiments.lines import arriving, decoded, opened_input, opened_output
from macaron_tf.errors import UserError
from macaron_tf.evaluation.similarity import nearest, unit_vectors
from macaron_tf.io import paths as storage


def encode(options: argparse.Namespace) -> None:
    """Encodes the lines of a file or stdin to a NumPy array."""
    with opened_input(options.input) as lines:
        texts = list(decoded(lines))
    if not texts:
        raise UserError(f"{options.input or 'stdin'} is empty: give a sentence a line")
    encoder, _ = encoder_of(options)
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


def search(options: argparse.Namespace) -> None:
    """Answers queries, from the command line or line by line from stdin."""
    if storage.is_remote(options.corpus):
        raise UserError(f"--corpus {options.corpus}: copy the file from its bucket to the disk")
    with opened_input(options.corpus, "--corpus") as lines:
        # An empty line is nearest to any short query, and no answer to it.
        corpus = [(n, text) for n, text in enumerate(decoded(lines), 1) if text.strip()]
    if not corpus:
        raise UserError(f"--corpus {options.corpus} has no text: give a sentence a line")
    encoder, _ = encoder_of(options)
    texts = [text for _, text in corpus]
    vectors = corpus_vectors(encoder, texts, pathlib.Path(options.corpus).expanduser())
    encoder.encode([""])  # traced before the first query comes
    given = [options.query] if options.query else arriving(decoded(sys.stdin.buffer))
    for queries in given:
        began = time.monotonic()
        scores, positions = nearest(unit_vectors(encoder.encode(queries)), vectors, options.top)
        seconds = time.monotonic() - began
        for query, row, found in zip(queries, scores, positions, strict=True):
            print(f"> {query}")
            for score, position in zip(row, found, strict=True):
                number, text = corpus[position]
                print(f"{score:.4f}\t{number}\t{text}")
        sys.stdout.flush()
        print(
            f"{len(queries):,} x {len(texts):,} cosines in {1000 * seconds:.0f} ms",
            file=sys.stderr,
        )


def corpus_vectors(encoder: SentenceEncoder, texts: list[str], file: pathlib.Path) -> np.ndarray:
    """Unit vectors `(N, D)` of a file's sentences, kept beside it as FILE.HASH.npy.

    The hash is over weights and texts: another model or another text has another file.
    """
    digest = hashlib.sha256(encoder.identity().encode())
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
    cache = file.with_name(f"{file.name}.{digest.hexdigest()[:16]}.npy")
    # A damaged file is no array of this shape, and is made again.
    with contextlib.suppress(OSError, ValueError, EOFError):
        found = np.load(cache, mmap_mode="r")
        if found.shape == (len(texts), encoder.width) and found.dtype == np.float32:
            return found
    began = time.monotonic()
    vectors = unit_vectors(encoder.encode(texts))
    seconds = time.monotonic() - began
    print(
        f"{len(texts):,} sentences encoded in {seconds:.1f} s, {len(texts) / seconds:,.0f} a "
        f"second; kept in {cache}",
        file=sys.stderr,
    )
    try:
        with storage.renamed_aside(cache) as aside, open(aside, "wb") as out:
            np.save(out, vectors)
    except UserError as error:
        print(f"warning: {error}: the next search encodes them again", file=sys.stderr)
    return vectors
