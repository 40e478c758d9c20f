"""Commands that train a translation model (`train`) or only its vocabulary (`vocabulary`)."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import keras
import tensorflow as tf

from experiments import registry
from experiments.train_run import needs_static_shapes, report, train_pairs
from experiments.translate.init import TranslationStart, read_init
from experiments.translate.run import DataConfig, TranslationRecipe, TranslationRun
from macaron_tf.data.sources.readers import count_pairs, read_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.translation import TranslationData
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import evaluate_translations
from macaron_tf.objectives import MaskingConfig, TranslationObjective
from macaron_tf.text import PairVocabulary, SentencePieceVocabulary, check_vocabulary
from macaron_tf.training import TrainingResult
from macaron_tf.training.callbacks import Callbacks


def run(options: argparse.Namespace) -> None:
    """Runs the command `train`: trains or resumes a run, and prints the next commands."""
    if earlier := registry.resumed(options, TranslationRun):
        recipe = earlier.recipe
        parts = recipe.init, recipe.init_parts, recipe.init_decoder
        start = read_init(*parts, options.trust_code)
    else:
        parts = options.init, options.init_parts, options.init_decoder
        start = read_init(*parts, options.trust_code)
        recipe = start.apply(registry.load(options.recipe, TranslationRecipe))
    planned = registry.plan(options, TranslationRun, recipe, earlier)
    result = train_translator(
        planned,
        options.vocabulary,
        options.devices,
        start,
        options.tfds,
        options.processes,
        options.callbacks,
    )
    commands = ("{me} average {run}", "{me} evaluate {run}{data}", "tensorboard --logdir {run}")
    best = "best validation {metric} {score:.2f} at step {step:,}"
    report(result, planned.recipe, options, *commands, best=best)


def run_vocabulary(options: argparse.Namespace) -> None:
    """Runs the command `vocabulary`: trains and saves the vocabulary of a recipe."""
    recipe = registry.load(options.recipe, TranslationRecipe, options.set)
    vocabulary = TranslationStart().vocabulary(recipe, tfds=options.tfds)
    vocabulary.save(options.out)
    print(f"{vocabulary.pieces} pieces, hash {vocabulary.hash[:12]}, in {options.out}")


def train_translator(
    run: TranslationRun,
    vocabulary_dir: str | None = None,
    strategy: tf.distribute.Strategy | None = None,
    start: TranslationStart | None = None,
    tfds: Tfds | None = None,
    processes: int | None = None,
    callbacks: Callbacks | None = None,
) -> TrainingResult:
    """Trains a translation model, or resumes the run in its folder.

    The function reads all input before it creates the folder, so invalid input leaves no folder.

    Args:
        run: the run, whose recipe `start.apply` has returned.
        vocabulary_dir: folder of an existing vocabulary; `None` means to train a vocabulary.
        strategy: distribution strategy; `None` means the current strategy.
        start: initial weights and vocabulary; `None` means random weights.
        tfds: access to TensorFlow Datasets.
        processes: number of processes that tokenize; `None` means one process per core.
        callbacks: Keras callbacks and profiling from the command line.
    """
    start, recipe, config = start or TranslationStart(), run.recipe, run.recipe.data
    start.check(recipe)  # before the data are read, which may take minutes
    recipe.check_metric((*TranslationObjective.metric_names, "bleu", "sacrebleu", "chrf"))
    run = run.continued()
    train_split, validation_split = (
        config.parts.get(name, name) for name in (config.train_split, config.validation_split)
    )
    held_out = read_pairs(config.source, validation_split, *config.languages, tfds)
    validation_pairs = list(held_out[: config.validation_lines])
    references = [reference for _, reference in validation_pairs]
    metric = recipe.metric.for_references(references)
    vocabulary = run.vocabulary
    if vocabulary_dir or vocabulary is None:
        vocabulary = start.vocabulary(recipe, vocabulary_dir, tfds)
    if run.earlier:
        check_vocabulary(run.earlier.vocabulary.hash, vocabulary.hash, run.path)
    languages, normalization = config.languages, config.normalization
    if (vocabulary.languages, vocabulary.normalization) != (languages, normalization):
        trained, wanted = (
            f"the languages {' and '.join(settings.languages)} with normalization "
            f"{settings.normalization!r}"
            for settings in (vocabulary, config)
        )
        raise UserError(
            f"the vocabulary was trained for {trained}, but must be for {wanted}: train another"
        )
    source = vocabulary.source if isinstance(vocabulary, PairVocabulary) else vocabulary
    rule = isinstance(source, SentencePieceVocabulary) and source.normalization_rule
    if config.normalization_rule not in ("nmt_nfkc", rule):  # the default accepts any vocabulary
        raise UserError(
            f"data.normalization_rule is {config.normalization_rule!r}, but the vocabulary was not "
            "trained with this rule: leave it out, or train a vocabulary by `translate vocabulary`"
        )
    strategy = strategy or tf.distribute.get_strategy()
    if recipe.unsupervised and keras.backend.backend() == "jax":
        raise UserError(
            "unsupervised=True works with the TensorFlow engine only: leave out --engine jax"
        )
    data = TranslationData.build(
        config.source,
        train_split,
        vocabulary,
        target_split=config.target_split,
        cleaning=config.cleaning,
        batching=config.batching,
        sampling=config.sampling,
        tfds=tfds,
        processes=processes,
    )
    print(f"training text: {data.summary()}", flush=True)
    if config.target_split:
        _warn_unequal_lengths(config, tfds)
    tokens, batch_tokens = max(data.source_tokens, data.target_tokens), config.batching.max_tokens
    if tokens < batch_tokens:
        raise UserError(
            f"one batch needs {batch_tokens} tokens, but {config.source} has only {tokens}: lower "
            "data.batching.max_tokens"
        )
    if is_tpu(strategy) and len(data.shapes) > 1:
        raise UserError(
            f"a TPU needs batches of one shape, not {len(data.shapes)}: set data.batching.shapes=1"
        )
    objective = recipe.make_objective(needs_static_shapes(strategy))
    seed = recipe.training.seed

    def batches(step: int) -> tf.data.Dataset:
        rows = data.dataset(seed, step)
        if recipe.unsupervised:
            rows = objective.dataset(rows, MaskingConfig(), vocabulary.target, seed, step)
        return rows

    cleaning = dataclasses.replace(config.cleaning, max_ratio=None, deduplicate=False)
    validation_data = TranslationData.from_pairs(
        held_out, vocabulary, cleaning=cleaning, batching=config.batching
    )

    def score(hypotheses: Sequence[str]) -> dict[str, float]:
        """Computes tokenized BLEU, as in papers, and the BLEU and chrF of sacreBLEU."""
        scores = evaluate_translations(hypotheses, references, metric)
        return dict(bleu=scores.tokenized_bleu, sacrebleu=scores.bleu, chrf=scores.chrf)

    return train_pairs(
        dataclasses.replace(run, vocabulary=vocabulary),
        data,
        validation_data,
        validation_pairs,
        score,
        "source:      {}\nreference:   {}\ntranslation: {}",
        strategy,
        initialize=lambda network: start.copy_to(network, recipe),
        note=f", from {start.init.given}" if start.init else "",
        batches=batches,
        callbacks=callbacks,
        objective=objective,
    )


def _warn_unequal_lengths(config: DataConfig, tfds: Tfds | None) -> None:
    """Warns on stderr if the source text and the target text have different line counts.

    Training never reads the surplus lines of the longer text.
    """
    splits = config.train_split, config.target_split
    source_lines, target_lines = (
        count_pairs(config.source, name, *config.languages, tfds) for name in splits
    )
    if source_lines and target_lines and source_lines != target_lines:
        longer = splits[target_lines > source_lines]
        shorter = splits[source_lines > target_lines]
        print(
            f"warning: {abs(source_lines - target_lines):,} line(s) of {longer!r} are not read, "
            f"because {shorter!r} has only {min(source_lines, target_lines):,} lines: give splits "
            "with equal numbers of lines",
            file=sys.stderr,
        )
