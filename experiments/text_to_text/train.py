"""The commands `train`, which fine-tunes T5 or BART, and `settings`, which prints a recipe."""

import argparse
import itertools
from collections.abc import Sequence

import numpy as np

from experiments import registry
from experiments.recipe import override, refuse_unread
from experiments.text_to_text.evaluate import TextPairs, check_answers
from experiments.text_to_text.run import TextRecipe, TextRun, recipe_for
from experiments.train_run import report, train_pairs, warn_full
from macaron_tf.data.batches import Draw
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.text_tasks import PREFIXES
from macaron_tf.data.translation import CleaningConfig, TranslationData
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.loading import load
from macaron_tf.objectives import TranslationObjective
from macaron_tf.starts import Start, start_of

_SCORES = {"summarization": ("rouge1", "rouge2", "rougeL"), "translation": ("bleu", "chrf")}


def read_init(given: str) -> Start:
    """Loads the pre-trained T5 or BART that `--init` names.

    Args:
        given: value of `--init`, which is a pre-training run or `hugging-face:DIR`.
    """
    return start_of(given, load(given), ["writer"])


def run(options: argparse.Namespace) -> None:
    """Runs the command `train`: trains or resumes a run, and prints the next commands."""
    path = as_path(options.run)
    if options.resume:
        recipe = TextRun.open(path).recipe
        start = read_init(recipe.init)
    else:
        start = read_init(options.init)
        recipe = recipe_for(options.task, start.source, start.given, options.source)
    recipe = override(recipe.reading(options.source), options.set, TextRun.begun(path))
    refuse_unread(recipe, options.set)
    recipe.check_metric((*TranslationObjective.metric_names, *_metrics(recipe), "score"))
    run = TextRun(path, recipe, start.vocabulary, data_dir=options.data_dir)
    recipe.model_config()
    for name in recipe.tasks:
        check_answers(name, start.vocabulary, recipe.answer_room)
    TextRun.resume(path, recipe)  # checks the recipe before the data are read
    cleaning = CleaningConfig(max_length=None, max_tokens=max(recipe.max_source, recipe.max_target))
    learnt, held_out = (
        [TextPairs.read(recipe, name, split, options.tfds) for name in recipe.tasks]
        for split in ("train", "validation")
    )
    tasks = np.repeat(np.arange(len(learnt)), [len(one.pairs) for one in learnt])  # (N,)

    def draws(numbers: np.ndarray) -> Draw:
        counts = np.bincount(tasks[numbers], minlength=len(learnt))
        if not counts.all():
            name = recipe.tasks[int(counts.argmin())]
            raise UserError(
                f"all examples of {name} are longer than max_source or max_target: raise "
                "max_source or max_target"
            )
        shares = zip(recipe.tasks, counts, recipe.mixing.rates(counts), strict=True)
        told = ", ".join(f"{name} {rate:.3f} ({count:,} pairs)" for name, count, rate in shares)
        print(f"sampling rates of the tasks: {told}", flush=True)
        return recipe.mixing.draws(tasks[numbers])

    data, judged = (
        TranslationData.from_pairs(
            [pair for one in several for pair in one.pairs],
            run.texts,
            cleaning=cleaning,
            batching=recipe.batching,
            draws=mixed,
        )
        for several, mixed in ((learnt, draws if len(learnt) > 1 else None), (held_out, None))
    )
    print(f"{recipe.task}: {data.summary()}", flush=True)
    warn_full(data.tokens.source.lengths, recipe.max_source, "max_source")
    warn_full(data.tokens.target.lengths, recipe.max_target, "max_target")
    answered = [one.first(recipe.validation_examples) for one in held_out]

    def score(answers: Sequence[str]) -> dict[str, float]:
        rest, found = iter(answers), {}
        for one in answered:
            scores = one.score([*itertools.islice(rest, len(one.pairs))])
            found |= {_named(name, one.task, recipe): value for name, value in scores.items()}
        means = [found[_named("score", name, recipe)] for name in recipe.tasks]
        return {**found, "score": sum(means) / len(means)}

    result = train_pairs(
        run,
        data,
        judged,
        [pair for one in answered for pair in one.pairs],
        score,
        "source: {}\ntarget: {}\nanswer: {}",
        options.devices,
        initialize=start.copy_to,
        note=f", from {recipe.init}",
        callbacks=options.callbacks,
    )
    steps = ("{me} evaluate {run}{data}", "{me} predict {run} --input FILE")
    report(result, recipe, options, *steps)


def run_settings(options: argparse.Namespace) -> None:
    """Runs the command `settings TASK [WORD ...]`: prints the settings of the task recipe."""
    start = read_init(options.init)
    recipe = recipe_for(options.task, start.source, start.given, options.source)
    registry.print_settings(override(recipe.reading(options.source), options.set), options.words)


def _metrics(recipe: TextRecipe) -> list[str]:
    """Returns the names of the validation metrics."""
    names = []
    for name in recipe.tasks:
        task = None if name in PREFIXES else get_task(name)
        own = (*task.metrics, *task.more_metrics) if task else _SCORES[name]
        names += [_named(metric, name, recipe) for metric in (*own, "score")]
    return names


def _named(metric: str, task: str, recipe: TextRecipe) -> str:
    """Returns the name under which validation reports a metric of a task.

    In a run of several tasks, the prefix is the name of the task, as in "sst2_accuracy". In a run
    of one task, the prefix is "task_": "task_accuracy" is the accuracy of answers, and "accuracy"
    is the accuracy of tokens. The metric "score" and the metrics of summarization and translation
    have no prefix in a run of one task.
    """
    if len(recipe.tasks) > 1:
        return f"{task}_{metric}"
    return metric if task in PREFIXES or metric == "score" else f"task_{metric}"
