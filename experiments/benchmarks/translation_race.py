"""What the translation training benchmark races: one model, one text, two systems' commands."""

import argparse
import dataclasses
import json
import os
import pathlib
import sys

import numpy as np

from experiments import registry
from experiments.benchmarks import joeynmt
from experiments.benchmarks.trainers import JoeyTrainer, OurTrainer, Trainer
from experiments.recipe import override
from experiments.translate.recipe import TranslationRecipe
from experiments.translate.train import train_vocabulary
from macaron_tf.data.batches import Buckets
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.translation import TranslationData
from macaron_tf.io.paths import write_aside

RECIPE = "multi30k_transformer_tiny"
REFERENCE = "Joey NMT, float32"
OURS = {"ours, float32": "float32", "ours, mixed_bfloat16": "mixed_bfloat16"}


@dataclasses.dataclass(frozen=True)
class Race:
    """What runs.

    Attributes:
        trainers: by name.
        target_tokens: of an update, the mean over an epoch, by name.
        padded_tokens: what a batch of each was told to hold, padding included, by name.
    """

    trainers: dict[str, Trainer]
    target_tokens: dict[str, float]
    padded_tokens: dict[str, int]


def equal_recipe(settings: list[str], dropout: float) -> TranslationRecipe:
    """The benchmark's recipe with what Joey NMT cannot do otherwise.

    Args:
        settings: `PATH=VALUE`, to replace more.
        dropout: of embeddings, sub-layers, attention weights and inner activations.

    Raises:
        UserError: a setting is none.
    """
    places = ("dropout", "attention_dropout", "activation_dropout")
    equal = [f"model.{place}={dropout}" for place in places]
    recipe = registry.load(RECIPE, TranslationRecipe)
    # Neither ends before it is told to.
    endless = "training.max_steps=1_000_000"
    return override(recipe, [*equal, "model.epsilon=1e-6", endless, *settings])


def equal_budget(data: TranslationData, target_tokens: float) -> int:
    """The padded tokens of a batch whose updates hold so many real target tokens on average.

    Args:
        data: the training text.
        target_tokens: of an update.
    """

    def distance(budget: int) -> float:
        return abs(mean_target_tokens(data, budget) - target_tokens)

    longest = data.lengths[-1]
    return min(range(longest, max(longest, round(4 * target_tokens)) + 1, 8), key=distance)


def mean_target_tokens(data: TranslationData, budget: int) -> float:
    """Real target tokens of our updates, the mean over an epoch."""
    buckets = Buckets(data.lengths, budget, data.batching.row_multiple)
    return data.target_tokens / buckets.steps(data.row_lengths)


def prepare(options: argparse.Namespace, work: pathlib.Path) -> Race:
    """Writes both systems' input and says how they are started.

    Args:
        options: of the command line.
        work: a folder for text, vocabulary and runs.

    Raises:
        UserError: bad settings, or the text cannot be read.
    """
    recipe = equal_recipe(options.set, options.dropout)
    languages = (recipe.data.source_language, recipe.data.target_language)
    vocabulary = train_vocabulary(recipe.data, options.data_dir)
    vocabulary.save(work / "vocabulary")
    data = TranslationData.build(
        recipe.data.source,
        recipe.data.train_split,
        vocabulary,
        cleaning=recipe.data.cleaning,
        batching=dataclasses.replace(recipe.data.batching, max_tokens=options.tokens),
        data_dir=options.data_dir,
    )
    pairs = read_pairs(
        recipe.data.source, recipe.data.validation_split, *languages, options.data_dir
    )
    joey = work / "joeynmt"
    joeynmt.write_vocabulary(joey / "vocabulary.txt", vocabulary)
    sides = (data.tokens.source, data.tokens.target)
    for language, rows, lines in zip(languages, sides, zip(*pairs, strict=True), strict=True):
        training = np.split(rows.ids, rows.offsets[1:-1])
        joeynmt.write_pieces(joey / f"train.{language}", training, vocabulary)
        held_out = vocabulary.encode_lines(lines, language)
        joeynmt.write_pieces(joey / f"validation.{language}", held_out, vocabulary)
    validate_every = options.validate_every if options.bleu_minutes else 100_000 * options.updates
    config = joeynmt.config(recipe, joey, options.tokens, options.updates, validate_every)
    # JSON is YAML; PyYAML wants a dot in 1.0e-8, which no number here needs.
    write_aside(joey / "config.yaml", (json.dumps(config, indent=1) + "\n").encode())

    updates = joeynmt.updates_per_epoch(data.row_lengths, options.tokens, recipe.training.seed)
    target_tokens = {REFERENCE: data.target_tokens / updates}
    budget = options.our_tokens or equal_budget(data, target_tokens[REFERENCE])
    target_tokens |= dict.fromkeys(OURS, mean_target_tokens(data, budget))
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **dict.fromkeys(
            ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
            str(options.threads),
        ),
    }
    trainers: dict[str, Trainer] = {
        name: OurTrainer(
            our_command(options, work, policy, budget, validate_every), work / policy, environment
        )
        for name, policy in OURS.items()
    }
    trainers[REFERENCE] = JoeyTrainer(
        [options.joey, "-m", "joeynmt", "train", str(joey / "config.yaml"), "--skip-test"],
        joey / "run",
        environment,
        vocabulary,
        [target for _, target in pairs],
        recipe.metric,
    )
    return Race(trainers, target_tokens, {**dict.fromkeys(OURS, budget), REFERENCE: options.tokens})


def our_command(
    options: argparse.Namespace, work: pathlib.Path, policy: str, budget: int, validate_every: int
) -> list[str]:
    """Our training command in one dtype policy.

    Args:
        options: of the command line.
        work: as for `prepare`.
        policy: the dtype policy, also the name of the run's folder.
        budget: padded tokens of a batch.
        validate_every: in updates.
    """
    recipe = equal_recipe(options.set, options.dropout)
    settings = {
        **{f"model.{name}": value for name, value in recipe.model_options},
        "training.max_steps": recipe.training.max_steps,
        "training.dtype_policy": policy,
        "data.batching.max_tokens": budget,
        "training.log_every": options.updates,
        "training.steps_per_call": options.updates,
        "training.validate_every": validate_every,
        "training.save_every_steps": None,
    }
    command = [sys.executable, "-m", "experiments.translate", "train", RECIPE, str(work / policy)]
    command += ["--data-dir", options.data_dir, "--vocabulary", str(work / "vocabulary")]
    given = [*options.set, *(f"{path}={value}" for path, value in settings.items())]
    return command + [word for setting in given for word in ("--set", setting)]


def equality(race: Race) -> str:
    """A sentence: what an update of each holds."""
    held = "; ".join(
        f"{name}: {tokens:,.0f} real target tokens of {race.padded_tokens[name]:,}"
        for name, tokens in race.target_tokens.items()
    )
    return f"An update holds on average, {held}."
