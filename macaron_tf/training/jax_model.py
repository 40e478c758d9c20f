"""JAX training engine, for one device or a mesh of devices."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import keras
import numpy as np
import tensorflow as tf
from jax import numpy as jnp
from jax.experimental import multihost_utils
from keras import ops

from macaron_tf.distribution.mesh import Batch, replicated_sharding, shard_batch
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import make_optimizer
from macaron_tf.training.trained_model import TrainedModel, features
from macaron_tf.training.updates import Objective, add_results, update_values

Arrays = list[jax.Array]


class JaxModel(TrainedModel):
    """Training model on JAX that makes the same updates as `FitModel`, with the same arguments.

    An update runs compiled functions. One function computes the sums and gradients of a
    micro-batch, and is compiled once for each batch shape. Another function adds the results of two
    micro-batches. The last function makes an optimizer step from the summed gradients.

    On a mesh (`macaron_tf.distribution.mesh`), the weights and the rows of a batch are sharded over
    the devices, and XLA inserts the collectives. Sums over a batch then include all devices.
    Dropout does not depend on the mesh.

    During an epoch, this class holds the variables' values as JAX arrays, and each update reuses
    the arrays' memory (buffer donation). `synchronize` writes the values back to the variables.
    """

    def __init__(self, network: keras.Model, objective: Objective, config: TrainingConfig):
        super().__init__(network, objective, config)
        self.optimizer = make_optimizer(config, network.trainable_variables)
        self.skipped_in_a_row = keras.Variable(0, trainable=False, dtype="int32")
        self._arrays: dict[str, Arrays] | None = None
        self._shardings: dict[str, list[jax.sharding.Sharding]] = {}  # shardings of `_arrays`
        self._micro_step = jax.jit(self._micro_step_of)
        self._test_step = jax.jit(self._test_step_of, out_shardings=(replicated_sharding(), None))
        self._add = jax.jit(add_results, donate_argnums=0)
        self._apply: Callable | None = None

    def variables(self) -> dict[str, list[keras.Variable]]:
        """Returns all variables that an update or an evaluation reads.

        The five lists are `"trained"`, `"others"` (non-trainable), `"optimizer"`, `"average"`
        (moving average of the weights) and `"skipped"` (counter of consecutive skipped updates).
        """
        memory = [*self.memory, *self.evaluation_memory]
        return {
            "trained": self.network.trainable_variables,
            "others": [*self.network.non_trainable_variables, *memory],
            "optimizer": self.optimizer.variables,
            "average": self.ema.shadows if self.ema else [],
            "skipped": [self.skipped_in_a_row],
        }

    def synchronize(self) -> None:
        if self._arrays is not None:
            arrays, self._arrays = self._arrays, None
            for part, variables in self.variables().items():
                for variable, value in zip(variables, arrays[part], strict=True):
                    variable.assign(value)

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        self.synchronize()
        with keras.StatelessScope() as scope:
            for variable in itertools.chain(*self.variables().values()):
                value = variable.value
                if value.is_fully_addressable:
                    continue
                if not value.is_fully_replicated:
                    value = multihost_utils.process_allgather(value, tiled=True)
                if jax.process_index() == 0:
                    # Copy to the host: one process cannot compute with an array of all processes.
                    scope.add_update((variable, np.asarray(value)))
            yield

    def batches(self, dataset: tf.data.Dataset, per_worker: bool = False) -> Iterator[Batch]:
        return (shard_batch(features(batch)) for batch in dataset.as_numpy_iterator())

    def test(self, batches: Iterator[Batch]) -> Iterator[jax.Array]:
        variables = self.variables()
        trained, others = (_values(variables[part]) for part in ("trained", "others"))
        for batch in batches:
            values, others = self._test_step(trained, others, batch)
            yield values

    def update(self, batches: Iterator[Batch], limit: int = 1) -> jax.Array | None:
        arrays, accumulated = self._current_arrays(), None
        for _ in range(self.config.accumulation_steps):
            batch = next(batches, None)
            if batch is None:
                break
            results, arrays["others"] = self._micro_step(arrays["trained"], arrays["others"], batch)
            accumulated = results if accumulated is None else self._add(accumulated, results)
        if accumulated is None:
            return None
        if self._apply is None:
            # The outputs have the same shardings as the inputs.
            output_shardings = ({**self._shardings, "others": []}, replicated_sharding())
            self._apply = jax.jit(self._apply_of, donate_argnums=0, out_shardings=output_shardings)
        others = arrays["others"]
        self._arrays, values = self._apply({**arrays, "others": []}, *accumulated)
        self._arrays["others"] = others
        return values

    def lower(self, batch: dict[str, jax.ShapeDtypeStruct]) -> jax.stages.Lowered:
        """Lowers an update of one micro-batch to StableHLO for TPUs. No TPU is needed."""

        def update(arrays, batch):
            results, others = self._micro_step_of(arrays["trained"], arrays["others"], batch)
            arrays, values = self._apply_of({**arrays, "others": []}, *results)
            return {**arrays, "others": others}, values

        arrays = self._current_arrays()
        step = jax.jit(update, donate_argnums=0, out_shardings=(self._shardings, None))
        return step.trace(arrays, batch).lower(lowering_platforms=("tpu",))

    def _current_arrays(self) -> dict[str, Arrays]:
        """Returns the current values of all variables, which after an update only `_arrays` has."""
        if self._arrays is None:
            self._arrays = {
                part: _values(variables) for part, variables in self.variables().items()
            }
            self._shardings = jax.tree.map(lambda value: value.sharding, self._arrays)
        return self._arrays

    def _micro_step_of(self, trained: Arrays, others: Arrays, batch: Batch):
        """Returns the packed sums `(K,)` and the gradients of a micro-batch, and new `others`."""

        def loss(trained: Arrays):
            loss_sum, packed, new_others = self._sums(trained, others, batch, "train")
            return loss_sum, (packed, new_others)

        (_, (packed, new_others)), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        # Shard each gradient in the same way as its weight.
        gradients = jax.lax.with_sharding_constraint(gradients, self._shardings["trained"])
        return (packed, gradients), new_others

    def _test_step_of(self, trained: Arrays, others: Arrays, batch: Batch):
        """Returns an evaluation batch's K sums and count 1, `(K + 1,)`, and new `others`."""
        _, packed, new_others = self._sums(trained, others, batch, "test")
        return jnp.append(packed, 1.0), new_others

    def _sums(self, trained: Arrays, others: Arrays, batch: Batch, step: str):
        """Returns `loss_sum` and the packed sums `(K,)` of a batch, and new values of `others`."""
        variables = self.variables()
        state_mapping = zip(
            variables["trained"] + variables["others"], trained + others, strict=True
        )
        with keras.StatelessScope(state_mapping=state_mapping, collect_losses=True) as scope:
            loss_sum, packed = self.sums(batch, step)
        new_others = [scope.get_current_value(variable) for variable in variables["others"]]
        return loss_sum, packed, new_others

    def _apply_of(self, arrays: dict[str, Arrays], sums: jax.Array, gradients: Arrays):
        """Makes an optimizer step like `Updates.apply`, and also returns the new `arrays`."""
        squares = [jnp.sum(jnp.square(gradient.astype("float32"))) for gradient in gradients]
        factor, norm, healthy = self.scale(sums, jnp.sqrt(sum(squares)))
        variables = self.variables()
        state_mapping = zip(variables["optimizer"], arrays["optimizer"], strict=True)
        with keras.StatelessScope(state_mapping=state_mapping):
            learning_rate = ops.cast(self.optimizer.learning_rate, "float32")

        def apply_update(arrays):
            parts = ("trained", "optimizer", "average")
            flat = ([item for part in parts for item in of[part]] for of in (variables, arrays))
            state_mapping = zip(*flat, strict=True)
            with keras.StatelessScope(state_mapping=state_mapping) as scope:
                mean = [gradient * factor.astype(gradient.dtype) for gradient in gradients]
                self.optimizer.apply(mean, variables["trained"])
                if self.ema:
                    self.ema.update(self.optimizer.iterations)
                current = scope.get_current_value
                new_values = {part: list(map(current, variables[part])) for part in parts}
            return {**arrays, **new_values, "skipped": [jnp.zeros_like(arrays["skipped"][0])]}

        arrays = jax.lax.cond(
            healthy,
            apply_update,
            lambda arrays: {**arrays, "skipped": [arrays["skipped"][0] + 1]},
            arrays,
        )
        values = update_values(sums, norm, healthy, arrays["skipped"][0], learning_rate)
        return arrays, values[None]


def _values(variables: Sequence[keras.Variable]) -> Arrays:
    return [variable.value for variable in variables]
