"""The command `embed train`, which trains a sentence encoder."""

import argparse
import dataclasses

import tensorflow as tf

from experiments import registry
from experiments.embed.evaluate import measure, read_sets
from experiments.embed.run import (
    EmbeddingRecipe,
    EmbeddingRun,
    paper_recipe,
    read_start,
)
from experiments.epochs import init_of_run, train_examples, warn_start
from experiments.recipe import override
from experiments.train_run import report
from macaron_tf.data.tasks.encoding import encode_sets
from macaron_tf.models.tasks import SiameseEncoder
from macaron_tf.starts import Start
from macaron_tf.tasks.vectors import Vectors, warn_cut
from macaron_tf.training import FitModel


def run(options: argparse.Namespace) -> None:
    """Runs the command `train`: trains or resumes a run, and prints commands to try next."""
    init_arguments = options.model, options.vocabulary, options.lower_case
    if earlier := registry.resumed(options, EmbeddingRun):
        init = init_of_run(earlier, *init_arguments)
        recipe = earlier.recipe
    else:
        init = read_start(options.init, *init_arguments, options.trust_code)
        recipe = configure(options.task, init)
    given = {name: vars(options)[name] for name in ("source", "pooling") if vars(options)[name]}
    recipe = recipe.changed(**given)
    planned = registry.plan(options, EmbeddingRun, recipe, earlier)
    recipe, vocabulary = planned.recipe, init.vocabulary
    init.check(recipe.model_config(vocabulary.size))
    recipe.check_metric((*recipe.metrics, "loss"))
    task = recipe.task_definition
    examples, held_out = (
        read_sets(task, split, recipe.source, options.tfds)
        for split in ("train", task.validation_splits[0])
    )
    recipe = recipe.resolved(len(examples))
    warn_start(init, recipe)
    # Raises for a run of other settings before the tokenization.
    run = dataclasses.replace(planned, recipe=recipe, vocabulary=vocabulary).continued()
    train_data, validation_data = (
        encode_sets(vocabulary, sets, recipe.max_length) for sets in (examples, held_out)
    )
    for sets in (train_data, validation_data):
        warn_cut(sets.truncated_count, len(sets.rows.lengths), recipe.max_length)
    objective = recipe.make_objective()

    def validation(network: SiameseEncoder):
        encoder = Vectors(network, vocabulary, recipe.max_length)

        def validate(model: FitModel, step: int) -> dict[str, float]:
            vectors = encoder.encode_sets(validation_data)
            labels = None if validation_data.labels is None else tf.constant(validation_data.labels)
            loss = objective.loss(network, tf.constant(vectors), labels)  # (N,)
            metrics = measure(task, network, vectors, validation_data.labels)
            return {"loss": float(tf.reduce_mean(loss)), **metrics}

        return validate

    result = train_examples(run, train_data, validation, init, options.devices, options.callbacks)
    steps = ("{me} evaluate {run}{data}", "{me} search {run} --corpus FILE")
    steps += (f"macaron export {{run}} served/{run.path.name}",)
    report(result, recipe, options, *steps)


def configure(task: str, start: Start) -> EmbeddingRecipe:
    """Makes the recipe of `paper_recipe` for a pre-trained model.

    The pooling, the normalization and the maximum length come from the pre-trained model.
    """
    recipe, pretrained = paper_recipe(task), start.source
    recipe = recipe.changed(**start.settings)
    if pretrained:
        recipe = recipe.changed(
            pooling=pretrained.pooling or recipe.pooling,
            normalize=pretrained.normalize,
            max_length=pretrained.max_length or recipe.max_length,
        )
    return recipe


def run_settings(options: argparse.Namespace) -> None:
    """Runs the command `settings TASK [WORD ...]`: prints the settings of the task's recipe."""
    recipe = override(paper_recipe(options.task), options.set)
    registry.print_settings(recipe, options.words)
