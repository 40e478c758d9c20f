"""The command `score`: computes the perplexity of text files."""

import argparse
import math

from macaron_tf.decoding import SequenceGenerator
from macaron_tf.errors import UserError, warn
from macaron_tf.evaluation.language import perplexity
from macaron_tf.io import paths as storage
from macaron_tf.io.files import lines_of
from macaron_tf.io.progress import Progress
from macaron_tf.model import Model, load
from macaron_tf.tasks.generation import Continuation


def open_model(location: str, trust_code: bool = False) -> Model:
    """Opens the causal language model at a location that `macaron_tf.load` accepts."""
    model = load(location, trust_code=trust_code)
    task = model.task
    if not isinstance(task, Continuation) or isinstance(task.generator, SequenceGenerator):
        raise UserError(
            f"{location} is a {task.name}, which cannot score texts: give a GPT, GPT-2 or Llama"
        )
    return model


def run(options: argparse.Namespace) -> None:
    """Prints the perplexity of text files.

    The model reads windows of its training length or, if unknown, of all its positions. Each
    overlaps with half of the previous one, and each token is scored once.
    """
    model = open_model(options.run, options.trust_code)
    window = min(model.task.window, model.task.longest or model.task.window)
    scorer = model.task.scorer(window)
    files = [storage.as_path(file).expanduser() for file in options.files]
    texts = ["\n".join(lines_of(file)) for file in files]
    pairs = list(zip(options.files, texts, strict=True))
    if empty := [file for file, text in pairs if not text.strip()]:
        raise UserError(f"{empty[0]} contains no text: give a file with text to score")
    for file, text in pairs:
        with Progress(f"scoring {file}"):
            ids = scorer.text_ids(text)
            scores = scorer.score_text(ids)
        log_prob, num_bytes = math.fsum(scores.log_probs), len(scorer.read(text).encode())
        per_token = perplexity(scores.log_probs, scores.lengths)
        # The log-likelihood per word allows a comparison of models with different vocabularies.
        per_word = math.exp(min(-log_prob / len(text.split()), 700.0))
        bits = -log_prob / math.log(2) / num_bytes
        print(
            f"{file}: perplexity {per_token:,.5g} per token, {per_word:,.5g} per word; {bits:.3f} "
            "bits per byte"
        )
        if unknown := ids.count(scorer.vocabulary.special.unk):
            warn(
                f"{file}: {unknown:,} of {int(scores.lengths.sum()):,} tokens are unknown to the "
                "vocabulary, so the perplexity per word and the bits per byte are too low"
            )
