"""Updates on TensorFlow: gradient accumulation, averaging, clipping and optimizer steps."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from macaron_tf.distribution import is_tpu

# Names of the values that each update appends to the objective's sums.
UPDATES = "updates"  # 1 if the optimizer made a step
SKIPPED = "skipped"  # 1 if the update was skipped, for example because its gradient was NaN
SKIPPED_IN_A_ROW = "skipped_in_a_row"
GRADIENT_NORM = "gradient_norm"  # global, before clipping
LEARNING_RATE = "learning_rate"
UPDATE_STATISTICS = (GRADIENT_NORM, UPDATES, SKIPPED, SKIPPED_IN_A_ROW, LEARNING_RATE)


class Sums:
    """Running sums of named scalars. Each update adds its scalars as one packed vector.

    The sums begin with `totals`, the result of an earlier call of the method `totals`.

    The vectors stay on the device until `totals` fetches the vectors of all updates, so `add` does
    not wait for the device. `totals` adds in float64 and in the order of the updates, so a repeated
    run has bit-identical sums.
    """

    def __init__(self, totals: Mapping[str, float] = {}):
        self._pending: list[tuple[Sequence[str], Any]] = []
        self._totals = {name: float(value) for name, value in totals.items()}

    def add(self, names: Sequence[str], vector) -> None:
        """Adds the values of one update, `(K,)`, or of N updates, `(N, K)`, with K = len(names)."""
        self._pending.append((names, vector))

    def totals(self) -> dict[str, float]:
        """Returns the sums by name, and the last `skipped_in_a_row` and `learning_rate`."""
        for names, vector in self._pending:
            # Split each (K,) or (N, K) array into rows (K,). A tensor on the host is not copied.
            for values in np.atleast_2d(vector).tolist():
                for name, value in zip(names, values, strict=True):
                    is_sum = name not in (SKIPPED_IN_A_ROW, LEARNING_RATE)
                    self._totals[name] = value + (self._totals.get(name, 0.0) if is_sum else 0.0)
        self._pending = []
        return dict(self._totals)


def metrics_from_sums(totals: Mapping[str, float]) -> dict[str, float]:
    """Computes metrics from the sums that `Sums.totals` returns.

    - A sum `X_sum` becomes the mean `X = X_sum / X_weight`, or `X_sum / weight` without one. That
      of `correct_sum` is called `accuracy`. `perplexity` is `exp(nll)`, or infinity from 700 on.
    - `learning_rate` and `skipped` do not change. `updates`, `skipped_in_a_row` and `X_weight` go.
    - Any other sum becomes its mean per update, or per batch in an evaluation: `weight` as
      `tokens`.

    A mean over no tokens or no updates is NaN.
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
        # exp(709.8) is about the largest float64.
        metrics["perplexity"] = math.inf if metrics["nll"] >= 700 else math.exp(metrics["nll"])
    return metrics


class FirstStage:
    """First training stage of `steps` updates, in which only `variables` are trained."""

    def __init__(self, steps: int, variables: Sequence[keras.Variable]):
        self.steps = steps
        self._trained = {id(variable) for variable in variables}

    def trains(self, variable: keras.Variable) -> bool:
        return id(variable) in self._trained

    def contains_step(self, step_count: keras.Variable) -> tf.Tensor:
        """Returns whether update number `step_count`, counted from 0, belongs to this stage."""
        return tf.convert_to_tensor(step_count) < self.steps


Objective = Callable[..., dict[str, tf.Tensor]]


