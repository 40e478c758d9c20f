"""`embed train`: from pre-trained weights to an encoder of sentences."""

import argparse
import dataclasses

import tensorflow as tf
from etils import epath

from experiments.embed.evaluate import TRAIN, measure, read_sets, validation_split, vectors_of
from experiments.embed.recipe import EmbeddingRecipe, paper_recipe
from experiments.embed.run import EmbeddingRun, SentenceEncoder, read_start, warn_cut
from experiments.epochs import refuse_given, train_examples
from experiments.finetune.init import Init
from experiments.recipe import override
from experiments.train_run import report
from macaron_tf.data.tasks.encoding import EncodedSentences, encode_sets
from macaron_tf.data.tasks.reading import TextSets
from macaron_tf.io.paths import as_path
from macaron_tf.training import FitModel, TrainingResult

# Settings that the command line has arguments for.
_GIVEN = {"task": "TASK", "init": "--init", "source": "--source", "objective": "--objective"}


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    start = read_start(options.init, options.model, options.vocabulary, options.lower_case)
    recipe = configure(options, start)
    splits = [
        read_sets(recipe.task, split, recipe.source, options.data_dir, options.download)
        for split in (TRAIN, validation_split(recipe.task))
    ]
    path = as_path(options.run)
    result = train_recipe(recipe, path, *splits, start, options.devices)
    where = f" --data-dir {options.data_dir}" if options.data_dir else ""
    steps = [
        f"{recipe.command} evaluate {path}{where}",
        f"{recipe.command} search {path} --corpus FILE",
        f"python -m export.saved_model {path} served/{path.name}",
    ]
    best = "best on the development set at step {step:,}: {metric} {score:.4f}"
    report(result, recipe, steps, best)


def configure(options: argparse.Namespace, start: Init) -> EmbeddingRecipe:
    """The paper's recipe for a task, this start and the settings given.

    Args:
        options: `task`, `objective`, `pooling`, `source` and `set`.
        start: the weights; their own pooling and length count where none is given.

    Raises:
        UserError: as `override`; a setting has an argument of its own; or a setting cannot be
            trained with.
    """
    refuse_given(options.set, _GIVEN)
    recipe, found = start.apply(paper_recipe(options.task, options.objective)), start.source
    recipe = dataclasses.replace(
        recipe,
        source=options.source or recipe.source,
        pooling=options.pooling or (found and found.pooling) or recipe.pooling,
        normalize=bool(found and found.normalize),
        max_length=(found and found.max_length) or recipe.max_length,
    )
    recipe = override(recipe, options.set)
    start.check(recipe)
    recipe.check_metric(metric_names(recipe))
    return recipe


def train_recipe(
    recipe: EmbeddingRecipe,
    path: epath.Path,
    examples: TextSets,
    held_out: TextSets,
    init: Init,
    strategy: tf.distribute.Strategy,
) -> TrainingResult:
    """Trains in a run's folder; the run found there is continued.

    Raises:
        UserError: settings that do not fit, or a run of other data or settings in `path`.
    """
    vocabulary = init.vocabulary
    recipe = recipe.resolved(len(examples))
    init.warn(recipe)
    EmbeddingRun.resume(path, recipe)  # refused before the tokenizing
    encoded = [encode_sets(vocabulary, sets, recipe.max_length) for sets in (examples, held_out)]
    for sets in encoded:
        warn_cut(sets.cut, len(sets.rows.lengths), recipe.max_length)
    return train_examples(
        EmbeddingRun(path, recipe, vocabulary),
        encoded[0],
        recipe.make_objective(),
        lambda network: EmbeddingValidation(
            recipe, SentenceEncoder(network, vocabulary, recipe.max_length), encoded[1]
        ),
        init,
        strategy,
    )


def metric_names(recipe: EmbeddingRecipe) -> tuple[str, ...]:
    """The metrics of a recipe's validation."""
    names = {
        "softmax": ("score", *getattr(recipe.described, "metrics", ())),
        "cosine": ("spearman", "pearson"),
        "triplet": ("accuracy",),
    }
    return (*names[recipe.objective], "loss")


class EmbeddingValidation:
    """Loss and metrics of a development set."""

    def __init__(self, recipe: EmbeddingRecipe, encoder: SentenceEncoder, data: EncodedSentences):
        self.recipe = recipe
        self.encoder = encoder
        self.data = data

    def __call__(self, model: FitModel, step: int) -> dict[str, float]:
        """The metrics by name."""
        vectors = vectors_of(self.encoder, self.data)
        labels = None if self.data.labels is None else tf.constant(self.data.labels)
        network = self.encoder.network
        loss = self.recipe.make_objective().loss(network, tf.constant(vectors), labels)  # (N,)
        metrics = measure(self.recipe.task, network, vectors, self.data.labels)
        return {"loss": float(tf.reduce_mean(loss)), **metrics}
