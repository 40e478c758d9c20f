"""`generate score`: how well a model knows texts."""

import argparse
import json
import math

from experiments.generate.opening import open_model
from macaron_tf.decoding import TextScorer
from macaron_tf.evaluation.language import perplexity
from macaron_tf.io import paths as storage
from macaron_tf.io.files import lines_of


def run(options: argparse.Namespace) -> None:
    """Scores files, prints a line for each, and writes them where asked."""
    opened = open_model(options.run, options.checkpoint, causal=True)
    window = options.window or opened.window
    if opened.longest is not None:
        window = min(window, opened.longest)
    scorer = opened.scorer(window)
    records = []
    for file in options.files:
        text = "\n".join(lines_of(storage.as_path(file).expanduser()))
        records.append({"file": file, **text_scores(scorer, text, options.stride)})
        print(
            f"{file}: perplexity {records[-1]['token_perplexity']:.2f} a token, "
            f"{records[-1]['word_perplexity']:.2f} a word; "
            f"{records[-1]['bits_per_byte']:.3f} bits a byte"
        )
    if options.output:
        record = {
            "run": opened.name,
            "checkpoint": opened.checkpoint,
            "window": window,
            "stride": options.stride,
            "files": records,
        }
        storage.write_aside(options.output, (json.dumps(record, indent=1) + "\n").encode())


def text_scores(scorer: TextScorer, text: str, stride: int | None) -> dict[str, float | int]:
    """A text's scores.

    Args:
        scorer: of the model.
        text: of any length.
        stride: see `TextScorer.score_text`.

    Returns:
        "tokens", "words" (parted by white space), "bytes" and, over all tokens, "token_perplexity",
        "word_perplexity" (exp of the nats a word, so that vocabularies compare) and
        "bits_per_byte".
    """
    found = scorer.score_text(text, stride)
    words, size = len(text.split()), len(text.encode())
    log_prob = math.fsum(found.log_probs)
    return {
        "tokens": int(found.lengths.sum()),
        "words": words,
        "bytes": size,
        "token_perplexity": perplexity(found.log_probs, found.lengths),
        "word_perplexity": math.exp(min(-log_prob / words, 700.0)),
        "bits_per_byte": -log_prob / math.log(2) / size,
    }
