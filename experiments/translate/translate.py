"""`translate translate`: lines in, lines out, in order."""

import argparse
import dataclasses
import sys

from experiments.lines import answer_lines
from experiments.translate.run import TranslationRun
from macaron_tf.decoding import BeamSearchConfig, SamplingConfig, Translations
from macaron_tf.errors import UserError


def run(options: argparse.Namespace) -> None:
    """Translates a file or stdin to a file or stdout."""
    opened = TranslationRun.open(options.run)
    decoding = _decoding(options, opened.recipe.decoding)
    with options.devices.scope():
        translator = opened.translator(options.checkpoint, decoding, options.seed)

    def answer(lines: list[str], first: int) -> str:
        translations = translator.translate(lines, first)
        for warning in translations.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        return _formatted(translations, options.n_best)

    answer_lines(options.input, options.output, answer)


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
