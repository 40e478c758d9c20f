"""`translate train`: from a recipe to a run's checkpoints."""

import argparse

import tensorflow as tf
from etils import epath

from experiments import recipes
from experiments.recipe import override
from experiments.train_run import RunData, report, train_run
from experiments.translate.init import read_start
from experiments.translate.recipe import TranslationRecipe
from experiments.translate.run import TranslationRun, first_stage
from experiments.translate.start import Start
from experiments.translate.validation import METRICS, TranslationValidation
from experiments.translate.vocabulary import train_vocabulary
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.translation import TranslationData
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.objectives import TranslationObjective
from macaron_tf.text import SentencePieceVocabulary, check_vocabulary
from macaron_tf.training import TrainingResult


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    recipe = recipes.load(options.recipe, TranslationRecipe)
    start = None
    if options.init:
        start = read_start(options.init, options.init_parts, options.init_decoder)
        recipe = start.apply(recipe)
    elif options.init_parts or options.init_decoder:
        raise UserError("--init-parts and --init-decoder go with --init RUN")
    recipe = override(recipe, options.set)
    path = as_path(options.run)
    result = train_recipe(
        recipe,
        path,
        options.data_dir,
        options.download,
        vocabulary_dir=options.vocabulary,
        strategy=options.devices,
        start=start,
    )
    where = f" --data-dir {options.data_dir}" if options.data_dir else ""
    next_commands = [
        f"{recipe.command} average {path}",
        f"{recipe.command} evaluate {path}{where}",
        f"tensorboard --logdir {path}",
    ]
    report(result, recipe, next_commands, "best validation {metric} {score:.2f} at step {step:,}")


def train_recipe(
    recipe: TranslationRecipe,
    path: epath.Path,
    data_dir: str | None = None,
    download: bool = False,
    vocabulary_dir: str | None = None,
    strategy: tf.distribute.Strategy | None = None,
    start: Start | None = None,
) -> TrainingResult:
    """Trains a recipe in a run's folder; the run found there is continued.

    All input is read before the folder is made, so that bad input leaves nothing behind.

    Args:
        recipe: every setting.
        path: the run's folder.
        data_dir, download: as for `macaron_tf.data.read_pairs`.
        vocabulary_dir: a vocabulary to use instead of training one.
        strategy: the devices; None = this moment's.
        start: what the weights are of, and the vocabulary; the recipe is `start.apply`'s.

    Raises:
        UserError: bad input, or a run of other data or another model in `path`.
    """
    # A wrong model is said before minutes are spent on the data.
    if recipe.model_config().num_source_layers and start is None:
        raise UserError(
            "model.num_source_layers reads a source of another vocabulary than a pre-trained "
            "model's: give --init a run of BART's or T5's"
        )
    if start:
        start.check(recipe)
    recipe.check_metric(METRICS)
    languages = recipe.data.languages
    text = dict(data_dir=data_dir, download=download)
    held_out = read_pairs(recipe.data.source, recipe.data.validation_split, *languages, **text)
    opened = TranslationRun.resume(path, recipe)
    if opened:
        vocabulary = opened.vocabulary
        if vocabulary_dir:
            again = (
                start.vocabulary(recipe, vocabulary_dir)
                if start
                else SentencePieceVocabulary.load(vocabulary_dir)
            )
            check_vocabulary(vocabulary.hash, again, str(path))
    elif start:
        vocabulary = start.vocabulary(recipe, vocabulary_dir, **text)
    elif vocabulary_dir:
        vocabulary = SentencePieceVocabulary.load(vocabulary_dir)
    else:
        print(f"training a vocabulary of {recipe.data.vocabulary_size:,} pieces", flush=True)
        vocabulary = train_vocabulary(recipe.data, data_dir, download)
    made_for = (vocabulary.languages, vocabulary.normalization)
    if made_for != (languages, recipe.data.normalization):
        raise UserError(
            f"the vocabulary was trained for {made_for}, the recipe wants "
            f"{(languages, recipe.data.normalization)}: train another with `translate vocabulary`"
        )
    data = TranslationData.build(
        recipe.data.source,
        recipe.data.train_split,
        vocabulary,
        cleaning=recipe.data.cleaning,
        batching=recipe.data.batching,
        sampling=recipe.data.sampling,
        **text,
    )
    print(f"training text: {data.summary()}", flush=True)
    tokens, batch = max(data.source_tokens, data.target_tokens), recipe.data.batching.max_tokens
    if tokens < batch:
        raise UserError(
            f"{recipe.data.source} has {tokens} tokens, less than one batch of {batch}: give more "
            "text, or lower data.batching.max_tokens"
        )
    strategy = strategy or tf.distribute.get_strategy()
    if is_tpu(strategy) and len(data.shapes) > 1:
        raise UserError(
            f"a TPU wants batches of one shape, and there are {len(data.shapes)}: "
            "--set data.batching.shapes=1"
        )
    run = TranslationRun(path, recipe, vocabulary)
    return train_run(
        run,
        RunData(
            lambda start: data.dataset(recipe.training.seed, start),
            data.fingerprint(),
            {"pairs": len(data)},
        ),
        TranslationObjective(recipe.label_smoothing, skip_padding=not is_tpu(strategy)),
        lambda network: TranslationValidation(recipe, network, vocabulary, held_out),
        strategy,
        initialize=start and (lambda network: start.copy_to(network, recipe)),
        first_stage=lambda network: first_stage(recipe, network),
        note=f", from {recipe.init}" if start else "",
    )
