"""Training on probes: the command `probe`, and the trainer that compares arms on all probes."""

import argparse
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from experiments import registry, studies
from experiments.compare.arms import Arm
from experiments.compare.probes import KEPT, LENGTHS, PROBES, Probe
from experiments.compare.trainers import Level, Trainer
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.code_files import code_digests
from macaron_tf.models.base import encoder_inputs
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.objectives import CausalLanguageObjective
from macaron_tf.objectives.base import Batch, Sums
from macaron_tf.runs.pretraining import PretrainingRecipe
from macaron_tf.runs.recipe import recipe_from_json, warn_unread
from macaron_tf.runs.run import DIVERGED, write_json
from macaron_tf.runs.trainer import evaluate_model
from macaron_tf.runs.versions import versions
from macaron_tf.training import Diverged, TrainedModel, build_fit_model, train
from macaron_tf.training.flops import update_cost

_EVALUATED_ROWS = 512  # held-out rows of each length, the same for all seeds


@dataclasses.dataclass(frozen=True)
class ProbeObjective(CausalLanguageObjective):
    """Cross-entropy of the `labels (B, L)` of a probe, 0 where nothing is predicted."""

    metric_names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    name: str = "probe"

    def __call__(self, network: LanguageModel, batch: Batch, training: bool) -> Sums:
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        return self.sums(network, hidden, batch["labels"], batch["token_ids"], training)


class Summarizer(LanguageModel):
    """Language model that predicts the labels of the last positions from the last hidden state.

    A matrix for each of the last eight positions maps the hidden state of the last position to the
    state from which the label is predicted. As in MAD's compression task, one vector must tell all
    that was read.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.expand = keras.layers.Dense(KEPT * config.hidden_dim, name="expand")

    def build(self, input_shape=None):
        super().build(input_shape)
        self.expand.build((None, self.config.hidden_dim))

    def hidden_states(self, inputs, training=None):
        hidden = super().hidden_states(inputs, training=training)  # (B, L, D)
        x = self.expand(hidden[:, -1])  # (B, D) -> (B, 8 D)
        x = ops.reshape(x, (-1, KEPT, self.config.hidden_dim))  # (B, 8, D)
        return ops.concatenate([hidden[:, :-KEPT], x], axis=1)


def make_network(recipe: PretrainingRecipe, probe: Probe) -> LanguageModel:
    """Makes, but does not build, the model of a recipe with the vocabulary of a probe."""
    config = recipe.model_config(probe.vocab_size)
    if config.longest is not None:  # weights for each position
        config = dataclasses.replace(config, max_length=max(LENGTHS) * probe.length)
    network_class = Summarizer if probe.summarizes else LanguageModel
    return network_class(config, dtype=recipe.training.dtype_policy)


def _rows(probe: Probe, key: Sequence[int], rows: int, length: int) -> dict[str, np.ndarray]:
    ids, labels = probe.draw(np.random.default_rng(key), rows, length)
    return {"token_ids": ids.astype(np.int32), "labels": labels.astype(np.int32)}


def _batches(probe: Probe, recipe: PretrainingRecipe, start: int) -> tf.data.Dataset:
    """Returns endless training batches, which the seed and the number of a batch determine."""
    size, seed = recipe.data.batch_size, recipe.training.seed

    def draw() -> Iterator[dict[str, np.ndarray]]:
        for step in itertools.count(start):
            yield _rows(probe, [1, seed, step], size, probe.length)

    spec = tf.TensorSpec((size, probe.length), tf.int32)
    dataset = tf.data.Dataset.from_generator(
        draw, output_signature={"token_ids": spec, "labels": spec}
    )
    return dataset.prefetch(2)


def run(options: argparse.Namespace) -> None:
    """Runs the command `probe`: trains a recipe's model on a probe, and prints its accuracies."""
    name, path = options.probe, storage.as_path(options.run)
    if name not in PROBES:
        raise UserError(f"no probe is called {name!r}: give one of {', '.join(PROBES)}")
    recipe, probe = registry.load(options.recipe, PretrainingRecipe, options.set), PROBES[name]
    if (path / "recipe.json").exists():
        earlier = recipe_from_json((path / "recipe.json").read_text(), str(path / "recipe.json"))
        recipe.check_continues(earlier, path, ())
        if (found := storage.read_json(path / "model.json", probe=str)["probe"]) != name:
            raise UserError(f"{path} has a run on the probe {found}: choose another folder")
    keras.utils.set_random_seed(recipe.training.seed)
    network = make_network(recipe, probe)
    network.build()
    warn_unread(recipe, network, options.set)
    objective = ProbeObjective(skip_padding=False)
    batches = functools.partial(_batches, probe, recipe)
    model = build_fit_model(network, objective, recipe.training)
    model.cost = update_cost(model, objective, batches(0))
    held_out = {
        factor: tf.data.Dataset.from_tensor_slices(
            _rows(probe, [0, factor], _EVALUATED_ROWS, factor * probe.length)
        ).batch(recipe.data.batch_size)
        for factor in LENGTHS
    }

    def validate(model: TrainedModel, step: int) -> dict[str, float]:
        metrics = evaluate_model(model, held_out[1])
        if step == recipe.training.max_steps:
            longer = ((factor, evaluate_model(model, held_out[factor])) for factor in LENGTHS[1:])
            metrics |= {f"accuracy_x{factor}": found["accuracy"] for factor, found in longer}
        return metrics

    def on_start() -> None:
        code = code_digests(dataclasses.asdict(recipe))
        record = {"probe": name, "parameters": network.count_params(), "code": code}
        write_json(path / "model.json", {**record, "versions": versions()})
        storage.write_atomic(path / "recipe.json", recipe.to_json().encode())

    try:
        train(model, batches, path, validate, on_start=on_start)
    except Diverged as error:
        write_json(path / DIVERGED, {"reason": str(error)})
        raise
    metrics = studies.validations(options.run)[-1]
    cells = [f"{metrics['accuracy']:.1%} at length {probe.length}"]
    cells += [f"{metrics[f'accuracy_x{f}']:.1%} at {f * probe.length}" for f in LENGTHS[1:]]
    print(f"{name}: {', '.join(cells)}; by guessing {1 / probe.answers:.1%}")


