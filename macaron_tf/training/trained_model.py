"""Base class of the TensorFlow and JAX training models."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from macaron_tf.distribution import spread_seeds
from macaron_tf.errors import UserError
from macaron_tf.io.progress import Progress
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.flops import UpdateCost
from macaron_tf.training.lora import low_rank_layers
from macaron_tf.training.optimizer import ExponentialMovingAverage
from macaron_tf.training.updates import (
    SKIPPED_IN_A_ROW,
    UPDATE_STATISTICS,
    UPDATES,
    Objective,
    Sums,
    metrics_from_sums,
)


class Diverged(UserError):
    """Error for too many consecutive skipped updates."""


class TrainedModel:
    """Base class of `FitModel` and `JaxModel`, which train a network on an objective.

    The loops of training and evaluation are here. A subclass divides the batches among the devices
    and computes on them. For the arguments, see `FitModel`.

    Attributes:
        step: number of updates so far, including skipped updates.
        window: `Sums` of the updates since the last training line of the log.
        names: dict mapping `"train"` or `"test"` to the names of the step's packed sums. Tracing a
            step sets the names.
        memory: variables that carry state from one training batch to the next, such as the memory
            of Transformer-XL. The first dimension of each variable is the batch size of one
            replica, or of all devices on JAX. Checkpoints contain these variables. Set the
            attribute before training.
        evaluation_memory: variables that carry state from one evaluation batch to the next.
            Checkpoints do not contain these variables.
        strategy: distribution strategy whose replicas share the batches. The JAX engine ignores
            the strategy.
        per_worker_data: whether each worker process provides its own training batches (see
            `distributed`). The JAX engine ignores it.
        ema: moving average of the weights; `None` means no average.
        cost: FLOPs of an update, which the log of `train` then contains; `None` if not counted.
        skipped_in_a_row: variable that counts consecutive skipped updates.
    """

    optimizer: keras.optimizers.Optimizer
    history: keras.callbacks.History
    stop_training: bool
    built = False  # whether `prepare` has run
    skipped_in_a_row: tf.Variable | keras.Variable

    def __init__(
        self, network: keras.Model, objective: Objective, config: TrainingConfig | None, **kwargs
    ):
        super().__init__(**kwargs)
        self.network = network
        self.objective = objective
        self.config = config or TrainingConfig()
        self.step = 0
        self.window = Sums()
        self.names: dict[str, tuple[str, ...]] = {}
        self.memory: Sequence[keras.Variable] = ()
        self.evaluation_memory: Sequence[keras.Variable] = ()
        self.strategy = tf.distribute.get_strategy()
        self.per_worker_data = False
        self.ema: ExponentialMovingAverage | None = None
        self.cost: UpdateCost | None = None
        self._epoch_sums = Sums()
        self._next_check = 0  # first step at which too many updates may have been skipped

    def batches(self, dataset: tf.data.Dataset, per_worker: bool = False) -> Iterator:
        """Returns an iterator over a dataset's batches, divided among the devices."""
        raise NotImplementedError

    def update(self, batches: Iterator, limit: int = 1) -> Any:
        """Makes up to `limit` updates in one call, each from the next micro-batches.

        Returns the values `(N, K + 5)` of N updates, see `Updates.apply`, or `None` without data.
        """
        raise NotImplementedError

    def test(self, batches: Iterator) -> Iterator:
        """Yields the objective's K sums on each batch and the batch count 1, `(K + 1,)`."""
        raise NotImplementedError

    def sums(self, batch, kind: str) -> tuple[Any, Any]:
        """Returns the objective's `loss_sum` on a batch, and its K sums as a float32 vector `(K,)`.

        `kind` is `"train"` or `"test"`. The names of the K sums become `names[kind]`.
        """
        batch = features(batch)
        # Keras forgets the losses of a call when `__call__` begins, which not all methods run.
        self.network._clear_losses()
        try:
            sums = self.objective(self.network, batch, kind == "train")
        except KeyError as error:
            raise UserError(f"batches have {', '.join(batch)}, not the feature {error}") from error
        if kind == "train" and (added := self.network.losses):
            sums = {**sums, "loss_sum": sums["loss_sum"] + sums["weight"] * sum(added)}
        self.names[kind] = tuple(sorted(sums))
        packed = ops.stack([ops.cast(sums[name], "float32") for name in self.names[kind]])
        return sums["loss_sum"], packed

    def scale(self, sums, norm) -> tuple[Any, Any, Any]:
        """Returns the factor from summed to clipped mean gradients, their norm, and their health.

        `sums (K,)` are those of an update, and `norm` is that of its summed gradients. The norm of
        the mean is that before clipping. An update is healthy if all numbers are finite and
        `weight` is above 0.
        """
        weight = sums[self.names["train"].index("weight")]
        factor = ops.where(weight > 0, 1.0 / weight, 0.0)
        norm = norm * factor
        healthy = ops.isfinite(norm) & ops.all(ops.isfinite(sums)) & (weight > 0)
        if (max_norm := self.config.clip_norm) is not None:
            factor *= max_norm / ops.maximum(norm, max_norm)
        return factor, norm, healthy

    def prepare(self) -> None:
        """Creates the missing variables of the optimizer and of the moving average."""
        if not self.network.built:
            raise ValueError("the network is not built: call the network once on a batch")
        if isinstance(self.objective, keras.layers.Layer) and self.objective.trainable_variables:
            raise ValueError("the objective has trainable weights: move the weights to the network")
        weights = self.network.trainable_variables
        if not self.built:
            self.built = True
            spread_seeds(self.strategy, self.seed_states)
        with self.strategy.scope():
            if not self.optimizer.built:
                self.optimizer.build(weights)
            if self.config.ema_decay is not None and self.ema is None:
                self.ema = ExponentialMovingAverage(weights, self.config.ema_decay)

    @property
    def seed_states(self) -> list[keras.Variable]:
        """State variables of the network's random number generators, in order."""
        weights = {id(weight) for weight in self.network.weights}
        return [v for v in self.network.variables if id(v) not in weights]

    def state_variables(self) -> dict[str, keras.Variable]:
        """Returns the variables that a checkpoint contains besides weights and memory.

        The keys are numbered, such as `optimizer/00003`, because Keras's variable names depend on
        the layers that were built earlier in the process.
        """
        parts: dict[str, Sequence[keras.Variable]] = {
            "optimizer": self.optimizer.variables,
            "random": self.seed_states,
            "average": self.ema.shadows if self.ema else (),
            # The matrices whose saved values include updates, and the updates' factors.
            "low_rank": [
                variable
                for layer in low_rank_layers(self.network)
                for variable in (layer._kernel, layer.lora_kernel_a, layer.lora_kernel_b)
            ],
        }
        numbered = {f"{name}/{i:05d}": v for name in parts for i, v in enumerate(parts[name])}
        return {**numbered, "skipped_in_a_row": self.skipped_in_a_row}

    def fit(
        self,
        x: tf.data.Dataset,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
        first_step: int = 0,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        validation_data: tf.data.Dataset | None = None,
        verbose: int | str = "auto",
        validate: Callable[[], Mapping[str, float]] | None = None,
        stops: Sequence[int] = (),
    ) -> keras.callbacks.History:
        """Trains on a dataset like `keras.Model.fit`, and returns the history of the metrics.

        Args:
            steps_per_epoch: number of updates per epoch, for which the data must suffice. `None`
                means that an epoch is one pass over the data.
            first_step: number of updates of the first epoch that an earlier session has made.
            validate: function that returns the metrics at the end of an epoch, in place of
                `validation_data`; {} means that there was no validation.
            stops: intervals in updates, at whose multiples a call of several updates ends. The host
                then reads metrics from the device only there and where `max_skipped_updates` may be
                reached, and otherwise after every call.
        """
        self._build_on(x)
        self.prepare()
        steps, size = steps_per_epoch, int(x.cardinality())
        if steps is None and size > 0:  # infinite and unknown sizes are negative
            steps = -(-size // self.config.accumulation_steps)
        self.stop_training = False
        batches: Iterator | None = None
        logs: dict[str, float] = {}
        callback_list = keras.callbacks.CallbackList(
            list(callbacks),
            add_history=True,
            add_progbar=verbose != 0,
            model=self,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )
        callback_list.on_train_begin()
        for epoch in range(initial_epoch, epochs):
            self._epoch_sums = Sums()
            callback_list.on_epoch_begin(epoch)
            if batches is None or steps_per_epoch is None:
                batches = self.batches(x, self.per_worker_data)
            index, first_step = first_step, 0
            while index < (steps or math.inf) and not self.stop_training:
                callback_list.on_train_batch_begin(index)
                left = steps - index if steps else 1
                limit = min([left, *(every - self.step % every for every in stops)])
                values = self.update(batches, limit)
                if values is None and (steps or not index):
                    ended = f"the training data ended after step {self.step}"
                    raise UserError(f"{ended}: use a dataset that repeats endlessly")
                if values is None:
                    break
                index += len(values)
                if logs := self._count(values, stops):
                    self.synchronize()  # a callback may read the weights
                callback_list.on_train_batch_end(index - 1, logs)
            logs = dict(logs)
            if validate or validation_data is not None:
                callback_list.on_test_begin()
                if found := validate() if validate else self.evaluate(validation_data):
                    callback_list.on_test_end(found)
                logs |= {f"val_{name}": value for name, value in found.items()}
            callback_list.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        callback_list.on_train_end(logs)
        self.synchronize()
        return self.history

    def evaluate(
        self, x: tf.data.Dataset, verbose: int = 0, return_dict: bool = True
    ) -> dict[str, float]:
        """Computes metrics as means over all tokens of a dataset (see `metrics_from_sums`).

        Keras's arguments `verbose` and `return_dict` have no effect.
        """
        self._build_on(x)
        self.synchronize()
        sums = Sums()
        with Progress("evaluating"):
            for values in self.test(self.batches(x)):
                sums.add((*self.names["test"], UPDATES), values)
        return metrics_from_sums(sums.totals())

    def save(self, filepath, *args, **kwargs) -> None:
        """Saves only the network."""
        self.synchronize()
        self.network.save(filepath, *args, **kwargs)

    def _build_on(self, x: tf.data.Dataset) -> None:
        if not self.network.built:
            with self.strategy.scope():
                for batch in x.take(1):
                    self.sums(batch, "test")

    def synchronize(self) -> None:
        """Writes the current values to the Keras variables. Only `JaxModel` holds newer values."""

    def gathered(self) -> AbstractContextManager[None]:
        """Makes every variable readable in the first process in a block that all enter."""
        self.synchronize()
        return nullcontext()

    def ema_weights(self) -> AbstractContextManager[None]:
        """Replaces each trainable weight by its moving average, if there is one, in the block.

        Neither training nor saving a checkpoint is allowed in it.
        """
        self.synchronize()
        return self.ema.swapped() if self.ema else nullcontext()

    def _count(self, values, stops: Sequence[int]) -> dict[str, float]:
        """Adds the values `(N, K + 5)` of N updates to the sums, and returns the epoch's metrics.

        With `stops`, the logs are empty at steps that are not a multiple of any interval in
        `stops`.
        """
        self.step += len(values)
        for sums in (self.window, self._epoch_sums):
            sums.add((*self.names["train"], *UPDATE_STATISTICS), values)
        is_stop = not stops or any(self.step % every == 0 for every in stops)
        if not is_stop and self.step < self._next_check:
            return {}
        totals = self._epoch_sums.totals()
        skipped = totals.get(SKIPPED_IN_A_ROW, 0)
        if skipped >= self.config.max_skipped_updates:
            raise Diverged(
                f"{skipped:.0f} updates in a row up to step {self.step} had a NaN or infinite loss "
                "or gradient, or no label: lower training.learning_rate, set training.clip_norm, "
                "or check the labels"
            )
        self._next_check = self.step + int(self.config.max_skipped_updates - skipped)
        return metrics_from_sums(totals) if is_stop else {}


def features(data) -> dict[str, tf.Tensor]:
    """Returns a batch, a dict or a tuple (dict, targets, sample weights) as in Keras, as a dict.

    Targets become the feature `label`, and sample weights become the feature `weight`.
    """
    x, label, weight = keras.utils.unpack_x_y_sample_weight(data)
    if not isinstance(x, dict):
        raise UserError(f"a batch is of type {type(x).__name__}: map the dataset to dicts")
    extras = {"label": label, "weight": weight}
    return {**x, **{name: value for name, value in extras.items() if value is not None}}
