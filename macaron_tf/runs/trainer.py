"""Training of a run: `Trainer`, and what several kinds of runs share."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.data.translation import TranslationData
from macaron_tf.distribution import Workers, is_tpu
from macaron_tf.errors import UserError, out_of_memory, warn
from macaron_tf.io.paths import as_path
from macaron_tf.io.progress import track
from macaron_tf.models import catalog
from macaron_tf.models.config import StackConfig
from macaron_tf.models.stack import check_causal
from macaron_tf.objectives import TranslationObjective
from macaron_tf.runs.recipe import Recipe, override, warn_unread
from macaron_tf.runs.run import DIVERGED, FLAGS, Inputs, Plan, Run, refuse_flags, write_json
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import Diverged, TrainedModel, TrainingResult, build_fit_model, train
from macaron_tf.training.checkpoints import CheckpointDirectory
from macaron_tf.training.flops import update_cost

if TYPE_CHECKING:
    from macaron_tf.decoding import LineTranslator

_SAMPLES = 5  # number of generated texts that each validation prints


def needs_static_shapes(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether tensor shapes must not depend on values, as on JAX and on TPUs."""
    return keras.backend.backend() == "jax" or is_tpu(strategy)


class Trainer:
    """Trains a run of a recipe in a folder, or resumes it, as the command `train` does.

    The run is planned once, by the constructor. Its settings are those of the recipe, then those of
    the pre-trained model, then those of `settings`.

    Args:
        recipe: recipe; `None` means that of the run in the folder, which is resumed.
        settings: strings of the form `path=value`; see `override`.
        start: pre-trained model; `None` means that the recipe reads the model of its `init`.

    Example:
        Trainer(bert_tiny(), "runs/bert", ["data.sources=text:*.txt"]).run()
    """

    def __init__(
        self,
        recipe: Recipe | None,
        folder: str | os.PathLike,
        settings: Sequence[str] = (),
        inputs: Inputs | None = None,
        start: Any = None,
    ):
        path, inputs, earlier = as_path(folder), inputs or Inputs(), None
        if recipe is None:
            earlier = Run.existing(path, inputs.trust_code) or Run.open(path)
            recipe = earlier.recipe
        else:
            first = [text for text in settings if text.partition("=")[0] in recipe.start_settings]
            recipe = override(recipe, first)
        kind = f"a recipe of kind {recipe.kind}"
        refuse_flags(inputs, FLAGS, recipe.training_flags, kind)
        if keras.backend.backend() == "jax" and not recipe.trains_on_jax:
            raise UserError(f"--engine jax does not train {kind}: leave it out")
        start = start or recipe.read_start(inputs, earlier)
        if not earlier:
            # The start may have put `init_parts` in order.
            recipe = recipe.started(start) if start else recipe
            given = {*recipe.start_settings} - {"model"}
            settings = [text for text in settings if text.partition("=")[0] not in given]

        options = (path, inputs.trust_code, recipe.kind)
        read_run = functools.cache(lambda: earlier or Run.existing(*options))
        recipe = override(recipe, settings, lambda: saved.recipe if (saved := read_run()) else None)
        earlier = read_run()
        run = Run(
            path,
            recipe,
            earlier.vocabulary if earlier else None,
            data_dir=inputs.tfds and inputs.tfds.data_dir,
            earlier=earlier,
            settings=settings,
        )
        if earlier:  # checks before the data are read
            unknown = recipe.from_data
            recipe.check_continues(earlier.recipe, path, recipe.may_change, unknown)
        if recipe.names_code and isinstance(config := recipe.model_config(), StackConfig):
            check_causal(config)
        self.inputs, self.plan = inputs, recipe.plan(run, start, inputs)

    def run(self, callbacks: Sequence[keras.callbacks.Callback] = ()) -> TrainingResult:
        """Trains with the current Keras backend.

        The results of a resumed run are bit-identical to the results of an uninterrupted run. The
        folder is created only after all checks of the input. If a new run fails before its first
        checkpoint, and has no metrics or runs out of memory, the folder is removed. After
        divergence, the folder is kept.

        Args:
            callbacks: Keras callbacks; see `train`.

        Raises:
            Diverged: too many consecutive updates were skipped, for example because of a NaN or
                infinite loss or gradient.
            Interrupted: a signal stopped training. A checkpoint was saved, unless the run has made
                no update.
        """
        plan, run, strategy = self.plan, self.plan.run, self.inputs.devices
        is_new, recipe, earlier = not run.path.exists(), run.recipe, run.earlier
        if earlier:
            recipe.check_continues(earlier.recipe, run.path, recipe.may_change)
        if changed := run.changed_code() if earlier else []:
            warn(f"{', '.join(changed)} changed after {run.path} began, and is used as it is now")
        vocabulary_hash = run.vocabulary.hash if run.vocabulary else ""
        if earlier and vocabulary_hash:
            check_vocabulary(earlier.vocabulary.hash, vocabulary_hash, run.path)
        if earlier and plan.fingerprint:
            earlier.check_data(plan.fingerprint)
        # This seed determines the initial weights, dropout, masks and the order of batches.
        keras.utils.set_random_seed(recipe.training.seed)
        with Workers(strategy).watched(), strategy.scope():
            network = run.build_network(config=plan.config)
            warn_unread(recipe, network, run.settings)
            is_unsaved = CheckpointDirectory(run.path).latest() is None
            if is_unsaved and (names := plan.initialize(network)):
                found = "parts that start from random weights, because the model has none"
                print(f"{found}: {', '.join(names)}", flush=True)
            recipe.adapt(network)
            validate = plan.validation(network)
            stage = plan.first_stage(network)
            objective = plan.objective or recipe.make_objective(needs_static_shapes(strategy))
            model = build_fit_model(network, objective, recipe.training, first_stage=stage)
        model.per_worker_data = plan.per_worker
        model.memory = recipe.memory(network)
        model.evaluation_memory = recipe.memory(network, "evaluation")
        model.cost = update_cost(model, recipe.make_objective(static_shapes=True), plan.batches(0))
        size = f"{network.count_params():,} parameters"
        name = catalog.sized_name(recipe.model, dict(recipe.model_options))
        print(f"model {name}: {size}{plan.note}", flush=True)
        holds_lock = False  # becomes True when this process holds the folder's lock

        def on_start() -> None:
            nonlocal holds_lock
            holds_lock = True
            (run.path / DIVERGED).unlink(missing_ok=True)
            run.write(network, plan.fingerprint, **plan.counts)

        try:
            result = train(
                model,
                plan.batches,
                run.path,
                validate=validate,
                vocabulary_hash=vocabulary_hash,
                callbacks=callbacks,
                on_start=on_start,
            )
        except Exception as error:
            if holds_lock and isinstance(error, Diverged):
                write_json(run.path / DIVERGED, {"reason": str(error)})
            metrics = run.path / "metrics.jsonl"
            has_metrics = metrics.exists() and metrics.read_bytes()
            is_useless = out_of_memory(error) or not (has_metrics or isinstance(error, Diverged))
            is_own = is_new and holds_lock and run.path.exists()
            if is_own and is_useless and not CheckpointDirectory(run.path).steps():
                as_path(run.path).rmtree()  # frees the folder for a run with other settings
            raise
        self.best, self.next = plan.ended() or (plan.best, plan.next)
        return result


