"""`generate complete`, `sample` and `score`: text as it is drawn, and how well texts are known."""

import argparse
import math
import sys
from collections.abc import Iterable

from experiments.generate.opening import open_model
from experiments.lines import decoded
from experiments.run import write_json
from macaron_tf.decoding import GenerationConfig, SequenceGenerator
from macaron_tf.errors import UserError
from macaron_tf.evaluation.language import perplexity
from macaron_tf.io import paths as storage
from macaron_tf.io.files import lines_of


def complete(options: argparse.Namespace) -> None:
    """Continues or answers the texts given, the lines of stdin, or nothing at all.

    Each comes on a line of its own, as it is drawn; sample k draws with the seed + k.
    """
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
        shown = "" if isinstance(generator, SequenceGenerator) else text.rstrip()
        for sample in range(config.num_samples):
            pieces = generator.stream(text, config, options.seed + sample)
            first = next(pieces, "")  # a text that is too long is refused before it is printed
            print(shown + first, end="", flush=True)
            for piece in pieces:
                print(piece, end="", flush=True)
            print(flush=True)


def score(options: argparse.Namespace) -> None:
    """Scores files, prints a line for each, and writes them where asked."""
    opened = open_model(options.run, options.checkpoint, causal=True)
    window = options.window or opened.window
    if opened.longest is not None:
        window = min(window, opened.longest)
    scorer = opened.scorer(window)
    records = []
    for file in options.files:
        text = "\n".join(lines_of(storage.as_path(file).expanduser()))
        found = scorer.score_text(text, options.stride)
        words, size = len(text.split()), len(text.encode())
        log_prob = math.fsum(found.log_probs)
        record = {
            "file": file,
            "tokens": int(found.lengths.sum()),
            "words": words,
            "bytes": size,
            "token_perplexity": perplexity(found.log_probs, found.lengths),
            # exp of the nats a word, of all tokens, so that vocabularies compare.
            "word_perplexity": math.exp(min(-log_prob / words, 700.0)),
            "bits_per_byte": -log_prob / math.log(2) / size,
        }
        records.append(record)
        print(
            f"{file}: perplexity {record['token_perplexity']:.2f} a token, "
            f"{record['word_perplexity']:.2f} a word; {record['bits_per_byte']:.3f} bits a byte"
        )
    if options.output:
        record = {
            "run": opened.name,
            "checkpoint": opened.checkpoint,
            "window": window,
            "stride": options.stride,
            "files": records,
        }
        write_json(storage.as_path(options.output), record)
