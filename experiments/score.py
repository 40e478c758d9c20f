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
from macaron_tf.runs.run import write_json
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
    """Prints the perplexity of text files, and writes it to a JSON file with `--output`.

    The model reads windows of its training length or, if unknown, of all its positions. Each
    overlaps with half of the previous one, and each token is scored once.
    """
    model = open_model(options.location, options.trust_code)
    window = min(model.task.window, model.task.longest or model.task.window)
    scorer, records = model.task.scorer(window), []
    files = [storage.as_path(file).expanduser() for file in options.files]
    texts = ["\n".join(lines_of(file, may_be_pipe=True)) for file in files]
    pairs = list(zip(options.files, texts, strict=True))
    if empty := [file for file, text in pairs if not text.strip()]:
        raise UserError(f"{empty[0]} contains no text: give a file with text to score")
    for file, text in pairs:
        with Progress(f"scoring {file}"):
            ids = scorer.text_ids(text)
            scores = scorer.score_text(ids)
        log_prob, num_tokens = math.fsum(scores.log_probs), int(scores.lengths.sum())
        num_words, num_bytes = len(text.split()), len(scorer.read(text).encode())
        record = {
            "file": file,
            "tokens": num_tokens,
            "unknown": ids.count(scorer.vocabulary.special.unk),
            "words": num_words,
            "bytes": num_bytes,
            "token_perplexity": perplexity(scores.log_probs, scores.lengths),
            # The log-likelihood per word allows a comparison of models with different vocabularies.
            "word_perplexity": math.exp(min(-log_prob / num_words, 700.0)),
            "bits_per_byte": -log_prob / math.log(2) / num_bytes,
        }
        records.append(record)
        print(
            "{file}: perplexity {token_perplexity:,.5g} per token, {word_perplexity:,.5g} per "
            "word; {bits_per_byte:.3f} bits per byte".format(**record)
        )
        if record["unknown"]:
            warn(
                "{file}: {unknown:,} of {tokens:,} tokens are unknown to the vocabulary, "
                "so the perplexity per word and the bits per byte are too low".format(**record)
            )
    if options.output:
        record = {"run": model.card.name, "checkpoint": model.card.checkpoint, "window": window}
        write_json(storage.as_path(options.output), {**record, "files": records})
