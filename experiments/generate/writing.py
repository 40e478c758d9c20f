"""Commands that continue prompts, sample texts, and compute the perplexity of text files."""

import argparse
import math
import os
import sys
from collections.abc import Iterable

from experiments.command_line import sampling_settings
from experiments.lines import json_line, refuse_flags_with_json
from experiments.run import checkpoint_location, read_kind, write_json
from macaron_tf.cli.program import decoded
from macaron_tf.decoding import GenerationConfig, SequenceGenerator
from macaron_tf.decoding.text_generator import GAP
from macaron_tf.errors import UserError
from macaron_tf.evaluation.language import perplexity
from macaron_tf.io import paths as storage
from macaron_tf.io.files import lines_of
from macaron_tf.io.progress import Progress
from macaron_tf.loading import load, locate
from macaron_tf.objectives import objective_class
from macaron_tf.pretrained import Pretrained

# Commands for runs that do not generate text. A key is the kind of a run.
_OTHER_COMMANDS = {
    "translation": "translate translate",
    "finetuning": "finetune predict",
    "embedding": "embed encode",
    "text_to_text": "text_to_text predict",
    "elmo": "elmo embed",
    "pretraining": "pretrain fill",
}


def open_model(
    path: str | os.PathLike,
    checkpoint: str | None = None,
    causal: bool = False,
    trust_code: bool = False,
) -> Pretrained:
    """Opens a model that generates text.

    Args:
        path: `hugging-face:DIR`, or RUN or RUN@CHECKPOINT of pre-training or text-to-text training.
            The run may be in a `gs://` bucket.
        checkpoint: name of a checkpoint; see `find_checkpoint`.
        causal: whether to accept only causal language models, which can score a given text.
        trust_code: see `macaron_tf.load`.

    Raises:
        UserError: the model does not generate text, has no vocabulary, or is not causal although
            `causal` is True.
    """
    kind = find_kind(path, causal)
    model = load(checkpoint_location(path, checkpoint), trust_code=trust_code)
    objective = objective_class(model.objective)
    if not kind and causal and objective.encoder_decoder:
        raise UserError(
            f"{path} is an encoder-decoder, which cannot score texts: give a GPT, GPT-2 or Llama, "
            f"or generate answers with `macaron generate complete {path}`"
        )
    can_generate = objective.causal or (objective.encoder_decoder and not causal)
    if not can_generate and not model.answers:
        raise _generates_no_text(path, kind, model.objective)
    if model.vocabulary is None:
        noun = "GPT" if objective.causal else "model"
        raise UserError(
            f"{path} is a {noun} without a tokenizer: add the tokenizer files to the folder"
        )
    return model


def find_kind(path: str | os.PathLike, causal: bool = False) -> str:
    """Returns the recipe kind of a run, or "" for a model that was saved without a recipe.

    The function reads only recipe.json, not the weights.

    Args:
        path, causal: see `open_model`.

    Raises:
        UserError: the run does not generate text or, if `causal` is True, is not a pre-training
            run.
    """
    location = locate(os.fspath(path))
    kind = "" if location.without_recipe else read_kind(location.folder)
    if kind not in (("", "pretraining") if causal else ("", "pretraining", "text_to_text")):
        raise _generates_no_text(path, kind)
    return kind


def _generates_no_text(
    path: str | os.PathLike, kind: str, objective: str | None = None
) -> UserError:
    """Returns the error for a model that does not generate text.

    Args:
        path: see `open_model`.
        kind: recipe kind of the run; "" means a model without a recipe.
        objective: training objective of the model; `None` means unknown.
    """
    if kind not in _OTHER_COMMANDS:
        model = f"a {objective} model" if objective else "a model without a language model head"
        noun = f"a {kind} run" if kind else model
        return UserError(
            f"{path} is {noun}, which cannot generate text: give a pre-training run with an "
            "objective that generates text, or a GPT, GPT-2, Llama, T5 or BART from Hugging Face"
        )
    command = (
        "generate complete" if objective_class(objective).encoder_decoder else _OTHER_COMMANDS[kind]
    )
    return UserError(
        f"{path} was not trained to continue text: give a run with the objective "
        "causal_language, such as a run of the recipe gpt2_tiny, or use the model with "
        f"`macaron {command} {path}`"
    )


def complete(options: argparse.Namespace) -> None:
    """Runs the commands `complete` and `sample`: prints texts token by token, one text per line.

    `complete` continues or answers the given texts or, without texts, the lines of stdin. `sample`
    continues an empty prompt. With `--json`, each text gives a line of JSON, which is printed when
    the text is complete.
    """
    sampling, seed = sampling_settings(options)
    if options.json:
        refuse_flags_with_json(
            "leave one of the two flags out, because --json writes one answer for each text, and "
            "the model chooses the answer's length",
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
            raise UserError(
                f"{options.run} is an encoder-decoder, which needs an input text: use `complete` "
                "and give an input text"
            )
        texts: Iterable[str] = [""]
    else:
        texts = options.text or decoded(sys.stdin.buffer)
    for text in texts:
        if GAP in text and model.objective == "span_corruption" and not model.sentinels:
            raise UserError(
                f"{options.run} cannot fill {GAP}, because its corruption.kind marks no gaps in "
                f"the input: leave {GAP} out of the text, or give a run with the corruption.kind "
                "random_spans, iid_spans, bert_style or mass_style"
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
    task = model.task
    max_length = task.longest
    if options.window and max_length is not None and options.window > max_length:
        raise UserError(
            f"--window is {options.window}, but the model has {max_length} positions: give "
            f"{max_length} or a smaller number"
        )
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
        unknown = ids.count(scorer.vocabulary.unk_id)
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
