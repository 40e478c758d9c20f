"""`text_to_text train`: from a pre-trained encoder-decoder to one that answers in words."""

import argparse
import dataclasses

import keras
import tensorflow as tf
from etils import epath

from experiments.recipe import MAY_CHANGE, check_same, override
from experiments.text_to_text.data import TextPairs, check_answers, metric_names
from experiments.text_to_text.recipe import PREFIXES, TextRecipe
from experiments.text_to_text.run import TextRun
from experiments.text_to_text.start import TextStart, read_start
from macaron_tf.data.tasks.definitions import TASKS
from macaron_tf.data.translation import CleaningConfig, TranslationData
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.models import EncoderDecoder
from macaron_tf.objectives import TranslationObjective
from macaron_tf.special_ids import BOS
from macaron_tf.training import (
    FitModel,
    TrainingConfig,
    TrainingResult,
    build_fit_model,
    train,
)

_MAY_CHANGE = (*MAY_CHANGE, "decoding.", "validation_examples")
_SAMPLES = 5
# The e-mails and their subjects that TensorFlow Datasets has.
_SUMMARIES = ("tfds:aeslc", ("email_body", "subject_line"))


def run(options: argparse.Namespace) -> None:
    """Trains, or goes on, and says what to do next."""
    start = read_start(options.init)
    recipe = override(recipe_for(options.task, start, options.init, options.source), options.set)
    path = as_path(options.run)
    result = train_recipe(recipe, path, start, options.data_dir, options.download, options.devices)
    print(f"stopped after step {result.step:,}: {result.reason}; {result.elapsed_seconds:.0f} s")
    if result.best_step is not None:
        name, score = recipe.training.best_metric, result.best_score
        print(f"best validation {name} {score:.4f} at step {result.best_step:,}")
    where = f" --data-dir {options.data_dir}" if options.data_dir else ""
    print(
        f"next: {recipe.command} evaluate {path}{where}\n"
        f"      {recipe.command} predict {path} --input FILE"
    )


def recipe_for(task: str, start: TextStart, init: str, source: str | None) -> TextRecipe:
    """The settings of a task from a start.

    T5's runs, which Adafactor made, are fine-tuned with it at a constant 0.001 (Raffel et al.
    2020, section 3.1.2); BART's with Adam at 3e-5 after a warm-up (the released recipe).

    Raises:
        UserError: there is no such task.
    """
    training = TrainingConfig(
        max_steps=2_000,
        optimizer="adafactor",
        learning_rate=1e-3,
        schedule="constant",
        warmup_steps=0,
        dtype_policy=start.dtype_policy,
        validate_every=250,
        best_metric="score",
    )
    if start.optimizer == "adam":
        training = dataclasses.replace(
            training,
            optimizer="adam",
            learning_rate=3e-5,
            schedule="linear",
            warmup_steps=200,
            beta_2=0.999,
            weight_decay=0.01,
            decay_vectors=False,
            clip_norm=0.1,
        )
    given, fields = "", ("source", "target")
    if task == "summarization":
        given, fields = _SUMMARIES
    elif task in TASKS:
        given = TASKS[task].source or ""
    smoothing = 0.1 if task in PREFIXES and start.objective == "denoising" else 0.0
    return TextRecipe(
        model=start.model,
        model_options=start.model_options,
        task=task,
        source=source or given,
        fields=fields,
        init=init,
        starts=start.starts,
        sentinel_rows=start.sentinel_rows,
        label_smoothing=smoothing,
        training=training,
    )


def train_recipe(
    recipe: TextRecipe,
    path: epath.Path,
    start: TextStart,
    data_dir: str | None = None,
    download: bool = False,
    strategy: tf.distribute.Strategy | None = None,
) -> TrainingResult:
    """Fine-tunes in a run's folder; the run found there is continued.

    Args:
        recipe: every setting.
        path: the run's folder.
        start: what weights and vocabulary are of.
        data_dir, download: as for `macaron_tf.data.read_pairs`.
        strategy: the devices; None = this moment's.

    Raises:
        UserError: bad input, or a run of other data or settings in `path`.
    """
    known = metric_names(recipe.task)
    if recipe.training.best_metric not in known:
        raise UserError(
            f"training.best_metric is {recipe.training.best_metric!r}: give one of "
            f"{', '.join(known)}"
        )
    run = TextRun(path, recipe, start.vocabulary)
    recipe.model_config()
    check_answers(recipe.task, start.vocabulary)
    if (path / "recipe.json").exists():
        opened = TextRun.open(path)
        check_same(opened.recipe, recipe, path, _MAY_CHANGE)
    else:
        opened = None
    cleaning = CleaningConfig(max_length=None, max_tokens=max(recipe.max_source, recipe.max_target))
    made = {"cleaning": cleaning, "batching": recipe.batching}
    train_pairs = TextPairs.read(recipe, "train", data_dir, download)
    held_out = TextPairs.read(recipe, "validation", data_dir, download)
    data = TranslationData.from_pairs(train_pairs.pairs, run.texts, **made)
    print(f"{recipe.task}: {data.summary()}", flush=True)
    if opened:
        opened.check_data(data.fingerprint())
    # Dropout and batches follow from the one seed.
    keras.utils.set_random_seed(recipe.training.seed)
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        network = run.build_network()
        if not opened:
            network.set_weights(start.weights())
        objective = TranslationObjective(
            recipe.label_smoothing,
            skip_padding=not is_tpu(strategy),
            first=[*recipe.before, BOS][0],
        )
        model = build_fit_model(network, objective, recipe.training)
        validation = TextValidation(
            run, network, held_out, TranslationData.from_pairs(held_out.pairs, run.texts, **made)
        )
    print(f"{recipe.model}: {network.count_params():,} parameters, from {recipe.init}", flush=True)
    return train(
        model,
        lambda step: data.dataset(recipe.training.seed, step),
        recipe.training,
        path,
        validate=validation,
        vocabulary_hash=run.vocabulary.hash,
        on_start=lambda: run.write(network, data.fingerprint(), pairs=len(data)),
    )


class TextValidation:
    """Loss of held-out targets, the task's metrics of greedy answers, and some of them.

    Args:
        run: the run.
        network: that is being trained.
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
        """The metrics by name and `samples`, as `train` asks of a validation."""
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
