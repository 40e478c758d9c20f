"""The command `predict`: answers texts by the task of a model.

A classifier prints classes, a translator translations, a language model continuations, a masked
language model the words for each [MASK], and an encoder vectors.
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from annotated_types import Gt, Le

from experiments.evaluation.embedding import EncoderSettings, open_encoder
from experiments.lines import Answer, answer_lines, json_line, opened_input, opened_output
from macaron_tf.cli.program import decoded
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.text_tasks import PREFIXES
from macaron_tf.decoding import (
    BeamSearchConfig,
    GenerationConfig,
    LineTranslator,
    SequenceGenerator,
)
from macaron_tf.decoding.text_generator import GAP
from macaron_tf.engines.graph import TaskGraph
from macaron_tf.errors import LineError, TextError, UserError, warn
from macaron_tf.evaluation.similarity import unit_vectors
from macaron_tf.model import Model, load
from macaron_tf.models import LanguageModel
from macaron_tf.runs.recipe import named_settings
from macaron_tf.runs.text_to_text import answers_of
from macaron_tf.settings import Count, Natural, NonNegative
from macaron_tf.tasks import Decoding, LabelledTask, TaskKind
from macaron_tf.tasks.filling import Filling
from macaron_tf.tasks.generation import Continuation, TextToText, frame_lines
from macaron_tf.tasks.translation import Translation

_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_WRITING = (*_SAMPLING, "max_tokens", "min_tokens", "num_samples")  # of language models


@dataclasses.dataclass(frozen=True)
class AnswerSettings(EncoderSettings):
    """Settings of answers. `None` means the default of the model or of its task.

    Attributes:
        beam_size: width of a translator's beam search.
        n_best: translations of each line; above 1, a line has N scores and texts, separated by
            tabs.
        temperature: temperature of sampling; 0 takes the most probable token.
        top_k: number of most probable tokens from which to sample; 0 means all tokens.
        top_p: nucleus sampling: sample from the fewest most probable tokens whose probabilities sum
            to this value.
        seed: random seed of sampling. Sample k has the seed `seed` + k.
        max_tokens: maximum number of tokens to generate.
        min_tokens: minimum number of tokens to generate.
        num_samples: number of samples for each prompt.
        top: number of words for each [MASK].
        language: language of all lines, for a multilingual classifier such as an XLM.
        task: task of all lines, for a T5 or BART of several tasks or of another library.
        tokenized: whether an ELMo splits lines only at white space, and not at punctuation too.
    """

    beam_size: Count | None = None
    n_best: Count | None = None
    temperature: NonNegative | None = None
    top_k: Natural | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    seed: Natural | None = None
    max_tokens: Count | None = None
    min_tokens: Natural | None = None
    num_samples: Count | None = None
    top: Count | None = None
    language: str | None = None
    task: str | None = None
    tokenized: bool | None = None


def run(options: argparse.Namespace) -> None:
    """Runs the command `predict`: writes the model's answer to each text."""
    given = named_settings(AnswerSettings, options.set)
    suffix = (options.output or "").rpartition(".")[2]
    is_encoder = suffix == "npy" or given.keys() & {"pooling", "max_length"}
    if options.text and options.input:
        raise UserError("the command has both TEXT and --input: leave one of them out")
    if options.backward and is_encoder:
        raise UserError("--backward applies only to a translator: leave it out")
    if suffix == "npy":
        _write_vectors(options)
    else:
        answer = _vectors(options) if is_encoder else _answer(options, given)
        answer_lines(options.text, options.input, options.output, answer)


def _answer(options: argparse.Namespace, given: dict[str, Any]) -> Answer:
    model = load(options.run, options.lower_case, trust_code=options.trust_code)
    task = model.task
    if options.backward and (options.json or not isinstance(task, Translation)):
        raise UserError("--backward applies only to a translator, without --json: leave it out")
    if isinstance(task, Continuation):
        _check_sampling(given, task.controls["temperature"])
    if options.json or not isinstance(task, Decoding):
        if own := {name: given[name] for name in given if name not in task.controls}:
            task.with_options(**own)  # refuses other settings before the texts are read
        if isinstance(task, Filling) and not options.json:
            return _fillings(model, given)
        is_labelled = isinstance(task, LabelledTask) and not options.json
        line, columns = task.line if is_labelled else json_line, task.columns
        return lambda lines, first: map(line, model.predict(*columns(lines, first), **given))
    if isinstance(task, Translation):
        return _translations(model, given, options.backward)
    if "task" in given or (isinstance(task, TextToText) and not given.keys() & {*_WRITING}):
        return _text_to_text(model, given, options.run)
    return _continuations(model, given)


def _check_read(given: dict[str, Any], names: Sequence[str], task: TaskKind) -> None:
    """Raises a `UserError` if a setting is not among the `names` that the task reads."""
    for name in given.keys() - {*names}:
        mend = f"set {', '.join(names)}, or leave it out"
        raise UserError(f"--set {name}={given[name]} has no effect for a {task.name}: {mend}")


