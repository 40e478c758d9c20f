"""The JAX engine: trains a network on an objective, on one device or on a mesh."""

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

from macaron_tf.distribution.mesh import Batch, spread, whole
from macaron_tf.errors import UserError
from macaron_tf.io.progress import Progress
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import make_optimizer
from macaron_tf.training.trained_model import TrainedModel, features, freeze
from macaron_tf.training.updates import ADDED, UPDATES, FirstStage, Objective, pack, sums_of

Arrays = list[jax.Array]


class JaxModel(TrainedModel):
    """Makes the updates of `FitModel` on JAX, by two compiled functions.

    The first computes the sums and the gradients of a micro-batch and is compiled once for each
    shape of batch. The second makes an optimizer step from their sum. On a mesh
    (`macaron_tf.distribution.mesh`) the rows of a batch and the weights are sharded over the
    devices, and XLA inserts the collectives. Sums over a batch are then over all devices, and
    dropout is the same on any mesh.

    During an epoch this class holds the variables' values, and each update reuses their memory
    (donation). `synchronize` writes them back to the variables.
    """

    def __init__(self, network: keras.Model, objective: Objective, config: TrainingConfig):
        super().__init__(network, objective, config)
        self.optimizer = make_optimizer(config, network.trainable_variables)
        self.skipped_in_a_row = keras.Variable(0, trainable=False, dtype="int32")
        self.stop_training = False
        # Names of the packed sums of a "train" and a "test" step, set when the step is traced.
        self.names: dict[str, tuple[str, ...]] = {}
        self._held: dict[str, Arrays] | None = None
        self._places: dict[str, list[jax.sharding.Sharding]] = {}  # shardings of the held arrays
        self._micro_step = jax.jit(self._micro_step_of)
        self._test_step = jax.jit(self._test_step_of, out_shardings=(whole(), None))
        self._add = jax.jit(_added, donate_argnums=0)
        self._apply: Callable | None = None

    def variables(self) -> dict[str, list[keras.Variable]]:
        """All variables, grouped by their role in an update."""
        return {
            "trained": self.network.trainable_variables,
            "others": [
                *self.network.non_trainable_variables,
                *self.memory,
                *self.evaluation_memory,
            ],
            "optimizer": self.optimizer.variables,
            "average": self.ema.shadows if self.ema else [],
            "skipped": [self.skipped_in_a_row],
        }

    def synchronize(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            for part, variables in self.variables().items():
                for variable, value in zip(variables, held[part], strict=True):
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
                    # On the host: one process must not compute with arrays of several.
                    scope.add_update((variable, np.asarray(value)))
            yield

    def fit(
        self,
        x: tf.data.Dataset,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        verbose: int = 0,
    ) -> None:
        """As `FitModel.fit`, for an endless dataset; `steps_per_epoch` counts updates."""
        self.prepare()
        self.stop_training = False
        batches = (spread(features(batch)) for batch in x.as_numpy_iterator())
        hooks = keras.callbacks.CallbackList(callbacks, model=self)
        hooks.on_train_begin()
        logs = {}
        for epoch in range(initial_epoch, epochs):
            self.reset_metrics()
            hooks.on_epoch_begin(epoch)
            steps, self.calls_to_pass = range(self.calls_to_pass, steps_per_epoch), 0
            for number in steps:
                hooks.on_train_batch_begin(number)
                values = self.update(batches)
                logs = self._count(1, (*self.names["train"], *ADDED), values)
                if logs:  # a callback may read the weights
                    self.synchronize()
                hooks.on_train_batch_end(number, logs)
                if self.stop_training:
                    break
            hooks.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        hooks.on_train_end(logs)
        self.synchronize()

    def save(self, filepath, *args, **kwargs) -> None:
        """Writes the network, see `keras.Model.save`."""
        self.synchronize()
        self.network.save(filepath, *args, **kwargs)

    def save_weights(self, filepath, *args, **kwargs) -> None:
        """Writes the network's weights, see `keras.Model.save_weights`."""
        self.synchronize()
        self.network.save_weights(filepath, *args, **kwargs)

    def get_weights(self) -> list:
        """The network's weights, see `keras.Model.get_weights`."""
        self.synchronize()
        return self.network.get_weights()

    def set_weights(self, weights) -> None:
        """Replaces the network's weights, see `keras.Model.set_weights`."""
        self.synchronize()
        self.network.set_weights(weights)

    def summary(self, *args, **kwargs) -> None:
        """Prints the network's layers, see `keras.Model.summary`."""
        self.network.summary(*args, **kwargs)

    def evaluate(
        self, x: tf.data.Dataset, verbose: int = 0, return_dict: bool = True
    ) -> dict[str, float]:
        """Computes the metrics on a dataset; means are over tokens, whatever the batches."""
        self.synchronize()
        variables = self.variables()
        trained, others = (_values(variables[part]) for part in ("trained", "others"))
        self.reset_metrics()
        with Progress("evaluating"):
            for batch in x.as_numpy_iterator():
                values, others = self._test_step(trained, others, spread(features(batch)))
                self._epoch_sums.add((*self.names["test"], UPDATES), values)
        return self.get_metrics_result()

    def update(self, batches: Iterator[Batch]) -> jax.Array:
        """Makes one update from the next micro-batches.

        Returns the update's values `(K + 5,)`, see `Updates.apply`.
        """
        held, found = self._hold(), None
        for _ in range(self.config.accumulation_steps):
            batch = next(batches, None)
            if batch is None:
                break
            more, held["others"] = self._micro_step(held["trained"], held["others"], batch)
            found = more if found is None else self._add(found, more)
        if found is None:
            raise self._ended()
        if self._apply is None:
            # The results keep the shardings of the inputs.
            places = {**self._places, "others": []}
            shardings = (places, whole())
            self._apply = jax.jit(self._apply_of, donate_argnums=0, out_shardings=shardings)
        others = held["others"]
        self._held, values = self._apply({**held, "others": []}, *found)
        self._held["others"] = others
        return values

    def lower(self, batch: dict[str, jax.ShapeDtypeStruct]) -> jax.stages.Lowered:
        """Lowers a whole update from one micro-batch for a TPU's compiler, without a TPU."""

        def update(held, batch):
            found, others = self._micro_step_of(held["trained"], held["others"], batch)
            held, values = self._apply_of({**held, "others": []}, *found)
            return {**held, "others": others}, values

        held = self._hold()
        step = jax.jit(update, donate_argnums=0, out_shardings=(self._places, None))
        return step.trace(held, batch).lower(lowering_platforms=("tpu",))

    def _hold(self) -> dict[str, Arrays]:
        """Takes the values of the variables, which this class holds until `synchronize`."""
        if self._held is None:
            self._held = {part: _values(found) for part, found in self.variables().items()}
            self._places = jax.tree.map(lambda value: value.sharding, self._held)
        return self._held

    def _micro_step_of(self, trained: Arrays, others: Arrays, batch: Batch):
        """Sums and gradients of a micro-batch, see `Updates.micro_step`, and updated `others`."""

        def loss(trained: Arrays):
            loss_sum, packed, after = self._sums(trained, others, batch, "train")
            return loss_sum, (packed, after)

        (_, (packed, after)), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        # Gradients have the shardings of their weights.
        gradients = jax.lax.with_sharding_constraint(gradients, self._places["trained"])
        return (packed, gradients), after

    def _test_step_of(self, trained: Arrays, others: Arrays, batch: Batch):
        """The sums of a batch with a 1 appended, `(K + 1,)`, and updated `others`."""
        _, packed, after = self._sums(trained, others, batch, "test")
        return jnp.append(packed, 1.0), after

    def _sums(self, trained: Arrays, others: Arrays, batch: Batch, step: str):
        """`loss_sum`, the packed sums of a "train" or "test" step, and updated `others`."""
        variables = self.variables()
        given = zip(variables["trained"] + variables["others"], trained + others, strict=True)
        with keras.StatelessScope(state_mapping=given) as scope:
            sums = sums_of(self.objective, self.network, batch, training=step == "train")
        self.names[step], packed = pack(sums)
        after = [scope.get_current_value(variable) for variable in variables["others"]]
        return sums["loss_sum"], packed, after

    def _apply_of(self, held: dict[str, Arrays], sums: jax.Array, gradients: Arrays):
        """Takes one optimizer step with an update's sums and gradients, see `Updates.apply`."""
        weight = sums[self.names["train"].index("weight")]
        factor = jnp.where(weight > 0, 1.0 / weight, 0.0)
        squares = [jnp.sum(jnp.square(gradient.astype("float32"))) for gradient in gradients]
        norm = jnp.sqrt(sum(squares)) * factor
        if (most := self.config.clip_norm) is not None:
            factor *= most / jnp.maximum(norm, most)
        healthy = jnp.isfinite(norm) & jnp.all(jnp.isfinite(sums)) & (weight > 0)

        variables = self.variables()
        with keras.StatelessScope(
            state_mapping=zip(variables["optimizer"], held["optimizer"], strict=True)
        ):
            learning_rate = ops.cast(self.optimizer.learning_rate, "float32")

        def take(held):
            parts = ("trained", "optimizer", "average")
            own = [variable for part in parts for variable in variables[part]]
            given = zip(own, [value for part in parts for value in held[part]], strict=True)
            with keras.StatelessScope(state_mapping=given) as scope:
                mean = [gradient * factor.astype(gradient.dtype) for gradient in gradients]
                self.optimizer.apply(mean, variables["trained"])
                if self.ema:
                    self.ema.update(self.optimizer.iterations)
                after = {
                    part: [scope.get_current_value(variable) for variable in variables[part]]
                    for part in parts
                }
            return {**held, **after, "skipped": [jnp.zeros_like(held["skipped"][0])]}

        held = jax.lax.cond(
            healthy, take, lambda held: {**held, "skipped": [held["skipped"][0] + 1]}, held
        )
        taken = healthy.astype("float32")
        counted = jnp.where(healthy, jnp.append(sums, norm), 0.0)
        more = [taken, 1.0 - taken, held["skipped"][0].astype("float32"), learning_rate]
        return held, jnp.concatenate([counted, jnp.stack(more)])


def _values(variables: Sequence[keras.Variable]) -> Arrays:
    return [variable.value for variable in variables]


def _added(one, other):
    """Adds the sums and gradients of two micro-batches."""
    return jax.tree.map(jnp.add, one, other)


def build_jax_model(
    network: keras.Model,
    objective: Objective,
    config: TrainingConfig,
    first_stage: FirstStage | None = None,
) -> JaxModel:
    """Makes a `JaxModel` of a network that was built under `config.dtype_policy`.

    Raises:
        UserError: as for `build_fit_model`, or if there is a first stage.
    """
    if first_stage is not None:
        raise UserError(
            "first_stage_steps: only the TensorFlow engine trains in two stages: leave out "
            "--engine jax, or set first_stage_steps=0"
        )
    freeze(network, config)
    return JaxModel(network, objective, config)
