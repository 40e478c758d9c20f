"""Base class of the TensorFlow and JAX training models."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import keras
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.keras_optimizers import ScheduleFreeAdamW
from macaron_tf.training.lora import low_rank_layers
from macaron_tf.training.optimizer import ExponentialMovingAverage, ScheduleFreeAverage
from macaron_tf.training.updates import (
    SKIPPED_IN_A_ROW,
    FirstStage,
    Objective,
    Sums,
    metrics_from_sums,
)


class Diverged(UserError):
    """Error for too many consecutive skipped updates."""


class TrainedModel:
    """Base class of `FitModel` and `JaxModel`, which train a network on an objective.

    Subclasses provide the parts of a Keras model that training runs and callbacks use, such as
    `fit`, `evaluate` and `stop_training`. For the arguments, see `FitModel`.

    Attributes:
        step: number of updates so far, including skipped updates.
        window: `Sums` of the updates since the last call of `window.reset`.
        stops: intervals in updates, set by `train`. If there are intervals, the host reads metrics
            from the device only at multiples of an interval and where `max_skipped_updates` may be
            reached, a call that makes several updates ends at the next multiple, and the training
            data must be endless. If `stops` is empty, the host reads metrics after every call, and
            the end of the data ends the epoch.
        steps_to_skip: number of upcoming Keras steps that do nothing. A resumed epoch skips its
            earlier updates in this way.
        memory: variables that carry state from one training batch to the next, such as the memory
            of Transformer-XL. The first dimension of each variable is the batch size of one
            replica, or of all devices on JAX. Checkpoints contain these variables. Set the
            attribute before training.
        evaluation_memory: variables that carry state from one evaluation batch to the next.
            Checkpoints do not contain these variables.
        strategy: distribution strategy whose replicas share the batches. The JAX engine ignores
            the strategy.
        ema: moving average of the weights; `None` means no average.
        skipped_in_a_row: variable that counts consecutive skipped updates.
    """

    optimizer: keras.optimizers.Optimizer
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
        self.stops: tuple[int, ...] = ()
        self.steps_to_skip = 0
        self.memory: Sequence[keras.Variable] = ()
        self.evaluation_memory: Sequence[keras.Variable] = ()
        self.strategy = tf.distribute.get_strategy()
        self.ema: ExponentialMovingAverage | None = None
        self._epoch_sums = Sums()
        self._epoch_start = 0
        self._next_check = 0  # first step at which too many updates may have been skipped

    def prepare(self) -> None:
        """Creates the missing variables of the optimizer and of the moving average."""
        weights = self.network.trainable_variables
        with self.strategy.scope():
            if not self.optimizer.built:
                self.optimizer.build(weights)
            if isinstance(self.optimizer, ScheduleFreeAdamW):
                self.ema = ScheduleFreeAverage(weights, self.optimizer)
            elif self.config.ema_decay is not None and self.ema is None:
                self.ema = ExponentialMovingAverage(weights, self.config.ema_decay)

    @property
    def seed_states(self) -> list[keras.Variable]:
        """State variables of the network's random number generators, in order."""
        weights = {id(weight) for weight in self.network.weights}
        return [v for v in self.network.variables if id(v) not in weights]

    def state_variables(self) -> dict[str, keras.Variable]:
        """Returns a dict of the variables that a checkpoint contains besides weights and memory.

        The keys are numbered, such as `optimizer/00003`, because Keras's variable names depend on
        the layers that were built earlier in the process.
        """
        return {
            **{f"optimizer/{i:05d}": v for i, v in enumerate(self.optimizer.variables)},
            **{f"random/{i:05d}": v for i, v in enumerate(self.seed_states)},
            **{f"average/{i:05d}": v for i, v in enumerate(self.ema.shadows if self.ema else ())},
            **{f"low_rank/{i:05d}": v for i, v in enumerate(self._low_rank_variables())},
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def _low_rank_variables(self) -> Iterator[keras.Variable]:
        """Yields the matrices whose saved values include updates, and the updates' factors."""
        for layer in low_rank_layers(self.network):
            yield from (layer._kernel, layer.lora_kernel_a, layer.lora_kernel_b)

    def synchronize(self) -> None:
        """Writes the current values to the Keras variables. Only `JaxModel` holds newer values."""

    def gathered(self) -> AbstractContextManager[None]:
        """Makes every variable readable in the first process, within the `with` block.

        Every process must enter the block. Training is not allowed in the block.
        """
        self.synchronize()
        return nullcontext()

    def ema_weights(self) -> AbstractContextManager[None]:
        """Replaces each trainable weight by its moving average, within the `with` block.

        Without a moving average, the weights do not change. Neither training nor saving a
        checkpoint is allowed in the block.
        """
        self.synchronize()
        return self.ema.swapped() if self.ema else nullcontext()

    def reset_metrics(self) -> None:
        """Resets the metrics. Keras calls this method at the start of an epoch or an evaluation."""
        self._epoch_sums.reset()
        self._epoch_start = self.step

    def get_metrics_result(self) -> dict[str, float]:
        """Returns a dict with the metrics of the current epoch or evaluation so far."""
        return metrics_from_sums(self._epoch_sums.totals())

    def _count(self, updates: int, names: Sequence[str], values) -> dict[str, float]:
        """Adds updates to `step` and their values to the sums, and returns the logs for Keras.

        The `values` of the K `names` are those of one update, `(K,)`, or of N updates, `(N, K)`.
        The logs are the metrics of the epoch. If `stops` is not empty, the logs are empty at steps
        that are not a multiple of any interval in `stops`.
        """
        self.step += updates
        self.window.add(names, values)
        self._epoch_sums.add(names, values)
        is_stop = not self.stops or any(self.step % every == 0 for every in self.stops)
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

    def _data_ended_error(self) -> UserError:
        return UserError(
            f"the training data ended after step {self.step}: use a dataset that has at least one "
            "batch and repeats endlessly"
        )


def features(data) -> dict[str, tf.Tensor]:
    """Returns a batch as a dict mapping feature name to tensor.

    Args:
        data: a dict of features, or a tuple of the dict, targets and sample weights as in Keras.
            Targets become the feature `label`, and sample weights become the feature `weight`.
    """
    x, label, weight = keras.utils.unpack_x_y_sample_weight(data)
    if not isinstance(x, dict):
        raise UserError(f"a batch is of type {type(x).__name__}: map the dataset to dicts")
    extras = {"label": label, "weight": weight}
    return {**x, **{name: value for name, value in extras.items() if value is not None}}


def freeze(
    network: keras.Model, config: TrainingConfig, first_stage: FirstStage | None = None
) -> None:
    """Freezes each weight whose path contains an element of `config.frozen`."""
    for part in config.frozen:
        matches = [weight for weight in network.weights if part in weight.path]
        if not matches:
            examples = ", ".join(weight.path for weight in network.weights[:5])
            raise config.error(f"frozen={part!r} matches no weight, such as {examples}")
        for weight in matches:
            weight.trainable = False
    if not network.trainable_variables:
        raise config.error(f"frozen={config.frozen!r} freezes all weights: freeze fewer")
    if first_stage and not any(map(first_stage.trains, network.trainable_variables)):
        raise config.error(f"frozen={config.frozen!r} freezes all weights of the first stage")
