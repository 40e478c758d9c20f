"""Training of encoder-decoders on pairs of texts."""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from experiments.run import Run
from experiments.train_run import RunData, train_run
from macaron_tf.data.translation import TranslationData
from macaron_tf.distribution import is_tpu
from macaron_tf.objectives import TranslationObjective
from macaron_tf.special_ids import BOS
from macaron_tf.training import FitModel, TrainingResult

LOSSES = ("loss", "nll", "perplexity", "accuracy")
_SAMPLES = 5  # answers that a validation shows


def train_pairs(
    run: Run,
    data: TranslationData,
    judged: TranslationData,
    asked: Sequence[tuple[str, str]],
    score: Callable[[Sequence[str]], dict[str, float]],
    sample: str,
    strategy: tf.distribute.Strategy,
    first: int = BOS,
    **start,
) -> TrainingResult:
    """Trains a run, with a `writer` and a recipe's `decoding`, on pairs of texts.

    Args:
        judged: held-out text, whose loss a validation computes.
        asked: (source, target) lines that a validation answers, greedily: that takes a tenth of the
            time of a beam of 5 and is good enough to choose a checkpoint.
        score: metrics of the answers.
        sample: shows an answer, with places for source, target and answer.
        first: see `TranslationObjective`.
        start: `initialize` and `note` of `train_run`.
    """
    recipe = run.recipe

    def validation(network: keras.Model):
        greedy = dataclasses.replace(recipe.decoding, beam_size=1, n_best=1)
        writer = run.writer(network, greedy)

        def validate(model: FitModel, step: int) -> dict:
            metrics = model.evaluate(judged.evaluation_dataset(), verbose=0, return_dict=True)
            answers = writer.translate([source for source, _ in asked]).best
            shown = list(zip(asked, answers, strict=True))[:_SAMPLES]
            samples = [sample.format(*pair, answer) for pair, answer in shown]
            losses = {name: metrics[name] for name in LOSSES}
            return {**losses, **score(answers), "samples": samples}

        return validate

    rows = RunData(
        lambda step: data.dataset(recipe.training.seed, step),
        data.fingerprint(),
        {"pairs": len(data)},
    )
    skip = not is_tpu(strategy)
    objective = TranslationObjective(recipe.label_smoothing, skip_padding=skip, first=first)
    return train_run(run, rows, objective, validation, strategy, **start)
