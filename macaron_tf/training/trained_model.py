"""Base of the engines' models: counts updates, sums metrics, lists what a checkpoint keeps."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import keras
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.keras_optimizers import ScheduleFreeAdamW
from macaron_tf.training.optimizer import ExponentialMovingAverage, ScheduleFreeAverage
from macaron_tf.training.updates import (
    SKIPPED_IN_A_ROW,
    FirstStage,
    Objective,
    Sums,
    metrics_from_sums,
)


class Diverged(UserError):
    """Raised when too many updates in a row have a NaN or infinite gradient."""


class TrainedModel:
    """Base of `FitModel` and `JaxModel`: a network that is trained on an objective.

    It has the parts of a Keras model that runs and their callbacks use: `fit`, `evaluate` and
    `stop_training`.

    Args:
        network, objective, config: see `FitModel`.

    Attributes:
        step: number of updates so far, skipped ones included; the run's clock and its position in
            the data.
        window: `Sums` of the updates since the last `window.reset()`.
        stops: intervals in updates. In a run, the host reads metrics from the device only at
            multiples of these, calls of several updates end there, and data that end earlier are an
            error. (): the host reads metrics after every call, and an epoch may end with the data.
        calls_to_pass: number of Keras's next steps that do nothing. A resumed epoch skips its
            earlier updates in this way.
        memory: variables that carry state from batch to batch, each `(rows of a replica, ...)`,
            saved with the run. Set it before training.
        evaluation_memory: the same for evaluations; not saved.
        strategy: distribution strategy of the replicas and workers that share the batches. JAX's
            processes are not part of it.
        optimizer: the optimizer of the updates.
        ema: moving average of the weights, or None.
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
        self.calls_to_pass = 0
        self.memory: Sequence[keras.Variable] = ()
        self.evaluation_memory: Sequence[keras.Variable] = ()
        self.strategy = tf.distribute.get_strategy()
        self.ema: ExponentialMovingAverage | None = None
        self._epoch_sums = Sums()
        self._epoch_start = 0

    def prepare(self) -> None:
        """Creates the variables of the optimizer and of the moving average, unless they exist."""
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
        """States of the network's random number generators, in order."""
        weights = {id(weight) for weight in self.network.weights}
        return [v for v in self.network.variables if id(v) not in weights]

    def state_variables(self) -> dict[str, keras.Variable]:
        """Variables that a run saves besides weights and memory, named by position.

        Keras's own names depend on the layers built earlier in the process.
        """
        return {
            **{f"optimizer/{i:05d}": v for i, v in enumerate(self.optimizer.variables)},
            **{f"random/{i:05d}": v for i, v in enumerate(self.seed_states)},
            **{f"average/{i:05d}": v for i, v in enumerate(self.ema.shadows if self.ema else ())},
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def synchronize(self) -> None:
        """Writes values that the engine holds elsewhere back to the variables."""

    def gathered(self) -> AbstractContextManager[None]:
        """Context in which the first process can read every variable.

        Every process must enter it. Training inside is not allowed.
        """
        self.synchronize()
        return nullcontext()

    def ema_weights(self) -> AbstractContextManager[None]:
        """Context in which the network's weights are their moving average, if one is kept.

        Training, and saving for a resume, are not allowed inside.
        """
        self.synchronize()
        return self.ema.swapped() if self.ema else nullcontext()

    def reset_metrics(self) -> None:
        """Clears the epoch's sums. Keras calls it when an epoch or an evaluation begins."""
        self._epoch_sums.reset()
        self._epoch_start = self.step

    def get_metrics_result(self) -> dict[str, float]:
        """The metrics of the epoch or the evaluation so far."""
        return metrics_from_sums(self._epoch_sums.totals())

    def _count(self, updates: int, names: Sequence[str], values) -> dict[str, float]:
        """Counts updates and adds their values to the sums; returns Keras's logs."""
        self.step += updates
        self.window.add(names, values)
        self._epoch_sums.add(names, values)
        if self.stops and all(self.step % every for every in self.stops):
            return {}
        totals = self._epoch_sums.totals()
        skipped = totals.get(SKIPPED_IN_A_ROW, 0)
        if skipped >= self.config.max_skipped_updates:
            raise Diverged(
                f"{skipped:.0f} updates in a row up to step {self.step} had a NaN or infinite "
                "loss or gradient: lower learning_rate, lengthen warmup_steps or set clip_norm"
            )
        return metrics_from_sums(totals)

    def _ended(self) -> UserError:
        return UserError(
            f"the training data ended after step {self.step}: they must repeat without end "
            "and hold at least one batch"
        )


def features(data) -> dict[str, tf.Tensor]:
    """Returns a batch as features by name; Keras's targets and sample weights join them."""
    x, label, weight = keras.utils.unpack_x_y_sample_weight(data)
    if not isinstance(x, dict):
        raise UserError(
            "a FitModel learns from batches that are dicts of features by name, such as token_ids "
            f"and label, not from a {type(x).__name__}"
        )
    more = {"label": label, "weight": weight}
    return {**x, **{name: value for name, value in more.items() if value is not None}}


def freeze(
    network: keras.Model, config: TrainingConfig, first_stage: FirstStage | None = None
) -> None:
    """Makes weights untrainable whose path contains a string of `config.frozen`.

    Raises:
        UserError: a string is in no weight's path, or no weight is left to train, in the whole run
            or in its first stage.
    """
    for part in config.frozen:
        named = [weight for weight in network.weights if part in weight.path]
        if not named:
            some = ", ".join(weight.path for weight in network.weights[:5])
            raise config.error(
                f"frozen: no weight's path has {part!r} in it; paths are like {some}"
            )
        for weight in named:
            weight.trainable = False
    if not network.trainable_variables:
        raise config.error("frozen: no weight is left to train")
    if first_stage and not any(map(first_stage.trains, network.trainable_variables)):
        raise config.error("frozen: no weight of the first stage is left to train")
