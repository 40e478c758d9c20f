"""The commands `train`, which fine-tunes T5 or BART, and `settings`, which prints a recipe."""

import argparse
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from experiments import registry
from experiments.recipe import override
from experiments.text_to_text.evaluate import TextPairs, check_answers
from experiments.text_to_text.run import TextRecipe, TextRun, recipe_for
from experiments.train_run import report, train_pairs, warn_truncated
from macaron_tf.data.batches import Draw
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.text_tasks import PREFIXES
from macaron_tf.data.translation import CleaningConfig, TranslationData
from macaron_tf.errors import UserError
from macaron_tf.objectives import TranslationObjective
from macaron_tf.starts import read_start

_SCORES = {"summarization": ("rouge1", "rouge2", "rougeL"), "translation": ("bleu", "chrf")}


def run(options: argparse.Namespace) -> None:
    """Runs the command `train`: trains or resumes a run, and prints the next commands."""
    earlier = registry.resumed(options, TextRun)
    location = earlier.recipe.init if earlier else options.init
    start = read_start(location, ["writer"], trust_code=options.trust_code)
    if earlier:
        recipe = earlier.recipe
    else:
        recipe = recipe_for(options.task, start.source, location, options.source)
    planned = registry.plan(options, TextRun, recipe.with_source(options.source), earlier)
    recipe = planned.recipe
    recipe.check_metric((*TranslationObjective.metric_names, *_metric_names(recipe), "score"))
    recipe.model_config()
    for name in recipe.tasks:
        check_answers(name, start.vocabulary, recipe.max_answer_tokens)
    run = dataclasses.replace(planned, vocabulary=start.vocabulary).continued()
    cleaning = CleaningConfig(max_length=None, max_tokens=max(recipe.max_source, recipe.max_target))
    training_sets, validation_sets = (
        [TextPairs.read(recipe, name, split, options.tfds) for name in recipe.tasks]
        for split in ("train", "validation")
    )
    sizes = [len(examples.pairs) for examples in training_sets]
    task_indices = np.repeat(np.arange(len(sizes)), sizes)  # (N,)

    def make_draw(pair_indices: np.ndarray) -> Draw:
        counts = np.bincount(task_indices[pair_indices], minlength=len(sizes))
        if not counts.all():
            name = recipe.tasks[int(counts.argmin())]
            raise UserError(
                f"all training examples of {name} have an empty input or output: leave {name} out"
            )
        rates = zip(recipe.tasks, counts, recipe.mixing.rates(counts), strict=True)
        listing = ", ".join(f"{name} {rate:.3f} ({count:,} pairs)" for name, count, rate in rates)
        print(f"sampling rates of the tasks: {listing}", flush=True)
        return recipe.mixing.make_draw(task_indices[pair_indices])

    data, validation_data = (
        TranslationData.from_pairs(
            [pair for examples in sets for pair in examples.pairs],
            run.text_vocabulary,
            cleaning=cleaning,
            batching=recipe.batching,
            make_draw=draw_of_sets,
        )
        for sets, draw_of_sets in (
            (training_sets, make_draw if len(sizes) > 1 else None),
            (validation_sets, None),
        )
    )
    print(f"{recipe.task}: {data.summary()}", flush=True)
    warn_truncated(data.tokens.source.lengths, recipe.max_source, "max_source")
    warn_truncated(data.tokens.target.lengths, recipe.max_target, "max_target")
    scored_sets = [examples.first(recipe.validation_examples) for examples in validation_sets]

    def score(answers: Sequence[str]) -> dict[str, float]:
        remaining, metrics = iter(answers), {}
        for examples in scored_sets:
            scores = examples.score([*itertools.islice(remaining, len(examples.pairs))])
            for name, value in scores.items():
                metrics[_metric_name(name, examples.task, recipe)] = value
        means = [metrics[_metric_name("score", name, recipe)] for name in recipe.tasks]
        return {**metrics, "score": sum(means) / len(means)}

    result = train_pairs(
        run,
        data,
        validation_data,
        [pair for examples in scored_sets for pair in examples.pairs],
        score,
        "source: {}\ntarget: {}\nanswer: {}",
        options.devices,
        initialize=start.copy_to,
        note=f", from {recipe.init}",
        callbacks=options.callbacks,
    )
    next_commands = ("{me} evaluate {run}{data}", "{me} predict {run} --input FILE")
    report(result, recipe, options, *next_commands)


def run_settings(options: argparse.Namespace) -> None:
    """Runs the command `settings TASK [WORD ...]`: prints the settings of the task recipe."""
    start = read_start(options.init, ["writer"], trust_code=options.trust_code)
    recipe = recipe_for(options.task, start.source, start.given, options.source)
    recipe = override(recipe.with_source(options.source), options.set)
    registry.print_settings(recipe, options.words)


def _metric_names(recipe: TextRecipe) -> list[str]:
    names = []
    for name in recipe.tasks:
        task = None if name in PREFIXES else get_task(name)
        metrics = (*task.metrics, *task.more_metrics) if task else _SCORES[name]
        names += [_metric_name(metric, name, recipe) for metric in (*metrics, "score")]
    return names


def _metric_name(metric: str, task: str, recipe: TextRecipe) -> str:
    """Returns the name under which validation reports a metric of a task.

    In a run of several tasks, the prefix is the name of the task, as in "sst2_accuracy". In a run
    of one task, the prefix is "task_": "task_accuracy" is the accuracy of answers, and "accuracy"
    is the accuracy of tokens. The metric "score" and the metrics of summarization and translation
    have no prefix in a run of one task.
    """
    if len(recipe.tasks) > 1:
        return f"{task}_{metric}"
    return metric if task in PREFIXES or metric == "score" else f"task_{metric}"
