"""Commands that translate text, average checkpoints, and evaluate or compare translations."""

import argparse
import dataclasses
import sys
import time

from experiments.command_line import sampling_settings
from experiments.lines import answer_json, answer_lines, refuse_flags_with_json
from experiments.run import default_splits, open_model, write_scores
from experiments.train_run import generated
from experiments.translate.run import TranslationRun
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.decoding import BeamSearchConfig, SamplingConfig, Translations
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import (
    TranslationMetric,
    evaluate_translations,
    paired_bootstrap,
)
from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.tasks.translation import Translation
from macaron_tf.training.checkpoints import (
    average_checkpoints,
    last_checkpoints,
    read_manifest,
)


def translate(options: argparse.Namespace) -> None:
    """Runs the command `translate`: translates the lines of a file or of stdin."""
    if options.json:
        refuse_flags_with_json(
            "leave one of the two flags out, because --json uses beam search from source to target",
            temperature=options.temperature is not None,
            backward=options.backward,
        )
    _, seed = sampling_settings(options)
    with options.devices.scope():
        model = open_model(options, Translation, "not a translation model: give another run")
    task = model.task
    _check_backward(options, model.recipe.get("unsupervised", False))
    decoding = _decoding(options, task.decoding)
    if options.json:
        fields = {"beam_size": decoding.beam_size, "n_best": decoding.n_best}
        answer_json(options.input, options.output, lambda lines: model.predict(lines, **fields))
        return
    translator = task.lines(decoding, seed, options.backward)

    def answer(lines: list[str], first: int) -> str:
        translations = translator.translate(lines, first)
        for warning in translations.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        return _format_lines(translations, options.n_best)

    answer_lines(options.input, options.output, answer)


def _check_backward(options: argparse.Namespace, unsupervised: bool) -> None:
    if options.backward and not unsupervised:
        raise UserError(
            f"--backward is not possible with {options.run}: give a run with unsupervised=True"
        )


def _decoding(
    options: argparse.Namespace, default: BeamSearchConfig
) -> BeamSearchConfig | SamplingConfig:
    sampling, _ = sampling_settings(options)
    if options.temperature is not None:
        lengths = ("max_length_ratio", "max_length_offset", "max_length", "min_length")
        return SamplingConfig(
            temperature=options.temperature,
            **sampling,
            num_samples=options.n_best,
            **{name: getattr(default, name) for name in lengths},
        )
    beam_size = options.beam_size or default.beam_size
    if not 1 <= options.n_best <= beam_size:
        raise UserError(
            f"--n-best is {options.n_best}, but must be from 1 to the beam size, {beam_size}"
        )
    return dataclasses.replace(default, beam_size=beam_size, n_best=options.n_best)


def _format_lines(translations: Translations, n_best: int) -> str:
    if n_best == 1:
        return "".join(f"{line}\n" for line in translations.best)
    rows = []
    for hypotheses in translations.hypotheses:
        columns = [f"{hypothesis.score:.4f}\t{hypothesis.text}" for hypothesis in hypotheses]
        # Beam search may find fewer than `n_best` hypotheses. Empty columns then fill the row.
        columns += ["\t"] * (n_best - len(columns))
        rows.append("\t".join(columns) + "\n")
    return "".join(rows)


def run_average(options: argparse.Namespace) -> None:
    """Runs the command `average`: averages the newest checkpoints of a run."""
    opened = TranslationRun.open(options.run, options.trust_code)
    average_run(opened, options.last or opened.recipe.average_last)


def average_run(opened: TranslationRun, count: int) -> None:
    """Averages the weights of the newest `count` checkpoints of a run into RUN/average.

    The average includes only checkpoints whose step is a multiple of `training.save_every_steps`.
    An earlier average is replaced.
    """
    save_every_steps = opened.recipe.training.save_every_steps
    checkpoints = last_checkpoints(opened.path, count, save_every_steps)
    average = average_checkpoints(checkpoints, opened.path / "average")
    print(f"averaged {', '.join(checkpoint.name for checkpoint in checkpoints)} into {average}")


