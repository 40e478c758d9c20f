"""Commands that continue prompts, sample texts, and compute the perplexity of text files."""

import argparse
import math
import os
import sys
from collections.abc import Iterable

from experiments.command_line import sampling_settings
from experiments.lines import json_line, refuse_flags_with_json
from experiments.run import checkpoint_location, write_json
from macaron_tf.cli.program import decoded
from macaron_tf.decoding import GenerationConfig, SequenceGenerator
from macaron_tf.decoding.text_generator import GAP
from macaron_tf.errors import UserError
from macaron_tf.evaluation.language import perplexity
from macaron_tf.io import paths as storage
from macaron_tf.io.files import lines_of
from macaron_tf.io.progress import Progress
from macaron_tf.loading import load
from macaron_tf.pretrained import Pretrained
from macaron_tf.tasks.generation import Continuation


def open_model(
    path: str | os.PathLike,
    checkpoint: str | None = None,
    causal: bool = False,
    trust_code: bool = False,
) -> Pretrained:
    """Opens a model that generates text.

    Args:
        path: location that `macaron_tf.load` accepts, such as RUN@CHECKPOINT.
        checkpoint: name of a checkpoint; see `find_checkpoint`.
        causal: whether to accept only causal language models, which can score a given text.
        trust_code: see `macaron_tf.load`.
    """
    model = load(checkpoint_location(path, checkpoint), trust_code=trust_code)
    task = model.task
    if not isinstance(task, Continuation):
        raise UserError(
            f"{path} is a {task.name}, which does not continue texts: give a language model, T5 or "
            "BART, or predict with `macaron_tf.load`"
        )
    if causal and isinstance(task.generator, SequenceGenerator):
        raise UserError(
            f"{path} is an encoder-decoder, which cannot score texts: give a GPT, GPT-2 or Llama"
        )
    return model


def complete(options: argparse.Namespace) -> None:
    """Runs the commands `complete` and `sample`: prints texts token by token, one text per line.

    `complete` continues or answers the given texts or, without texts, the lines of stdin. `sample`
    continues an empty prompt. With `--json`, each text gives a line of JSON, which is printed when
    the text is complete.
    """
    sampling, seed = sampling_settings(options)
    if options.json:
        refuse_flags_with_json(
            "leave one of the two flags out, because --json writes one answer for each text",
            samples=options.samples > 1,
            min_tokens=options.min_tokens,
        )
    config = GenerationConfig(
        temperature=options.temperature,
        **sampling,
        num_samples=options.samples,
        max_tokens=options.max_tokens,
        min_tokens=options.min_tokens,
    )
    model = open_model(options.run, options.checkpoint, trust_code=options.trust_code)
    generator = model.task.generator
    if options.command == "sample":
        if isinstance(generator, SequenceGenerator):
            raise UserError(f"{options.run} needs an input text: use `generate complete`")
        texts: Iterable[str] = [""]
    else:
        texts = options.text or decoded(sys.stdin.buffer)
    for text in texts:
        if GAP in text and model.objective == "span_corruption" and not model.sentinels:
            raise UserError(
                f"{options.run} cannot fill {GAP}, because its corruption.kind marks no gaps in "
                f"the input: leave {GAP} out"
            )
        if options.json:
            answer = model.predict(
                text,
                seed=seed,
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                **sampling,
            )
            print(json_line(answer), end="", flush=True)
            continue
        prompt = (
            ""
            if isinstance(generator, SequenceGenerator)
            else text.rstrip(" " if generator.line_ends else None)
        )
        for sample_index in range(config.num_samples):
            chunks = generator.stream(text, config, seed + sample_index)
            first = next(chunks, "")  # raises for a text that is too long, before the print
            print(prompt + first, end="", flush=True)
            for chunk in chunks:
                print(chunk, end="", flush=True)
            print(flush=True)


def score(options: argparse.Namespace) -> None:
    """Runs the command `score`: prints the perplexity of text files.

    With `--output`, the scores are also written to a JSON file.
    """
    model = open_model(options.run, options.checkpoint, True, options.trust_code)
    task, max_length = model.task, model.task.longest
    if options.window and max_length is not None and options.window > max_length:
        raise UserError(f"--window {options.window} is too long: give at most {max_length}")
    window = options.window or task.window
    if max_length is not None:
        window = min(window, max_length)
    scorer = task.scorer(window)
    records = []
    files = [storage.as_path(file).expanduser() for file in options.files]
    texts = ["\n".join(lines_of(file, may_be_pipe=True)) for file in files]
    pairs = list(zip(options.files, texts, strict=True))
    if empty := [file for file, text in pairs if not text.strip()]:
        raise UserError(f"{empty[0]} contains no text: give a file with text to score")
    for file, text in pairs:
        with Progress(f"scoring {file}"):
            ids = scorer.text_ids(text)
            scores = scorer.score_text(ids, options.stride)
        unknown = ids.count(scorer.vocabulary.special.unk)
        num_words, num_bytes = len(text.split()), len(scorer.read(text).encode())
        log_prob, num_tokens = math.fsum(scores.log_probs), int(scores.lengths.sum())
        record = {
            "file": file,
            "tokens": num_tokens,
            "unknown": unknown,
            "words": num_words,
            "bytes": num_bytes,
            "token_perplexity": perplexity(scores.log_probs, scores.lengths),
            # The log-likelihood per word allows a comparison of models with different vocabularies.
            "word_perplexity": math.exp(min(-log_prob / num_words, 700.0)),
            "bits_per_byte": -log_prob / math.log(2) / num_bytes,
        }
        records.append(record)
        print(
            f"{file}: perplexity {record['token_perplexity']:,.5g} per token, "
            f"{record['word_perplexity']:,.5g} per word; {record['bits_per_byte']:.3f} bits per "
            "byte"
        )
        if unknown:
            print(
                f"warning: {file}: {unknown:,} of {num_tokens:,} tokens are unknown to the "
                "vocabulary, so the perplexity per word and the bits per byte are too low",
                file=sys.stderr,
            )
    if options.output:
        record = {
            "run": model.name,
            "checkpoint": model.checkpoint,
            "window": window,
            "stride": options.stride,
            "files": records,
        }
        write_json(storage.as_path(options.output), record)