def plan_of_pairs(
    run: Run,
    data: TranslationData,
    validation_data: TranslationData,
    validation_pairs: Sequence[tuple[str, str]],
    score: Callable[[Sequence[str]], dict[str, float]],
    sample: str,
    **options,
) -> Plan:
    """Plans the training of an encoder-decoder on pairs of texts.

    Each validation computes the loss of held-out pairs, generates texts by greedy decoding, and
    scores these texts. Greedy decoding is much faster than beam search, and is accurate enough to
    select a checkpoint.

    Args:
        run: run whose recipe has the section `task.decoding`, and whose task translates lines.
        validation_data: held-out pairs whose loss is computed.
        validation_pairs: pairs of texts; the model generates a text for each source.
        score: function from the generated texts to a dict of metrics.
        sample: format string for a printed example, whose three fields are the source, target and
            generated text.
        options: further fields of the plan. By default, the batches are those of `data`.
    """
    recipe = run.recipe
    metric, seed = recipe.training.best_metric, recipe.training.seed
    perfect_scores = score([target for _, target in validation_pairs])
    recipe.check_metric((*TranslationObjective.metric_names, *perfect_scores))
    if perfect_scores.get(metric) == 0:
        found = "is 0 even if the model's output equals the references"
        advice = "set training.best_metric=loss, or for BLEU metric.tokenize=char"
        raise UserError(f"training.best_metric={metric} {found}: {advice}")

    def validation(network: keras.Model):
        greedy = dataclasses.replace(recipe.task.decoding, beam_size=1, n_best=1)
        translator = recipe.task_settings().lines(network, run.vocabulary, greedy)

        def validate(model: TrainedModel, step: int) -> dict:
            losses = evaluate_model(model, validation_data.evaluation_dataset())
            outputs = translator.translate([source for source, _ in validation_pairs]).best
            shown = list(zip(validation_pairs, outputs, strict=True))[:_SAMPLES]
            samples = [sample.format(*pair, output) for pair, output in shown]
            return {**losses, **score(outputs), "samples": samples}

        return validate

    fields = {"fingerprint": data.fingerprint(), "counts": {"pairs": len(data)}}
    fields |= {"batches": lambda step: data.dataset(seed, step)} | options
    return Plan(run=run, validation=validation, **fields)


def generated(translator: "LineTranslator", sources: Sequence[str], verb: str) -> list[str]:
    """Generates a text for each source text, and shows the progress after `verb`."""
    chunks = ((len(chunk.hypotheses), chunk) for chunk in translator.stream(sources))
    return [text for chunk in track(chunks, len(sources), verb, "lines") for text in chunk.best]


def evaluate_model(model: TrainedModel, dataset: tf.data.Dataset) -> dict[str, float]:
    """Evaluates a model on a dataset, and returns the metrics that the objective defines."""
    metrics = model.evaluate(dataset, verbose=0, return_dict=True)
    return {name: metrics[name] for name in model.objective.metric_names}


def warn_truncated(lengths: np.ndarray, max_length: int, setting: str) -> None:
    """Warns on stderr if texts have the maximum length, because these texts may be truncated.

    Args:
        lengths: number of tokens in each text, `(N,)`.
        setting: name of the setting with the maximum, for the message.
    """
    if count := int((lengths >= max_length).sum()):
        warn(
            f"{count:,} of {len(lengths):,} texts have {max_length} tokens or were "
            f"truncated to {max_length} tokens: raise {setting} to keep more"
        )