class Probes(Trainer):
    """Causal language models on probes, compared by their accuracy at the training length."""

    kind = "pretraining"
    data = ()
    score, sign, margin = "accuracy", 1, 0.02
    columns: ClassVar = {
        "accuracy": ("accuracy %", 1, 100.0),
        **{f"accuracy_x{factor}": (f"{factor} L %", 1, 100.0) for factor in LENGTHS[1:]},
    }
    curves: ClassVar = {"accuracy": "accuracy"}
    score_curve = "accuracy"

    def recipe(self, arm: Arm, seed: int | None = None) -> PretrainingRecipe:
        recipe = super().recipe(arm, seed)
        if not recipe.objective.causal:
            raise UserError(f"{arm.name}: --probes needs a causal language model, as gpt_probe")
        return recipe

    def network(self, arm: Arm, recipe: PretrainingRecipe) -> LanguageModel:
        return make_network(recipe, PROBES[arm.task])

    def fit(
        self, arm: Arm, settings: Sequence[str], run: pathlib.Path, log: pathlib.Path | None
    ) -> None:
        sets = studies.flags("--set", *settings)
        studies.command("probe", arm.recipe, arm.task, str(run), *sets, log=log)

    def scores(self, arm: Arm, run: pathlib.Path, log: pathlib.Path | None) -> dict[str, Any]:
        super().scores(arm, run, log)
        return studies.validations(run)[-1]

    def parameters(self, run: str) -> int:
        return storage.read_json(storage.as_path(run) / "model.json", parameters=int)["parameters"]

    def chance_level(self, rows: list[dict]) -> Level:
        return 1 / PROBES[rows[0]["task"]].answers, "guessing"

    def validation_size(self, rows: list[dict]) -> str:
        return f"{_EVALUATED_ROWS:,} rows of each probe"
