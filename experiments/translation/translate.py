"""`translate translate`: lines in, lines out, in order."""

import argparse
import contextlib
import dataclasses
import pathlib
import queue
import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO

from experiments.translation.run import TranslationRun
from macaron_tf.decoding import BeamSearchConfig, SamplingConfig, Translations
from macaron_tf.errors import UserError

CHUNK = 256  # lines translated together at most


def run(options: argparse.Namespace) -> None:
    """Translates a file or stdin to a file or stdout."""
    opened = TranslationRun.open(options.run)
    decoding = _decoding(options, opened.recipe.decoding)
    with _input(options.input) as lines, _output(options.output) as out:
        translator = opened.translator(options.checkpoint, decoding, options.seed)
        first = 1
        for chunk in _arriving(_decoded(lines), CHUNK):
            translations = translator.translate(chunk, first)
            first += len(chunk)
            for warning in translations.warnings:
                print(f"warning: {warning}", file=sys.stderr)
            out.write(_formatted(translations, options.n_best).encode())
            out.flush()


def _decoding(
    options: argparse.Namespace, recipes: BeamSearchConfig
) -> BeamSearchConfig | SamplingConfig:
    if options.temperature is not None:
        lengths = ("max_length_ratio", "max_length_offset", "max_length", "min_length")
        return SamplingConfig(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            num_samples=options.n_best,
            **{name: getattr(recipes, name) for name in lengths},
        )
    if options.top_k or options.top_p < 1:
        raise UserError("--top-k and --top-p sample: give --temperature too, such as 1.0")
    beam_size = options.beam_size or recipes.beam_size
    if not 1 <= options.n_best <= beam_size:
        raise UserError(f"--n-best {options.n_best}: give 1 to the beam size, {beam_size}")
    return dataclasses.replace(recipes, beam_size=beam_size, n_best=options.n_best)


def _formatted(translations: Translations, n_best: int) -> str:
    if n_best == 1:
        return "".join(f"{line}\n" for line in translations.best)
    rows = []
    for hypotheses in translations.hypotheses:
        fields = [f"{hypothesis.score:.4f}\t{hypothesis.text}" for hypothesis in hypotheses]
        # Fewer than N hypotheses may exist; every row has all columns.
        fields += ["\t"] * (n_best - len(fields))
        rows.append("\t".join(fields) + "\n")
    return "".join(rows)


def _arriving(lines: Iterator[str], most: int) -> Iterator[list[str]]:
    """Lines in chunks of what has come by now: a slow writer gets each answer at once."""
    waiting: queue.Queue = queue.Queue(maxsize=4 * most)
    end = object()

    def read():
        for line in lines:
            waiting.put(line)
        waiting.put(end)

    threading.Thread(target=read, daemon=True).start()
    chunk: list[str] = []
    while True:
        try:
            # A file's lines come within microseconds of each other, a person's do not.
            line = waiting.get(timeout=0.02) if chunk else waiting.get()
        except queue.Empty:
            line = None
        if isinstance(line, str):
            chunk.append(line)
        if chunk and (line is None or line is end or len(chunk) == most):
            yield chunk
            chunk = []
        if line is end:
            return


def _decoded(lines: BinaryIO) -> Iterator[str]:
    """Lines end at a newline alone, so that other line breakers cannot shift the order."""
    for number, line in enumerate(lines, 1):
        text = line.decode("utf-8", errors="replace")
        if "�" in text and b"\xef\xbf\xbd" not in line:
            print(f"warning: line {number} is not UTF-8: bad bytes replaced", file=sys.stderr)
        yield text.rstrip("\r\n")


@contextlib.contextmanager
def _input(name: str | None) -> Iterator[BinaryIO]:
    if name is None:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(pathlib.Path(name).open("rb"))
        except OSError as error:
            raise UserError(f"--input {name} cannot be read: {error.strerror}") from error
        yield file


@contextlib.contextmanager
def _output(name: str | None) -> Iterator[BinaryIO]:
    """A file appears under its name only when it is whole."""
    if name is None:
        yield sys.stdout.buffer
        return
    path = pathlib.Path(name)
    aside = path.with_name(f".tmp-{path.name}")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(path)
    except OSError as error:
        raise UserError(f"--output {name} cannot be written: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)
