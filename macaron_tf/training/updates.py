"""The arithmetic of an update: sums over micro-batches, one mean, one clipping, one step."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.distribution import is_tpu
from macaron_tf.training.optimizer import ExponentialMovingAverage

# Added by the fit-able model to what the objective returns, one value an update each.
UPDATES = "updates"  # 1 where the optimizer took a step
SKIPPED = "skipped"  # 1 where the update was left out for a NaN or infinite gradient
SKIPPED_IN_A_ROW = "skipped_in_a_row"
GRADIENT_NORM = "gradient_norm"  # global, before clipping
LEARNING_RATE = "learning_rate"

_GREATEST = (SKIPPED_IN_A_ROW,)
_LATEST = (LEARNING_RATE,)
_RENAMED = {"correct": "accuracy"}


class Sums:
    """Running sums of named scalars, given a packed vector an update.

    Vectors stay where they were computed (`add` waits for nothing) until `totals` fetches them
    together. Added up in float64 in the order given: the same additions give the same bits.
    """

    def __init__(self):
        self._names: tuple[str, ...] = ()
        self._pending: list = []
        self._totals: dict[str, float] = {}

    def reset(self) -> None:
        """Starts again from nothing."""
        self._pending = []
        self._totals = {}

    def add(self, names: Sequence[str], vector) -> None:
        """Adds an update's values, or several updates'.

        Args:
            names: what the values are.
            vector: float tensor of shape `(len(names),)` or `(updates, len(names))`.
        """
        if tuple(names) != self._names:
            self.totals()
            self._names = tuple(names)
        self._pending.append(vector)

    def totals(self) -> dict[str, float]:
        """The sums by name (the greatest of `skipped_in_a_row`, the latest learning rate)."""
        # np.asarray of a tensor on the host shares its memory: some microseconds an update.
        # (K,) or (N, K) each -> N rows of K
        rows = [row for pending in self._pending for row in np.atleast_2d(pending).tolist()]
        for values in rows:
            for name, value in zip(self._names, values, strict=True):
                before = self._totals.get(name, 0.0)
                if name in _GREATEST:
                    value = max(before, value)
                elif name not in _LATEST:
                    value = before + value
                self._totals[name] = value
        self._pending = []
        return dict(self._totals)

    def load(self, totals: Mapping[str, float]) -> None:
        """Goes on from what an earlier `totals` returned."""
        self.reset()
        self._totals = {name: float(value) for name, value in totals.items()}


def metrics_from_sums(totals: Mapping[str, float]) -> dict[str, float]:
    """Means over tokens from sums over tokens.

    `X_sum` becomes `X = X_sum / X_weight`, with `weight` where there is no `X_weight` (and
    `correct_sum` becomes `accuracy`); `perplexity` is `exp(nll)` where there is an nll; `tokens`
    (the weight) and any other sum are means over the updates (over the batches in an
    evaluation).

    Args:
        totals: what `Sums.totals` returned.

    Returns:
        The metrics by name; NaN where nothing was counted, {} where nothing was added.
    """
    if not totals:
        return {}
    updates = totals.get(UPDATES, 0.0)
    metrics = {}
    for name, value in totals.items():
        if name.endswith("_sum"):
            base = name.removesuffix("_sum")
            weight = totals.get(f"{base}_weight", totals["weight"])
            metrics[_RENAMED.get(base, base)] = value / weight if weight else math.nan
        elif name in _LATEST or name == SKIPPED:
            metrics[name] = value
        elif name == "weight":
            metrics["tokens"] = value / updates if updates else math.nan
        elif name not in (UPDATES, *_GREATEST) and not name.endswith("_weight"):
            metrics[name] = value / updates if updates else math.nan
    nll = metrics.get("nll")
    if nll is not None:
        # exp(709.8) is the largest a double holds; a run that bad has no use for the digits.
        metrics["perplexity"] = math.inf if nll >= 700 else math.exp(nll)
    return metrics


class FirstStage:
    """Which part of a network the first updates train; all else stays as it is, to the bit.

    Args:
        steps: how many updates.
        variables: that part.
    """

    def __init__(self, steps: int, variables: Sequence[keras.Variable]):
        self.steps = steps
        self._trained = {id(variable) for variable in variables}

    def trains(self, variable: keras.Variable) -> bool:
        """Whether a variable is of that part."""
        return id(variable) in self._trained

    def lasts(self, done: keras.Variable) -> tf.Tensor:
        """Whether the update after `done` ones is of this stage: a scalar boolean."""
        return tf.convert_to_tensor(done) < self.steps

    def masked(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable], done
    ) -> list[tf.Tensor]:
        """The gradients, 0 where the update trains nothing: neither counts in their norm.

        Args:
            gradients: of the variables, in order.
            variables: trained by the run.
            done: updates before this one.
        """
        rest = tf.where(self.lasts(done), 0.0, 1.0)
        return [
            gradient if self.trains(variable) else gradient * tf.cast(rest, gradient.dtype)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]


Objective = Callable[..., dict[str, tf.Tensor]]


class Updates:
    """What a `FitModel` runs inside its graphs.

    Args: as `FitModel`.

    Attributes:
        first_stage: see there; None = every update trains everything. Set before the first one.
        names: what the packed sums of a `"train"` and a `"test"` step are; known once traced.
        traces: how often each was traced.
        skipped_in_a_row: int64 variable, the length of the present run of skipped updates.
    """

    def __init__(
        self,
        network: keras.Model,
        objective: Objective,
        accumulation_steps: int,
        clip_norm: float | None,
    ):
        self.network = network
        self.objective = objective
        self.accumulation_steps = accumulation_steps
        self.clip_norm = clip_norm
        self.strategy = tf.distribute.get_strategy()
        self.optimizer: keras.optimizers.Optimizer | None = None
        self.ema: ExponentialMovingAverage | None = None
        self.first_stage: FirstStage | None = None
        self.names: dict[str, tuple[str, ...]] = {}
        self.traces = {"train": 0, "test": 0}
        self.skipped_in_a_row = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._updated: list[keras.Variable] = []

    def test_step(self, batch) -> tf.Tensor:
        """The objective's sums `(K,)` on a batch, without dropout and without an update."""
        self.traces["test"] += 1
        return self._pack("test", self.objective(self.network, batch, training=False))

    def micro_step(self, batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Sums and gradients of one micro-batch, not yet divided by the weight.

        Args:
            batch: the dict of tensors that the objective takes.

        Returns:
            The objective's sums `(K,)` float32, and the gradients of `loss_sum` for the variables
            that have any.
        """
        self.traces["train"] += 1
        variables = self.network.trainable_variables
        with tf.GradientTape() as tape:
            sums = self.objective(self.network, batch, training=True)
            loss_sum = sums["loss_sum"]
        gradients = tape.gradient(loss_sum, [variable.value for variable in variables])
        unused = [v.path for g, v in zip(gradients, variables, strict=True) if g is None]
        if unused:
            warnings.warn(f"no gradient reaches {', '.join(unused)}", stacklevel=2)
        self._updated = [v for g, v in zip(gradients, variables, strict=True) if g is not None]
        # A tied embedding's gradient comes as rows; the sum over micro-batches needs it whole.
        whole = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        return self._pack("train", sums), whole

    def update(self, micro_step: Callable, iterator) -> tf.Tensor:
        """A whole update from the iterator's next micro-batches; returns `apply`'s values."""
        if not is_tpu(self.strategy):
            return self.apply(*self.accumulate(micro_step, iterator))
        # One program on the chip. Its shapes are static, so the micro-batches fit in one tensor.
        batches = [iterator.get_next() for _ in range(self.accumulation_steps)]
        values = self.strategy.run(
            lambda *given: self.update_of(micro_step, given), args=tuple(batches)
        )
        return self._first(values)

    def update_of(self, micro_step: Callable, batches: Sequence) -> tf.Tensor:
        """A whole update from micro-batches of one shape, inside a replica.

        Args:
            micro_step: see there.
            batches: `accumulation_steps` of them.
        """
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
        """The sum of `micro_step` over an update's micro-batches, drawn from the iterator.

        A loop in the graph, not an unrolled trace. Where the data end within an update, the update
        is what there was. Each replica adds up its own.

        Raises:
            tf.errors.OutOfRangeError: (when run) there was no micro-batch at all.
        """
        sums, gradients = self._run(micro_step, iterator.get_next())

        def body(index, sums, gradients):
            batch = iterator.get_next_as_optional()

            def add():
                more = self._run(micro_step, batch.get_value())
                return self._run(_added, (sums, gradients), more)

            sums, gradients = tf.cond(batch.has_value(), add, lambda: (sums, gradients))
            return index + 1, sums, gradients

        if self.accumulation_steps > 1:
            _, sums, gradients = tf.while_loop(
                lambda index, *_: index < self.accumulation_steps,
                body,
                (tf.constant(1), sums, gradients),
                parallel_iterations=1,
            )
        return sums, gradients

    def apply(self, sums: tf.Tensor, gradients: list[tf.Tensor]) -> tf.Tensor:
        """One optimizer step from an update's summed `micro_step`s.

        Args:
            sums: `(K,)` float32, a replica's own.
            gradients: of `loss_sum`, summed over the update, a replica's own.

        Returns:
            The update's values `(K + 5,)`, named by `update_names`. In a skipped update (a sum or
            the gradient is NaN or infinite, or the weight is 0) the sums and the norm are 0.
        """
        sums, gradients, norm = self._run(self._mean, sums, gradients)
        learning_rate = tf.cast(tf.convert_to_tensor(self.optimizer.learning_rate), tf.float32)
        # The same on all replicas; decided outside of them, for none may wait within a condition.
        counted, norm = self._first(sums), self._first(norm)
        weight = counted[self.names["train"].index("weight")]
        healthy = tf.math.is_finite(norm) & tf.reduce_all(tf.math.is_finite(counted))
        healthy &= weight > 0

        def step(first: bool = False):
            self._run(lambda given: self._step(given, first), gradients)
            return tf.constant(0, tf.int64)

        def staged_step():
            if self.first_stage is None:
                return step()
            early = self._first(self.first_stage.lasts(self.optimizer.iterations))
            return tf.cond(early, lambda: step(first=True), step)

        in_a_row = tf.cond(healthy, staged_step, lambda: self.skipped_in_a_row + 1)
        self.skipped_in_a_row.assign(in_a_row)
        taken = tf.cast(healthy, tf.float32)
        # (K,) and five scalars -> (K + 5,)
        counted = tf.where(healthy, tf.concat([counted, [norm]], axis=0), 0.0)
        counts = [taken, 1.0 - taken, tf.cast(in_a_row, tf.float32), learning_rate]
        return tf.concat([counted, tf.stack(counts)], axis=0)

    def several(self, update: Callable[[], tf.Tensor], count: tf.Tensor) -> tf.Tensor:
        """Some updates one after the other, in one call of the graph.

        Args:
            update: gives `apply`'s values, `(K + 5,)`.
            count: n, scalar int32.

        Returns:
            Their values, `(n, K + 5)`.
        """
        values = tf.TensorArray(tf.float32, size=count)
        _, values = tf.while_loop(
            lambda index, values: index < count,
            lambda index, values: (index + 1, values.write(index, update())),
            (tf.constant(0), values),
            parallel_iterations=1,
        )
        return values.stack()

    def test(self, test_step: Callable, batch) -> tf.Tensor:
        """`test_step` on every replica's share of a batch, summed, and a 1 for it: `(K + 1,)`."""
        sums = self._run(test_step, batch)
        if not self._inside:
            sums = self.strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)
        return tf.concat([sums, [1.0]], axis=0)

    def _mean(self, sums, gradients) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        """All replicas' sums, their clipped mean gradient, and its norm before clipping."""
        if self.replicas > 1:
            # tf.identity: what comes out of a loop has no device, and the sum would have no place.
            mine = [tf.identity(tensor) for tensor in (sums, *gradients)]
            context = tf.distribute.get_replica_context()
            sums, *gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
        weight = sums[self.names["train"].index("weight")]
        factor = tf.math.divide_no_nan(1.0, weight)
        if self.first_stage is not None:
            done = self.optimizer.iterations
            gradients = self.first_stage.masked(gradients, self._updated, done)
        norm = tf.linalg.global_norm(gradients) * factor
        if self.clip_norm is not None:
            factor *= self.clip_norm / tf.maximum(norm, self.clip_norm)
        return sums, [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients], norm

    def _step(self, gradients: Sequence[tf.Tensor], first: bool) -> None:
        pairs = zip(gradients, self._updated, strict=True)
        if first:  # without the others, no decay touches them
            pairs = [pair for pair in pairs if self.first_stage.trains(pair[1])]
        gradients, variables = zip(*pairs, strict=True)
        self.optimizer.apply(list(gradients), list(variables))
        if self.ema:
            self.ema.update(self.optimizer.iterations)

    @property
    def replicas(self) -> int:
        """How many devices share each micro-batch."""
        return self.strategy.num_replicas_in_sync

    @property
    def _inside(self) -> bool:
        """Whether this is one replica's part of the graph; always, without a strategy."""
        context = tf.distribute.get_replica_context()
        return context is not None and context.strategy is self.strategy

    def _run(self, function: Callable, *arguments):
        """On every replica; inside of one, plainly."""
        if self._inside:
            return function(*arguments)
        # The lambda: a tf.function that is given itself would be merged over the replicas.
        return self.strategy.run(lambda *given: function(*given), args=arguments)

    def _first(self, value) -> tf.Tensor:
        """The first replica's value."""
        return value if self._inside else self.strategy.experimental_local_results(value)[0]

    @property
    def update_names(self) -> tuple[str, ...]:
        """What the values that `apply` returns are."""
        return self.names["train"] + (
            GRADIENT_NORM,
            UPDATES,
            SKIPPED,
            SKIPPED_IN_A_ROW,
            LEARNING_RATE,
        )

    def _pack(self, kind: str, sums: dict[str, tf.Tensor]) -> tf.Tensor:
        """A dict of K scalars -> `(K,)` float32, in alphabetical order."""
        missing = {"loss_sum", "weight"} - set(sums)
        if missing:
            raise ValueError(f"the objective returns no {' and no '.join(sorted(missing))}")
        names = tuple(sorted(sums))
        self.names[kind] = names
        return tf.stack([tf.cast(sums[name], tf.float32) for name in names])


def _added(one, other):
    """The sums and gradients of two micro-batches, added."""
    return one[0] + other[0], [g + more for g, more in zip(one[1], other[1], strict=True)]