def run(options: argparse.Namespace) -> None:
    """Runs the command `evaluate`: translates a split, and prints and saves the scores."""
    opened = TranslationRun.open(options.run, options.trust_code)
    data, metric, decoding = opened.recipe.data, opened.recipe.metric, opened.recipe.decoding
    source = options.source or data.source
    languages = [
        options.source_language or data.source_language,
        options.target_language or data.target_language,
    ]
    if data.languages[0] != data.languages[1] and languages == [*data.languages[::-1]]:
        mend = "give --backward" if opened.recipe.unsupervised else "train another run"
        raise UserError(
            f"{options.run} translates from {data.source_language} to {data.target_language}: "
            f"{mend} for the other direction"
        )
    _check_backward(options, opened.recipe.unsupervised)
    parts = data.parts if source == data.source else {}
    splits = [data.validation_split]
    split = options.split or (splits if parts else default_splits(source, splits))[0]
    pairs = read_pairs(source, parts.get(split, split), *languages, options.tfds)
    if options.backward:
        pairs, languages = [pair[::-1] for pair in pairs], languages[::-1]
        metric = dataclasses.replace(metric, language=data.source_language)
    checkpoint = opened.checkpoint(options.checkpoint)
    manifest = read_manifest(checkpoint)
    steps = manifest.get("averaged_steps", [manifest["step"]])
    if options.beam_size:
        decoding = dataclasses.replace(decoding, beam_size=options.beam_size)
    if options.lowercase is not None:
        metric = dataclasses.replace(metric, lowercase=options.lowercase)
    if options.tokenize:
        metric = dataclasses.replace(metric, tokenize=options.tokenize)
    references = [reference for _, reference in pairs]
    metric = metric.for_references(references)
    with options.devices.scope():
        translator = opened.translator(checkpoint, decoding, backward=options.backward)

    start_time = time.monotonic()
    hypotheses = generated(translator, [line for line, _ in pairs], "translating")
    seconds = time.monotonic() - start_time
    scores = evaluate_translations(hypotheses, references, metric)
    print(scores)
    mean = f"the mean of steps {', '.join(map(str, steps))}"
    weights = mean if len(steps) > 1 else f"step {steps[0]:,}"
    print(f"{len(pairs)} lines in {seconds:.1f} s, checkpoint {checkpoint.name} ({weights})")
    conditions = {
        "source": source,
        "split": split,
        "languages": languages,
        "decoding": dataclasses.asdict(translator.config),
        "metric": dataclasses.asdict(metric),
    }
    record = {
        "run": str(opened.path),
        "checkpoint": checkpoint.name,
        "steps": steps,
        **conditions,
        "seconds": round(seconds, 2),
        **dataclasses.asdict(scores),
        "hypotheses": hypotheses,
        "references": references,
    }
    settings = f"{checkpoint.name}-beam{decoding.beam_size}-"
    identity = [conditions, manifest["files"], list(pairs)]
    subject, what = f"{source}-{split}", "scores and translations"
    write_scores(options.output, opened.path, what, subject, settings, identity, record)


def run_compare(options: argparse.Namespace) -> None:
    """Runs the command `compare`: prints the BLEU of two evaluations and a p-value."""
    (first, references, metric), (second, others, other_metric) = map(
        _read_outputs, (options.first, options.second)
    )
    if references != others:
        raise UserError(f"{options.first} and {options.second} have different references")
    metric, other_metric = (each.for_references(references) for each in (metric, other_metric))
    if metric != other_metric:
        raise UserError(
            f"{options.first} was scored with {metric.signature}, but {options.second} with "
            f"{other_metric.signature}: evaluate both runs with the same metric"
        )
    arguments = {"resamples": options.samples, "seed": options.seed}
    print(paired_bootstrap(first, second, references, metric, **arguments))


def _read_outputs(name: str) -> tuple[list[str], list[str], TranslationMetric]:
    """Reads hypotheses, references and metric from a JSON file that `evaluate` wrote."""
    mend = "give a JSON file that `evaluate` wrote"
    record = read_json(name, mend=mend, hypotheses=list, references=list, metric=dict)
    hypotheses, references = record["hypotheses"], record["references"]
    are_texts = all(isinstance(text, str) for text in (*hypotheses, *references))
    if len(hypotheses) != len(references) or not references or not are_texts:
        raise UserError(f"{name} has no reference for each hypothesis: {mend}")
    with refuse_damage(name, mend):
        return hypotheses, references, TranslationMetric(**record["metric"])