class Updates:
    """Computations that `FitModel` runs inside TensorFlow graphs."""

    def __init__(self, model: Any, first_stage: FirstStage | None):
        self.model = model
        self.strategy = tf.distribute.get_strategy()
        self.first_stage = first_stage
        self._updated_variables: list[keras.Variable] = []

    def test_step(self, batch) -> tf.Tensor:
        """Computes the objective's K sums, `(K,)`, on a batch with `training=False`."""
        return self.model.sums(batch, "test")[1]

    def micro_step(self, batch) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Computes the objective's K sums `(K,)` and the gradients of `loss_sum` on a micro-batch.

        A variable without a gradient is left out, with a warning.
        """
        variables = self.model.network.trainable_variables
        with tf.GradientTape() as tape:
            loss_sum, packed = self.model.sums(batch, "train")
        gradients = tape.gradient(loss_sum, [variable.value for variable in variables])
        unused = [v.path for g, v in zip(gradients, variables, strict=True) if g is None]
        if unused:
            warnings.warn(f"the loss does not depend on {', '.join(unused)}", stacklevel=2)
        pairs = [pair for pair in zip(gradients, variables, strict=True) if pair[0] is not None]
        self._updated_variables = [variable for _, variable in pairs]
        # An embedding's gradient is sparse, but the sum over micro-batches needs a dense tensor.
        return packed, [tf.convert_to_tensor(gradient) for gradient, _ in pairs]

    def on_share(self, step: Callable, batch):
        """Returns `step(batch)`, or zeros of the same shapes if `batch` has no rows.

        Layers may fail on an empty batch, so the step then runs on one row of zeros.
        """
        rows = next(tensor for tensor in tf.nest.flatten(batch) if tensor.shape.rank)
        if self.strategy.num_replicas_in_sync == 1 or rows.shape[0]:
            return step(batch)
        empty = tf.equal(tf.shape(rows)[0], 0)

        def with_extra_row(tensor):
            if not tensor.shape.rank:
                return tensor
            extra_rows = tf.cast(empty, tf.int32)
            if isinstance(tensor, tf.RaggedTensor):
                splits = tensor.row_splits
                splits = tf.concat([splits, splits[-1:][:extra_rows]], 0)
                return tf.RaggedTensor.from_row_splits(tensor.values, splits, validate=False)
            other_paddings = [[0, 0]] * (tensor.shape.rank - 1)
            return tf.pad(tensor, [[0, extra_rows], *other_paddings])

        results = step(tf.nest.map_structure(with_extra_row, batch))
        return tf.cond(
            empty, lambda: tf.nest.map_structure(tf.zeros_like, results), lambda: results
        )

    def update_of(self, micro_step: Callable, batches: Sequence) -> tf.Tensor:
        """Makes one update from micro-batches of equal shapes. Runs inside a replica."""
        sums, gradients = micro_step(batches[0])
        if len(batches) > 1:
            stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts), *batches)

            def body(index, sums, gradients):
                batch = tf.nest.map_structure(lambda tensor: tensor[index], stacked)
                return index + 1, *add_results((sums, gradients), micro_step(batch))

            _, sums, gradients = tf.while_loop(
                lambda index, *_: index < len(batches),
                body,
                (tf.constant(1), sums, gradients),
                maximum_iterations=len(batches) - 1,
            )
        return self.apply(sums, gradients)

    def accumulate(self, micro_step: Callable, iterator) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Sums the results of `micro_step` over the next `accumulation_steps` micro-batches.

        Each replica sums its own shares. The last update of the data may use fewer micro-batches.
        If none is left, the graph raises `tf.errors.OutOfRangeError`.
        """
        sums, gradients = self._run(micro_step, iterator.get_next())

        def body(index, sums, gradients):
            batch = iterator.get_next_as_optional()

            def add():
                results = self._run(micro_step, batch.get_value())
                return self._run(add_results, (sums, gradients), results)

            sums, gradients = tf.cond(batch.has_value(), add, lambda: (sums, gradients))
            return index + 1, sums, gradients

        if self.model.config.accumulation_steps > 1:
            # The loop must read the iterator after every replica's first micro-step. Grappler drops
            # the control edge from the first read, and a lowered loop does not wait for all of its
            # inputs. The loop's counter therefore depends on the sums, through `never`, which is
            # false because no number is both NaN and infinite.
            local_sums = self.strategy.experimental_local_results(sums)
            first_sums = tf.stack([part[0] for part in local_sums])
            never = tf.reduce_any(tf.math.is_nan(first_sums) & tf.math.is_inf(first_sums))
            _, sums, gradients = tf.while_loop(
                lambda index, *_: index < self.model.config.accumulation_steps,
                body,
                (1 + tf.cast(never, tf.int32), sums, gradients),
                parallel_iterations=1,
            )
        return sums, gradients

    def apply(self, sums: tf.Tensor, gradients: list[tf.Tensor]) -> tf.Tensor:
        """Makes one optimizer step from the sums and gradients that each replica accumulated.

        Skips the update if a sum or the gradient is NaN or infinite, or if `weight` is 0. The
        result `(K + 5,)` has K sums with the names `names["train"]`, then `UPDATE_STATISTICS`. A
        skipped update has 0 for the sums and the gradient norm.
        """
        sums, gradients, norm, healthy = self._run(self._mean, sums, gradients)
        optimizer = self.model.optimizer
        learning_rate = tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float32)
        # Decide outside of the replicas, because a collective operation must not run in tf.cond.
        # The values are equal on all replicas.
        local_results = self.strategy.experimental_local_results
        sums, norm, healthy = (local_results(value)[0] for value in (sums, norm, healthy))

        def step(is_first_stage: bool = False):
            self._run(lambda gradients: self._step(gradients, is_first_stage), gradients)
            return tf.constant(0, tf.int64)

        def staged_step():
            is_first_stage = self.first_stage.contains_step(optimizer.iterations)
            return tf.cond(
                local_results(is_first_stage)[0], lambda: step(is_first_stage=True), step
            )

        make_step = staged_step if self.first_stage else step
        in_a_row = tf.cond(healthy, make_step, lambda: self.model.skipped_in_a_row + 1)
        self.model.skipped_in_a_row.assign(in_a_row)
        return update_values(sums, norm, healthy, in_a_row, learning_rate)

    def update_many(self, micro_step: Callable, iterator, count: tf.Tensor) -> tf.Tensor:
        """Makes up to `count` updates in one call: `(N, K + 5)`, the values of `apply`.

        The call ends early after `max_skipped_updates` consecutive skipped updates.
        """
        skipped_index = UPDATE_STATISTICS.index(SKIPPED_IN_A_ROW) - len(UPDATE_STATISTICS)

        def body(index, skipped, values):
            if is_tpu(self.strategy):
                # A TPU runs the whole update as one program, whose batches have static shapes.
                batches = [iterator.get_next() for _ in range(self.model.config.accumulation_steps)]
                update = self._run(lambda *parts: self.update_of(micro_step, parts), *batches)
                update = self.strategy.experimental_local_results(update)[0]
            else:
                update = self.apply(*self.accumulate(micro_step, iterator))
            return index + 1, update[skipped_index], values.write(index, update)

        max_skipped = self.model.config.max_skipped_updates
        done, _, values = tf.while_loop(
            lambda index, skipped, _: (index < count) & (skipped < max_skipped),
            body,
            (tf.constant(0), tf.constant(0.0), tf.TensorArray(tf.float32, size=count)),
            parallel_iterations=1,
        )
        return values.gather(tf.range(done))

    def test(self, test_step: Callable, batch) -> tf.Tensor:
        """Returns `(K + 1,)`: `test_step`'s K sums over the replicas, and the batch count 1."""
        sums = self._run(test_step, batch)
        sums = self.strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)
        return tf.concat([sums, [1.0]], axis=0)

    def _mean(self, sums, gradients) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Returns sums `(K,)` over all replicas, clipped mean gradients, and their norm and health.

        For norm and health, see `TrainedModel.scale`.
        """
        if self.strategy.num_replicas_in_sync > 1:
            # tf.identity, because a loop's output has no device, and the all-reduce needs a device.
            local_tensors = [tf.identity(tensor) for tensor in (sums, *gradients)]
            context = tf.distribute.get_replica_context()
            sums, *gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, local_tensors)
        if self.first_stage:
            # The global gradient norm then includes only the trained variables.
            is_first = self.first_stage.contains_step(self.model.optimizer.iterations)
            kept = tf.where(is_first, 0.0, 1.0)
            gradients = [
                g if self.first_stage.trains(v) else g * tf.cast(kept, g.dtype)
                for g, v in zip(gradients, self._updated_variables, strict=True)
            ]
        factor, norm, healthy = self.model.scale(sums, tf.linalg.global_norm(gradients))
        gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
        return sums, gradients, norm, healthy

    def _step(self, gradients: Sequence[tf.Tensor], is_first_stage: bool) -> None:
        pairs = list(zip(gradients, self._updated_variables, strict=True))
        if is_first_stage:  # weight decay would change the values of untrained variables
            pairs = [pair for pair in pairs if self.first_stage.trains(pair[1])]
        gradients, variables = zip(*pairs, strict=True)
        self.model.optimizer.apply(list(gradients), list(variables))
        if self.model.ema:
            self.model.ema.update(self.model.optimizer.iterations)

    def _run(self, function: Callable, *arguments):
        """Calls `function` on every replica, or calls it once if the code runs inside a replica."""
        context = tf.distribute.get_replica_context()
        if context is not None and context.strategy is self.strategy:  # always without a strategy
            return function(*arguments)
        # A lambda, because strategy.run would trace a tf.function as one graph for all replicas.
        return self.strategy.run(lambda *tensors: function(*tensors), args=arguments)


def update_values(sums, norm, healthy, skipped_in_a_row, learning_rate):
    """Returns an update's K sums, or 0 if it was skipped, and `UPDATE_STATISTICS`, `(K + 5,)`."""
    counted = ops.where(healthy, ops.append(sums, norm), 0.0)
    is_applied, skipped = (ops.cast(value, "float32") for value in (healthy, skipped_in_a_row))
    statistics = [is_applied, 1.0 - is_applied, skipped, learning_rate]
    return ops.concatenate([counted, ops.stack(statistics)])


def add_results(first, second):
    return first[0] + second[0], [g + h for g, h in zip(first[1], second[1], strict=True)]
