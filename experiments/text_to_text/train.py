"""`text_to_text train`: from a pre-trained encoder-decoder to one that answers in words."""

import argparse
from collections.abc import Sequence

from experiments import registry
from experiments.pretrain.run import CORRUPTING
from experiments.recipe import override
from experiments.text_to_text.evaluate import TextPairs, check_answers
from experiments.text_to_text.run import PREFIXES, TextRun, recipe_for
from experiments.train_run import report, train_pairs
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.translation import CleaningConfig, TranslationData
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.objectives import TranslationObjective
from macaron_tf.pretrained import load

_SCORES = {"summarization": ("rouge1", "rouge2", "rougeL"), "translation": ("bleu", "chrf")}


def read_start(given: str) -> Pretrained:
    """Reads `--init`: the folder of a pre-training run of T5 or BART, or `hugging-face:DIR`."""
    found = load(given)
    if found.objective not in CORRUPTING:
        raise UserError(
            f"--init {given} has learnt {found.objective!r} and is no encoder-decoder: give a run "
            f"of {' or '.join(CORRUPTING)}, or a T5 or BART"
        )
    if found.vocabulary is None:
        raise UserError(f"--init {given} has no tokenizer beside it: put its files there")
    found.require_floats()
    return found


def run(options: argparse.Namespace) -> None:
    """Fine-tunes in a run's folder, or goes on there, and says what to do next."""
    path = as_path(options.run)
    if options.resume:
        recipe = TextRun.open(path).recipe
        recipe, start = (
            recipe.changed(source=options.source or recipe.source),
            read_start(recipe.init),
        )
    else:
        start = read_start(options.init)
        recipe = recipe_for(options.task, start, options.init, options.source)
    recipe = override(recipe, options.set, TextRun.begun(path))
    if (names := _SCORES.get(recipe.task)) is None:
        task = get_task(recipe.task)
        names = tuple(_named(name, task.name) for name in (*task.metrics, *task.more_metrics))
    recipe.check_metric((*TranslationObjective.metric_names, *names, "score"))
    run = TextRun(path, recipe, start.vocabulary, data_dir=options.data_dir)
    recipe.model_config()
    check_answers(recipe.task, start.vocabulary)
    TextRun.resume(path, recipe)  # refused before the data are read
    cleaning = CleaningConfig(max_length=None, max_tokens=max(recipe.max_source, recipe.max_target))
    learnt, held_out = (
        TextPairs.read(recipe, split, options.tfds) for split in ("train", "validation")
    )
    data, judged = (
        TranslationData.from_pairs(
            pairs.pairs, run.texts, cleaning=cleaning, batching=recipe.batching
        )
        for pairs in (learnt, held_out)
    )
    print(f"{recipe.task}: {data.summary()}", flush=True)
    answered = held_out.first(recipe.validation_examples)

    def score(answers: Sequence[str]) -> dict[str, float]:
        scores = answered.score(answers)
        return {_named(name, recipe.task): value for name, value in scores.items()}

    result = train_pairs(
        run,
        data,
        judged,
        answered.pairs,
        score,
        "source: {}\ntarget: {}\nanswer: {}",
        options.devices,
        initialize=lambda network: network.set_weights(start.network.get_weights()),
        note=f", from {recipe.init}",
    )
    steps = ("{me} evaluate {run}{data}", "{me} predict {run} --input FILE")
    report(result, recipe, options, *steps)


def run_settings(options: argparse.Namespace) -> None:
    """The command `settings TASK [WORD ...]`."""
    recipe = recipe_for(options.task, read_start(options.init), options.init, options.source)
    registry.print_settings(override(recipe, options.set), options.words)


def _named(metric: str, task: str) -> str:
    """A task's own accuracy is not that of its tokens."""
    return metric if task in PREFIXES or metric == "score" else f"task_{metric}"
