"""The arithmetic of an update: sums over micro-batches, then one mean, clipping and step."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import ExponentialMovingAverage

# Values that each update adds to the objective's sums.
UPDATES = "updates"  # 1 if the optimizer made a step
SKIPPED = "skipped"  # 1 if the update was skipped for a NaN or infinite gradient
SKIPPED_IN_A_ROW = "skipped_in_a_row"
GRADIENT_NORM = "gradient_norm"  # global, before clipping
LEARNING_RATE = "learning_rate"
ADDED = (GRADIENT_NORM, UPDATES, SKIPPED, SKIPPED_IN_A_ROW, LEARNING_RATE)


class Sums:
    """Running sums of named scalars, which each update adds as one packed vector.

    Vectors stay on the device, so `add` does not wait; `totals` fetches them together. Sums are in
    float64 and in order, so that equal additions give equal bits.
    """

    def __init__(self):
        self._names: tuple[str, ...] = ()
        self._pending: list = []
        self._totals: dict[str, float] = {}

    def reset(self) -> None:
        """Clears the sums."""
        self._pending = []
        self._totals = {}

    def add(self, names: Sequence[str], vector) -> None:
        """Adds the values of one or several updates: `(len(names),)` or `(updates, len(names))`."""
        if tuple(names) != self._names:
            self.totals()
            self._names = tuple(names)
        self._pending.append(vector)

    def totals(self) -> dict[str, float]:
        """The sums by name; `skipped_in_a_row` is the maximum, the learning rate the latest."""
        # Each is (K,) or (N, K): split into rows of K. A tensor on the host is not copied.
        rows = [row for pending in self._pending for row in np.atleast_2d(pending).tolist()]
        for values in rows:
            for name, value in zip(self._names, values, strict=True):
                before = self._totals.get(name, 0.0)
                if name == SKIPPED_IN_A_ROW:
                    value = max(before, value)
                elif name != LEARNING_RATE:
                    value = before + value
                self._totals[name] = value
        self._pending = []
        return dict(self._totals)

    def load(self, totals: Mapping[str, float]) -> None:
        """Restores sums that an earlier `totals` returned."""
        self.reset()
        self._totals = {name: float(value) for name, value in totals.items()}


def metrics_from_sums(totals: Mapping[str, float]) -> dict[str, float]:
    """Computes metrics from the sums over tokens that `Sums.totals` returns.

    `X_sum` becomes `X = X_sum / X_weight`, or `X_sum / weight` if there is no `X_weight`;
    `correct_sum` becomes `accuracy`. `perplexity` is `exp(nll)`. All other sums, and `tokens` (the
    weight), become means over updates, or over batches in an evaluation. Means of nothing are NaN.
    """
    updates = totals.get(UPDATES, 0.0)
    metrics = {}
    for name, value in totals.items():
        if name.endswith("_sum"):
            base = name.removesuffix("_sum")
            weight = totals.get(f"{base}_weight", totals["weight"])
            base = "accuracy" if base == "correct" else base
            metrics[base] = value / weight if weight else math.nan
        elif name in (LEARNING_RATE, SKIPPED):
            metrics[name] = value
        elif name not in (UPDATES, SKIPPED_IN_A_ROW) and not name.endswith("_weight"):
            mean = value / updates if updates else math.nan
            metrics["tokens" if name == "weight" else name] = mean
    if "nll" in metrics:
        # exp(709.8) is the largest float64.
        metrics["perplexity"] = math.inf if metrics["nll"] >= 700 else math.exp(metrics["nll"])
    return metrics


class FirstStage:
    """The first `steps` updates, which train only some variables and leave the others unchanged."""

    def __init__(self, steps: int, variables: Sequence[keras.Variable]):
        self.steps = steps
        self._trained = {id(variable) for variable in variables}

    def trains(self, variable: keras.Variable) -> bool:
        return id(variable) in self._trained

    def lasts(self, done: keras.Variable) -> tf.Tensor:
        """Whether the update after `done` ones belongs to this stage."""
        return tf.convert_to_tensor(done) < self.steps

    def masked(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], done
    ) -> list[tf.Tensor]:
        """Sets gradients of untrained variables to 0, so that they do not count in the norm."""
        rest = tf.where(self.lasts(done), 0.0, 1.0)
        return [
            gradient if self.trains(variable) else gradient * tf.cast(rest, gradient.dtype)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]


Objective = Callable[..., dict[str, tf.Tensor]]


def sums_of(objective: Objective, network, batch, training: bool) -> dict[str, tf.Tensor]:
    """Calls an objective on a batch; a missing feature of the batch raises a UserError."""
    try:
        return objective(network, batch, training)
    except KeyError as error:
        raise UserError(
            f"the objective needs {error}, and the batches hold {', '.join(batch)} only"
        ) from error


def pack(sums: dict[str, tf.Tensor]) -> tuple[tuple[str, ...], tf.Tensor]:
    """Packs a dict of K scalars into its names, in alphabetical order, and `(K,)` float32."""
    missing = {"loss_sum", "weight"} - set(sums)
    if missing:
        raise ValueError(f"the objective returns no {' and no '.join(sorted(missing))}")
    names = tuple(sorted(sums))
    return names, ops.stack([ops.cast(sums[name], "float32") for name in names])


class Updates:
    """The computations of a `FitModel` inside its graphs; see that class for the arguments.

    Attributes:
        names: names of the packed sums of a `"train"` and a `"test"` step, set by tracing.
        traces: how often each step was traced.
        skipped_in_a_row: int64 variable, the number of consecutive skipped updates so far.
    """

    def __init__(
        self,
        network: keras.Model,
        objective: Objective,
        config: TrainingConfig,
        first_stage: FirstStage | None,
    ):
        self.network = network
        self.objective = objective
        self.config = config
        self.strategy = tf.distribute.get_strategy()
        self.optimizer: keras.optimizers.Optimizer | None = None
        self.ema: ExponentialMovingAverage | None = None
        self.first_stage = first_stage
        self.names: dict[str, tuple[str, ...]] = {}
        self.traces = {"train": 0, "test": 0}
        self.skipped_in_a_row = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._updated: list[keras.Variable] = []

    def test_step(self, batch) -> tf.Tensor:
        """Computes the objective's sums `(K,)` on a batch in evaluation mode."""
        self.traces["test"] += 1

        def step(batch) -> tf.Tensor:
            sums = sums_of(self.objective, self.network, batch, training=False)
            self.names["test"], packed = pack(sums)
            return packed

        return self._of_share(step, batch)

    def micro_step(self, batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Computes the objective's sums `(K,)` and the gradients of `loss_sum`.

        Gradients are not divided by the weight yet. Variables that no gradient reaches are left
        out, with a warning.
        """
        self.traces["train"] += 1
        return self._of_share(self._sums_and_gradients, batch)

    def _sums_and_gradients(self, batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        variables = self.network.trainable_variables
        with tf.GradientTape() as tape:
            sums = sums_of(self.objective, self.network, batch, training=True)
        self.names["train"], packed = pack(sums)
        gradients = tape.gradient(sums["loss_sum"], [variable.value for variable in variables])
        unused = [v.path for g, v in zip(gradients, variables, strict=True) if g is None]
        if unused:
            warnings.warn(f"no gradient reaches {', '.join(unused)}", stacklevel=2)
        self._updated = [v for g, v in zip(gradients, variables, strict=True) if g is not None]
        # An embedding's gradient is sparse; the sum over micro-batches needs a dense tensor.
        whole = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        return packed, whole

    def _of_share(self, step: Callable, batch):
        """Returns `step(batch)`, or zeros if this replica's share of the batch has no rows.

        Layers may fail on 0 rows. The step then runs on a row of zeros and its results are dropped.
        """
        rows = next(tensor for tensor in tf.nest.flatten(batch) if tensor.shape.rank)
        if self.strategy.num_replicas_in_sync == 1 or rows.shape[0]:
            return step(batch)
        empty = tf.equal(tf.shape(rows)[0], 0)

        def filled(tensor):
            if not tensor.shape.rank:
                return tensor
            more = tf.cast(empty, tf.int32)
            if isinstance(tensor, tf.RaggedTensor):
                splits = tensor.row_splits
                splits = tf.concat([splits, splits[-1:][:more]], 0)
                return tf.RaggedTensor.from_row_splits(tensor.values, splits, validate=False)
            rest = [[0, 0]] * (tensor.shape.rank - 1)
            return tf.pad(tensor, [[0, more], *rest])

        found = step(tf.nest.map_structure(filled, batch))
        return tf.cond(empty, lambda: tf.nest.map_structure(tf.zeros_like, found), lambda: found)

    def update(self, micro_step: Callable, iterator) -> tf.Tensor:
        """Makes one update from the iterator's next micro-batches; returns `apply`'s values."""
        if not is_tpu(self.strategy):
            return self.apply(*self.accumulate(micro_step, iterator))
        # One program on the chip; its batches have static shapes.
        batches = [iterator.get_next() for _ in range(self.config.accumulation_steps)]
        return self._first(self._run(lambda *given: self.update_of(micro_step, given), *batches))

    def update_of(self, micro_step: Callable, batches: Sequence) -> tf.Tensor:
        """Makes one update from `accumulation_steps` micro-batches of one shape, in a replica."""
        sums, gradients = micro_step(batches[0])
        if len(batches) > 1:
            stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts), *batches)

            def body(index, sums, gradients):
                batch = tf.nest.map_structure(lambda tensor: tensor[index], stacked)
                return index + 1, *_added((sums, gradients), micro_step(batch))

            _, sums, gradients = tf.while_loop(
                lambda index, *_: index < len(batches),
                body,
                (tf.constant(1), sums, gradients),
                maximum_iterations=len(batches) - 1,
            )
        return self.apply(sums, gradients)

    def accumulate(self, micro_step: Callable, iterator) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Sums `micro_step` over an update's micro-batches, which the iterator provides.

        Each replica sums its own. If the data end within an update, the update is smaller. If there
        is no micro-batch at all, running this raises `tf.errors.OutOfRangeError`.
        """
        sums, gradients = self._run(micro_step, iterator.get_next())

        def body(index, sums, gradients):
            batch = iterator.get_next_as_optional()

            def add():
                more = self._run(micro_step, batch.get_value())
                return self._run(_added, (sums, gradients), more)

            sums, gradients = tf.cond(batch.has_value(), add, lambda: (sums, gradients))
            return index + 1, sums, gradients

        if self.config.accumulation_steps > 1:
            # The loop must read after every replica's first micro-step. Grappler drops the control
            # edge from the first read, and a lowered loop does not wait for all its inputs. The
            # loop's counter therefore depends on the sums: `never` is false, because no number is
            # both NaN and infinite.
            ones = tf.stack([each[0] for each in self._local(sums)])
            never = tf.reduce_any(tf.math.is_nan(ones) & tf.math.is_inf(ones))
            _, sums, gradients = tf.while_loop(
                lambda index, *_: index < self.config.accumulation_steps,
                body,
                (1 + tf.cast(never, tf.int32), sums, gradients),
                parallel_iterations=1,
            )
        return sums, gradients

    def apply(self, sums: tf.Tensor, gradients: list[tf.Tensor]) -> tf.Tensor:
        """Makes one optimizer step from each replica's summed `micro_step`s.

        The update is skipped if a sum or the gradient is NaN or infinite, or the weight is 0.

        Returns:
            The update's values `(K + 5,)`, named by `names["train"]` and `ADDED`. In a skipped
            update the sums and the norm are 0.
        """
        sums, gradients, norm = self._run(self._mean, sums, gradients)
        learning_rate = tf.cast(tf.convert_to_tensor(self.optimizer.learning_rate), tf.float32)
        # Equal on all replicas, and decided outside of them: a collective must not run in tf.cond.
        counted, norm = self._first(sums), self._first(norm)
        weight = counted[self.names["train"].index("weight")]
        healthy = tf.math.is_finite(norm) & tf.reduce_all(tf.math.is_finite(counted))
        healthy &= weight > 0

        def step(first: bool = False):
            self._run(lambda given: self._step(given, first), gradients)
            return tf.constant(0, tf.int64)

        def staged_step():
            early = self._first(self.first_stage.lasts(self.optimizer.iterations))
            return tf.cond(early, lambda: step(first=True), step)

        take = staged_step if self.first_stage else step
        in_a_row = tf.cond(healthy, take, lambda: self.skipped_in_a_row + 1)
        self.skipped_in_a_row.assign(in_a_row)
        taken = tf.cast(healthy, tf.float32)
        # (K,) and five scalars -> (K + 5,)
        counted = tf.where(healthy, tf.concat([counted, [norm]], axis=0), 0.0)
        counts = [taken, 1.0 - taken, tf.cast(in_a_row, tf.float32), learning_rate]
        return tf.concat([counted, tf.stack(counts)], axis=0)

    def several(self, micro_step: Callable, iterator, count: tf.Tensor) -> tf.Tensor:
        """Makes `count` updates in one call of the graph; returns their values `(count, K + 5)`."""

        def body(index, values):
            return index + 1, values.write(index, self.update(micro_step, iterator))

        _, values = tf.while_loop(
            lambda index, _: index < count,
            body,
            (tf.constant(0), tf.TensorArray(tf.float32, size=count)),
            parallel_iterations=1,
        )
        return values.stack()

    def test(self, test_step: Callable, batch) -> tf.Tensor:
        """Sums `test_step` over the replicas' shares of a batch and appends a 1: `(K + 1,)`."""
        sums = self._run(test_step, batch)
        if not self._inside:
            sums = self.strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)
        return tf.concat([sums, [1.0]], axis=0)

    def _mean(self, sums, gradients) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        """Computes the sums over replicas, the clipped mean gradient, and its norm before."""
        if self.strategy.num_replicas_in_sync > 1:
            # tf.identity: a loop's output has no device, and the all-reduce needs one.
            mine = [tf.identity(tensor) for tensor in (sums, *gradients)]
            context = tf.distribute.get_replica_context()
            sums, *gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
        weight = sums[self.names["train"].index("weight")]
        factor = tf.math.divide_no_nan(1.0, weight)
        if self.first_stage:
            done = self.optimizer.iterations
            gradients = self.first_stage.masked(gradients, self._updated, done)
        norm = tf.linalg.global_norm(gradients) * factor
        if (most := self.config.clip_norm) is not None:
            factor *= most / tf.maximum(norm, most)
        return sums, [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients], norm

    def _step(self, gradients: Sequence[tf.Tensor], first: bool) -> None:
        pairs = zip(gradients, self._updated, strict=True)
        if first:  # the optimizer must not see other variables: weight decay would change them
            pairs = [pair for pair in pairs if self.first_stage.trains(pair[1])]
        gradients, variables = zip(*pairs, strict=True)
        self.optimizer.apply(list(gradients), list(variables))
        if self.ema:
            self.ema.update(self.optimizer.iterations)

    @property
    def _inside(self) -> bool:
        """Whether the caller runs inside a replica; always true without a strategy."""
        context = tf.distribute.get_replica_context()
        return context is not None and context.strategy is self.strategy

    def _run(self, function: Callable, *arguments):
        """Calls a function on every replica, or directly when inside a replica."""
        if self._inside:
            return function(*arguments)
        # The lambda: strategy.run would merge a tf.function over the replicas.
        return self.strategy.run(lambda *given: function(*given), args=arguments)

    def _local(self, value) -> Sequence[tf.Tensor]:
        """The values of the replicas of this process."""
        return (value,) if self._inside else self.strategy.experimental_local_results(value)

    def _first(self, value) -> tf.Tensor:
        """The first replica's value."""
        return self._local(value)[0]


def _added(one, other):
    """Adds the sums and gradients of two micro-batches."""
    return one[0] + other[0], [g + more for g, more in zip(one[1], other[1], strict=True)]
