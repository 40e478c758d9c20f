"""`translate train`: from a recipe to a run's checkpoints."""

import argparse

import keras
import tensorflow as tf
from etils import epath

from experiments import recipes
from experiments.recipe import MAY_CHANGE, check_same, override
from experiments.translate.init import read_start
from experiments.translate.recipe import TranslationRecipe
from experiments.translate.run import TranslationRun, build_network, first_stage
from experiments.translate.start import Start
from experiments.translate.validation import METRICS, TranslationValidation
from experiments.translate.vocabulary import train_vocabulary
from macaron_tf.data import TranslationData, Vocabulary, check_vocabulary, read_pairs
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.objectives import TranslationObjective
from macaron_tf.training import TrainingResult, build_fit_model, train

_MAY_CHANGE = (
    *MAY_CHANGE,
    "average_last",
    "data.test_split",
    "data.validation_split",
    "data.validation_lines",
    "decoding.",
    "metric.",
)


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
    print(f"stopped after step {result.step:,}: {result.reason}; {result.elapsed_seconds:.0f} s")
    if result.best_step is not None:
        name, score = recipe.training.best_metric, result.best_score
        print(f"best validation {name} {score:.2f} at step {result.best_step:,}")
    print(
        f"next: python -m experiments.translate average {path}\n"
        f"      python -m experiments.translate evaluate {path}"
        + (f" --data-dir {options.data_dir}" if options.data_dir else "")
        + f"\n      tensorboard --logdir {path}"
    )


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
    if recipe.training.best_metric not in METRICS:
        raise UserError(
            f"training.best_metric is {recipe.training.best_metric!r}: give one of "
            f"{', '.join(METRICS)}"
        )
    languages = recipe.data.languages
    text = dict(data_dir=data_dir, download=download)
    held_out = read_pairs(recipe.data.source, recipe.data.validation_split, *languages, **text)
    opened = TranslationRun.open(path) if (path / "recipe.json").exists() else None
    if opened:
        if opened.recipe.init != recipe.init:
            raise UserError(
                f"{path} was started with --init {opened.recipe.init or 'left out'}, not "
                f"{recipe.init or 'without it'}: give the same command, or another folder"
            )
        check_same(opened.recipe, recipe, path, _MAY_CHANGE)
        vocabulary = opened.vocabulary
        if vocabulary_dir:
            again = (
                start.vocabulary(recipe, vocabulary_dir)
                if start
                else Vocabulary.load(vocabulary_dir)
            )
            check_vocabulary(vocabulary.hash, again, str(path))
    elif start:
        vocabulary = start.vocabulary(recipe, vocabulary_dir, **text)
    elif vocabulary_dir:
        vocabulary = Vocabulary.load(vocabulary_dir)
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
    if opened:
        opened.check_data(data.fingerprint())
    # Weights, dropout and batches all follow from the one seed.
    keras.utils.set_random_seed(recipe.training.seed)
    with strategy.scope():
        network = build_network(recipe, vocabulary)
        validation = TranslationValidation(recipe, network, vocabulary, held_out)
        objective = TranslationObjective(recipe.label_smoothing, skip_padding=not is_tpu(strategy))
        if start and not opened:
            start.copy_to(network, recipe)
        stage = first_stage(recipe, network)
        model = build_fit_model(network, objective, recipe.training, first_stage=stage)
    begun = f", from {recipe.init}" if start else ""
    print(f"{recipe.model}: {network.count_params():,} parameters{begun}", flush=True)
    return train(
        model,
        lambda start: data.dataset(recipe.training.seed, start),
        recipe.training,
        path,
        validate=validation,
        vocabulary_hash=vocabulary.hash,
        on_start=lambda: TranslationRun(path, recipe, vocabulary).write(
            data.fingerprint(), pairs=len(data)
        ),
    )
