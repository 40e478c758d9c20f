"""`text_to_text train`: from a pre-trained encoder-decoder to one that answers in words."""

import argparse
import dataclasses

import tensorflow as tf
from etils import epath

from experiments.pretrain.recipe import CORRUPTING
from experiments.recipe import override
from experiments.text_to_text.evaluate import TextPairs, check_answers, metric_names
from experiments.text_to_text.recipe import PREFIXES, TextRecipe, recipe_for
from experiments.text_to_text.run import TextRun
from experiments.train_run import RunData, report, train_run
from macaron_tf.data.translation import CleaningConfig, TranslationData
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.models import EncoderDecoder
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.objectives import TranslationObjective
from macaron_tf.pretrained import load
from macaron_tf.special_ids import BOS
from macaron_tf.training import FitModel, TrainingResult

_SAMPLES = 5


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    start = read_start(options.init)
    recipe = override(recipe_for(options.task, start, options.init, options.source), options.set)
    path = as_path(options.run)
    result = train_recipe(recipe, path, start, options.data_dir, options.download, options.devices)
    where = f" --data-dir {options.data_dir}" if options.data_dir else ""
    steps = [
        f"{recipe.command} evaluate {path}{where}",
        f"{recipe.command} predict {path} --input FILE",
    ]
    report(result, recipe, steps)


def read_start(given: str) -> Pretrained:
    """Reads `--init`: the folder of a pre-training run of T5 or BART, or `hugging-face:DIR`.

    Raises:
        UserError: nothing is there, or it is no encoder-decoder that can be fine-tuned.
    """
    found = load(given)
    if found.objective not in CORRUPTING:
        raise UserError(
            f"--init {given} has learnt {found.objective!r} and is no encoder-decoder: give a run "
            f"of {' or '.join(CORRUPTING)}, or a T5 or BART"
        )
    if found.vocabulary is None:
        raise UserError(f"--init {given} has no tokenizer beside it: put its files there")
    return found


def train_recipe(
    recipe: TextRecipe,
    path: epath.Path,
    start: Pretrained,
    data_dir: str | None,
    download: bool,
    strategy: tf.distribute.Strategy,
) -> TrainingResult:
    """Fine-tunes in a run's folder; the run found there is continued.

    Raises:
        UserError: bad input, or a run of other data or settings in `path`.
    """
    recipe.check_metric(metric_names(recipe.task))
    run = TextRun(path, recipe, start.vocabulary)
    recipe.model_config()
    check_answers(recipe.task, start.vocabulary)
    TextRun.resume(path, recipe)  # refused before the data are read
    cleaning = CleaningConfig(max_length=None, max_tokens=max(recipe.max_source, recipe.max_target))
    train_pairs, held_out = (
        TextPairs.read(recipe, split, data_dir, download) for split in ("train", "validation")
    )
    data, validation = (
        TranslationData.from_pairs(
            pairs.pairs, run.texts, cleaning=cleaning, batching=recipe.batching
        )
        for pairs in (train_pairs, held_out)
    )
    print(f"{recipe.task}: {data.summary()}", flush=True)
    objective = TranslationObjective(
        recipe.label_smoothing, skip_padding=not is_tpu(strategy), first=[*recipe.before, BOS][0]
    )
    return train_run(
        run,
        RunData(
            lambda step: data.dataset(recipe.training.seed, step),
            data.fingerprint(),
            {"pairs": len(data)},
        ),
        objective,
        lambda network: TextValidation(run, network, held_out, validation),
        strategy,
        lambda network: network.set_weights(start.network.get_weights()),
        note=f", from {recipe.init}",
    )


class TextValidation:
    """Loss of held-out targets, the task's metrics of greedy answers, and some of them.

    Args:
        pairs: held out.
        data: the same, as batches.
    """

    def __init__(
        self, run: TextRun, network: EncoderDecoder, pairs: TextPairs, data: TranslationData
    ):
        self.data, self.pairs = data, pairs.first(run.recipe.validation_examples)
        greedy = dataclasses.replace(run.recipe.decoding, beam_size=1, n_best=1)
        self.writer = run.writer(network, greedy)

    def __call__(self, model: FitModel, step: int) -> dict:
        """The metrics by name, and `samples`."""
        metrics = model.evaluate(self.data.evaluation_dataset(), verbose=0, return_dict=True)
        answers = self.writer.translate([source for source, _ in self.pairs.pairs]).best
        scores = self.pairs.score(answers)
        shown = zip(self.pairs.pairs[:_SAMPLES], answers, strict=False)
        return {
            **{name: metrics[name] for name in ("loss", "nll", "perplexity", "accuracy")},
            **{_named(name, self.pairs.task): value for name, value in scores.items()},
            "samples": [
                f"source: {source}\ntarget: {target}\nanswer: {answer}"
                for (source, target), answer in shown
            ],
        }


def _named(metric: str, task: str) -> str:
    """A task's own accuracy is not that of its tokens."""
    return metric if task in PREFIXES or metric == "score" else f"task_{metric}"