def _fillings(model: Model, given: dict) -> Answer:
    def answer(lines: list[str], first: int) -> Iterator[str]:
        for text, answer in zip(lines, model.predict(lines, **given), strict=True):
            yield f"{text}\n"
            for words, probabilities in zip(answer["words"], answer["probabilities"], strict=True):
                pairs = zip(words, probabilities, strict=True)
                shown = (f"{word} {probability:.1%}" for word, probability in pairs)
                yield f"   {'  '.join(shown)}\n"

    return answer


def _translations(model: Model, given: dict, backward: bool) -> Answer:
    task, n_best = model.task, given.get("n_best", 1)
    _check_read(given, ("beam_size", "n_best"), task)
    decoding = dataclasses.replace(task.decoding, **{"n_best": n_best, **given})
    return functools.partial(_translated, task.lines(decoding, backward), n_best)


def _translated(
    translator: LineTranslator, n_best: int, lines: list[str], first: int
) -> Iterator[str]:
    translations = translator.translate(lines, first)
    for warning in translations.warnings:
        warn(warning)
    if n_best == 1:
        yield from (f"{line}\n" for line in translations.best)
        return
    for hypotheses in translations.hypotheses:
        columns = [f"{found.score:.4f}\t{found.text}" for found in hypotheses]
        # Beam search may find fewer than `n_best` hypotheses. Empty columns then fill the row.
        columns += ["\t"] * (n_best - len(columns))
        yield "\t".join(columns) + "\n"


def _text_to_text(model: Model, given: dict, location: str) -> Answer:
    _check_read(given, ("task",), model.task)
    settings = answers_of(model, location, given.get("task"))
    decoding = BeamSearchConfig(**model.card.recipe.get("task", {}).get("decoding", {}))
    translator = settings.lines(model.network, model.vocabulary, decoding)
    task = given.get("task") or settings.task
    is_pair = task not in PREFIXES and "+" not in task and bool(get_task(task).second)

    def answer(lines: list[str], first: int) -> Iterator[str]:
        without_tab = [n for n, line in enumerate(lines, first) if is_pair and "\t" not in line]
        if without_tab:
            raise LineError(f"line {without_tab[0]} has no tab between the two texts of {task}")
        sources = frame_lines(task, tf.constant(lines), settings.prefix).numpy()
        return _translated(translator, 1, [source.decode() for source in sources], first)

    return answer


def _continuations(model: Model, given: dict) -> Answer:
    """Returns a function that continues texts token by token, each as soon as it is generated."""
    _check_read(given, _WRITING, model.task)
    config = GenerationConfig(
        **{"temperature": model.task.controls["temperature"], "max_tokens": 128}
        | {name: given[name] for name in _WRITING if name in given and name != "seed"}
    )
    generator, seed, card = model.task.generator, given.get("seed", 1), model.card
    if isinstance(model.network, LanguageModel) and not model.network.has_cached_decoding:
        warn(
            "the blocks have no cached decoding, so each new token computes the whole text again, "
            "which is slow: define init_cache in your own mixers"
        )
    trailing = " " if generator.line_ends else None

    def answer(lines: list[str], first: int) -> Iterator[str]:
        for number, text in enumerate(lines, 1):
            if GAP in text and card.objective == "span_corruption" and not card.sentinels:
                reason = f"{GAP} cannot be filled, because objective.kind marks no gaps"
                raise TextError(number, reason)
            prompt = "" if isinstance(generator, SequenceGenerator) else text.rstrip(trailing)
            for sample_index in range(config.num_samples):
                chunks = generator.stream(text, config, seed + sample_index)
                try:  # before the prompt is written
                    beginning = next(chunks, "")
                except UserError as error:
                    raise TextError(number, str(error)) from error
                yield prompt + beginning
                yield from chunks
                yield "\n"

    return answer


def _check_sampling(given: dict[str, Any], default: float) -> None:
    """Raises a `UserError` if a setting of sampling is set, but the temperature is 0."""
    changed = [name for name in _SAMPLING[1:] if name in given]
    if changed and not given.get("temperature", default):
        raise UserError(f"{changed[0]} applies only to sampling: set a temperature above 0")


def _vectors(options: argparse.Namespace) -> Answer:
    graph = TaskGraph(open_encoder(options))
    return lambda lines, first: map(json_line, graph.answer([lines]))


def _write_vectors(options: argparse.Namespace) -> None:
    """Writes the sentence vectors of all texts to a .npy file, `(N, D)` float32 of norm 1."""
    texts = options.text
    if not texts:
        with opened_input(options.input) as lines:
            texts = list(decoded(lines))
    if not texts:
        raise UserError(f"{options.input or 'stdin'} is empty: give one text per line")
    encoder = open_encoder(options)
    with opened_output(options.output) as file:
        began = time.monotonic()
        vectors = unit_vectors(encoder.encode(texts))
        np.save(file, vectors)
    seconds = time.monotonic() - began
    if empty := sum(not text.strip() for text in texts):
        warn(f"{empty:,} of {len(texts):,} lines are empty and have meaningless vectors")
    size = f"{len(vectors):,} vectors of {vectors.shape[1]} numbers"
    print(f"{options.output}: {size} in {seconds:.1f} s")
