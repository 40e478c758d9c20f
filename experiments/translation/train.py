"""`translate train`: from a recipe to a run's checkpoints."""

import argparse
import dataclasses
import pathlib

import keras

from experiments import recipes
from experiments.recipe import TranslationRecipe, override
from experiments.run import TranslationRun, build_network
from experiments.translation.validation import TranslationValidation
from experiments.translation.vocabulary import train_vocabulary
from macaron_tf.data import TranslationData, Vocabulary, check_vocabulary, read_pairs
from macaron_tf.errors import UserError
from macaron_tf.objectives import TranslationObjective
from macaron_tf.training import TrainingResult, build_fit_model, train


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    recipe = override(recipes.load(options.recipe), options.set)
    path = pathlib.Path(options.run)
    result = train_recipe(
        recipe, path, options.data_dir, options.download, vocabulary_dir=options.vocabulary
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
    path: pathlib.Path,
    data_dir: str | None = None,
    download: bool = False,
    vocabulary_dir: str | None = None,
) -> TrainingResult:
    """Trains a recipe in a run's folder; the run found there is continued.

    All input is read before the folder is made, so that bad input leaves nothing behind.

    Args:
        recipe: every setting.
        path: the run's folder.
        data_dir, download: as for `macaron_tf.data.read_pairs`.
        vocabulary_dir: a vocabulary to use instead of training one.

    Raises:
        UserError: bad input, or a run of other data or another model in `path`.
    """
    opened = TranslationRun.open(path) if (path / "recipe.json").exists() else None
    if opened:
        _check_same(opened.recipe, recipe, path)
        vocabulary = opened.vocabulary
        if vocabulary_dir:
            check_vocabulary(vocabulary.hash, Vocabulary.load(vocabulary_dir), str(path))
    elif vocabulary_dir:
        vocabulary = Vocabulary.load(vocabulary_dir)
    else:
        print(f"training a vocabulary of {recipe.data.vocabulary_size:,} pieces", flush=True)
        vocabulary = train_vocabulary(recipe.data, data_dir, download)
    languages = (recipe.data.source_language, recipe.data.target_language)
    if vocabulary.languages != languages:
        raise UserError(
            f"the vocabulary was trained for {'-'.join(vocabulary.languages)}, "
            f"the recipe wants {'-'.join(languages)}: train another"
        )
    text = dict(data_dir=data_dir, download=download)
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
    held_out = read_pairs(recipe.data.source, recipe.data.validation_split, *languages, **text)
    # Weights, dropout and batches all follow from the one seed.
    keras.utils.set_random_seed(recipe.training.seed)
    network = build_network(recipe, vocabulary)
    print(f"{recipe.model}: {network.count_params():,} parameters", flush=True)
    validation = TranslationValidation(recipe, network, vocabulary, held_out)
    TranslationRun.create(path, recipe, vocabulary)
    model = build_fit_model(network, TranslationObjective(recipe.label_smoothing), recipe.training)
    return train(
        model,
        lambda start: data.dataset(recipe.training.seed, start),
        recipe.training,
        path,
        validate=validation,
        vocabulary_hash=vocabulary.hash,
    )


def _check_same(before: TranslationRecipe, now: TranslationRecipe, path: pathlib.Path) -> None:
    """A run goes on with its own model and data; how long and how often may change."""
    for name in ("model", "model_options", "data", "label_smoothing"):
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            if dataclasses.is_dataclass(old):
                inner = next(
                    field.name
                    for field in dataclasses.fields(old)
                    if getattr(old, field.name) != getattr(new, field.name)
                )
                name, old, new = f"{name}.{inner}", getattr(old, inner), getattr(new, inner)
            raise UserError(
                f"{path} was trained with {name}={old!r}, not {new!r}: choose another folder, "
                "or give the recipe and settings it was started with"
            )
