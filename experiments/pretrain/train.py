"""The command `pretrain train`, which trains an encoder, language model or encoder-decoder."""

import argparse
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from experiments import registry
from experiments.pretrain.corpus import prepare_corpus, vocabulary_config
from experiments.pretrain.run import PretrainingRecipe, PretrainingRun
from experiments.train_run import (
    RunData,
    evaluate_model,
    needs_static_shapes,
    report,
    train_run,
)
from macaron_tf.data.corpus.reading import (
    PretrainingCorpus,
    language_batches,
    process_seed,
    with_documents,
)
from macaron_tf.data.corpus.streams import stream_dataset
from macaron_tf.distribution import Workers
from macaron_tf.errors import UserError
from macaron_tf.io.paths import absolute
from macaron_tf.objectives import PretrainingObjective
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import TrainingResult
from macaron_tf.training.callbacks import Callbacks

if TYPE_CHECKING:
    from macaron_tf.starts import Start


def run(options: argparse.Namespace) -> None:
    """Runs the command `train`: trains or resumes a run, and prints the next commands."""
    earlier = registry.resumed(options, PretrainingRun)
    recipe = earlier.recipe if earlier else registry.load(options.recipe, PretrainingRecipe)
    start, location = None, recipe.init if earlier else options.init
    if location:
        # Imported late, because only --init needs the readers of other libraries.
        from macaron_tf.starts import read_start

        start = read_start(
            location, ("encoder", "pair"), options.lower_case, trust_code=options.trust_code
        )
        recipe = recipe if earlier else recipe.changed(**start.settings)
    elif options.lower_case is not None:
        raise UserError(
            "--[no-]lower-case applies only to --init: set vocabulary.lower_case instead"
        )
    planned = registry.plan(options, PretrainingRun, recipe, earlier)
    recipe = planned.recipe
    # Checks the settings before the data are read, which may take minutes. The settings of corpus
    # and vocabulary are compared later, because they come from the prepared corpus.
    recipe.model_config()
    objective = recipe.make_objective(needs_static_shapes(options.devices))
    recipe.check_metric(objective.metric_names)
    planned.continued("corpus.", "vocabulary.")
    if options.vocabulary and (options.corpus or start):
        owner = "the model of --init" if start else "the corpus"
        raise UserError(f"{owner} already has a vocabulary: leave --vocabulary out")
    if folder := options.corpus or (earlier and earlier.data_record().get("corpus")):
        corpus = PretrainingCorpus.open(folder)
    else:
        vocabulary = start and start.vocabulary
        corpus = prepare_corpus(recipe, None, options.vocabulary, options.tfds, vocabulary)
    if start:
        check_vocabulary(start.vocabulary.hash, corpus.vocabulary.hash, recipe.init)
    result = train_corpus(
        planned,
        corpus,
        options.devices,
        options.own_shards,
        start,
        options.callbacks,
        objective,
    )
    command = "text_to_text" if recipe.builtin_objective.encoder_decoder else "finetune"
    next_commands = [f"macaron {command} train sst2 {{run}}-sst2 --init {{run}}"]
    if recipe.builtin_objective.causal:
        next_commands.append('macaron generate complete {run} "The story of"')
    elif recipe.builtin_objective.fills_masks:
        next_commands.append('{me} fill {run} "the [MASK] of the story"')
    report(result, recipe, options, *next_commands, "tensorboard --logdir {run}")


def train_corpus(
    run: PretrainingRun,
    corpus: PretrainingCorpus,
    strategy: tf.distribute.Strategy | None = None,
    own_shards: bool = False,
    start: "Start | None" = None,
    callbacks: Callbacks | None = None,
    objective: PretrainingObjective | None = None,
) -> TrainingResult:
    """Trains a pre-training run, or resumes the run in its folder.

    Args:
        run: the run; its vocabulary and its settings of corpus and vocabulary are replaced by
            those of the corpus.
        corpus: prepared corpus; its `sequence_length` and `pairs` must equal the recipe's settings.
        strategy: distribution strategy; `None` means the current strategy.
        own_shards: whether each worker reads only its own shards. The order of the rows then
            depends on the number of workers.
        start: pre-trained model that `recipe.init` names; `None` means random weights.
        callbacks: Keras callbacks and profiling from the command line.
        objective: the recipe's objective; `None` means that this function makes it.
    """
    recipe = run.recipe
    check_corpus(recipe, corpus)
    if corpus.rows("train") < recipe.batch_size:
        raise UserError(
            f"one batch needs {recipe.batch_size} training rows, but {corpus.folder} has only "
            f"{corpus.rows('train')}: prepare a corpus with more text, or lower batch_size"
        )
    recipe = recipe.changed(corpus=corpus.config, vocabulary=vocabulary_config(corpus.vocabulary))
    strategy = strategy or tf.distribute.get_strategy()
    objective = objective or recipe.make_objective(needs_static_shapes(strategy))
    workers, validation_data = Workers(strategy), validation_batches(recipe, corpus, objective)

    def initialize(network: keras.Model) -> None:
        if start and (random_parts := start.copy_to(network)):
            print(
                f"parts that start from random weights, because {start.given} does not contain "
                f"them: {', '.join(random_parts)}",
                flush=True,
            )

    try:
        return train_run(
            dataclasses.replace(run, recipe=recipe, vocabulary=corpus.vocabulary),
            RunData(
                _batches(recipe, corpus, objective, workers, own_shards),
                corpus.fingerprint,
                {"rows": corpus.rows("train"), "corpus": str(absolute(corpus.folder))},
                per_worker=own_shards and workers.several,
            ),
            lambda network: lambda model, step: evaluate_model(model, validation_data),
            strategy,
            initialize=initialize,
            note=f"{f', from {recipe.init}' if start else ''}; {corpus.summary()}",
            callbacks=callbacks,
            objective=objective,
        )
    except tf.errors.OpError as error:
        # A shard may have been damaged since the corpus was opened.
        if user_error := corpus.shard_error(error):
            raise user_error from error
        raise


def _batches(
    recipe: PretrainingRecipe,
    corpus: PretrainingCorpus,
    objective: PretrainingObjective,
    workers: Workers,
    own_shards: bool,
) -> Callable[[int], tf.data.Dataset]:
    """Returns a function that makes the endless dataset of training batches.

    The argument of the function is the index of the first micro-batch.
    """
    batch_size, seed, mask_seed = recipe.batch_size, recipe.training.seed, recipe.training.seed
    if recipe.builtin_objective.has_memory and own_shards:
        raise UserError(
            f"objective {recipe.objective!r} reads texts in order: leave --own-shards out"
        )
    if own_shards and workers.several:
        if keras.backend.backend() == "jax":
            raise UserError(
                "--own-shards works only with --engine tensorflow: leave --own-shards out"
            )
        if corpus.config.batch_alpha is not None:
            raise UserError(
                "corpus.batch_alpha needs the files of all languages: leave --own-shards out"
            )
        if batch_size % workers.count:
            raise UserError(
                f"batch_size is {batch_size}, but --own-shards needs a multiple of {workers.count}"
            )
        corpus, batch_size = corpus.shard(workers.index, workers.count), batch_size // workers.count
        if recipe.masking.duplicates is None:  # static masks depend only on the row
            mask_seed = process_seed(seed, workers.index)
    accumulation_steps = recipe.training.accumulation_steps
    numbered = recipe.masking.duplicates is not None

    def batches(first_index: int) -> tf.data.Dataset:
        if recipe.builtin_objective.has_memory:
            rows = stream_dataset(
                corpus,
                "train",
                batch_size,
                first_index,
                bidirectional=recipe.bidirectional,
                micro_batches=accumulation_steps,
            )
        elif corpus.config.batch_alpha is not None:
            rows = language_batches(
                corpus, batch_size, seed, first_index, accumulation_steps, numbered
            )
        else:
            rows = corpus.dataset("train", batch_size, seed, first_index, numbered=numbered)
        if recipe.isolate_documents:
            rows = with_documents(rows, corpus.vocabulary.special.end)
        dataset = objective.dataset(rows, recipe.masking, corpus.vocabulary, mask_seed, first_index)
        return dataset.prefetch(tf.data.AUTOTUNE)

    return batches


def validation_batches(
    recipe: PretrainingRecipe, corpus: PretrainingCorpus, objective: PretrainingObjective
) -> tf.data.Dataset:
    """Makes the validation batches of a corpus, with the same masks in every validation.

    `recipe.validation_batches` limits the number of batches.
    """
    if recipe.builtin_objective.has_memory:  # these objectives need texts of equal length
        rows = stream_dataset(corpus, "validation", recipe.batch_size, repeat=False)
    else:
        rows = corpus.dataset(
            "validation",
            recipe.batch_size,
            None,
            repeat=False,
            drop_remainder=False,
            numbered=recipe.masking.duplicates is not None,
        )
    if recipe.isolate_documents:
        rows = with_documents(rows, corpus.vocabulary.special.end)
    batches = objective.dataset(rows, recipe.masking, corpus.vocabulary, seed=0)
    return batches.take(recipe.validation_batches or -1)


def check_corpus(
    recipe: PretrainingRecipe, corpus: PretrainingCorpus, any_pairs: bool = False
) -> None:
    """Raises a `UserError` if the row length or the pairs of `corpus` differ from the recipe.

    Args:
        recipe: recipe of the run.
        corpus: prepared corpus.
        any_pairs: whether the corpus may have sentence pairs of another type than the recipe, as in
            evaluation. It must still have pairs if and only if the recipe has pairs.
    """
    wanted, prepared = recipe.corpus, corpus.config
    for name in ("sequence_length", "pairs"):
        value, prepared_value = getattr(wanted, name), getattr(prepared, name)
        is_fit = name == "pairs" and any_pairs and wanted.paired == prepared.paired
        if value != prepared_value and not is_fit:
            raise UserError(
                f"{corpus.folder} was prepared with {name}={prepared_value!r}, but the run has "
                f"{name}={value!r}: prepare another corpus, or set corpus.{name} for another run"
            )
