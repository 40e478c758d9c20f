"""TensorFlow training engine, and the function that builds the model for each engine."""

import contextlib
import functools
from collections.abc import Iterator

import keras
import tensorflow as tf

from macaron_tf.distribution import distributed
from macaron_tf.errors import UserError
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.keras_optimizers import check_optimizer
from macaron_tf.training.optimizer import make_optimizer
from macaron_tf.training.trained_model import TrainedModel
from macaron_tf.training.updates import FirstStage, Objective, Updates


class FitModel(TrainedModel, keras.Model):
    """Keras model whose `fit` trains a network on an objective.

    An update reads `accumulation_steps` micro-batches, or fewer at the end of the data. The loss of
    an update is `loss_sum / weight` over all rows of its micro-batches. Four micro-batches of
    unequal sizes therefore give the same update as one batch with all rows. The gradient is summed
    over the micro-batches and then clipped once. An update is skipped, and counted as skipped, if
    its loss or gradient is NaN or infinite, or if its `weight` is 0. `fit` raises `Diverged` after
    `max_skipped_updates` consecutive skipped updates.

    `fit` takes a `tf.data.Dataset` of dicts, or of pairs of a dict and labels. For a dataset with
    shapes `(None, None)`, TensorFlow traces the graph once for all shapes. `save` writes only the
    network, because predictions need neither objective nor optimizer.

    In the scope of a strategy with several replicas, the rows of each micro-batch are divided among
    the replicas. Sums and gradients are added over the replicas before averaging and clipping, so
    the update equals the update on one device.

    Args:
        objective: function `objective(network, batch, training)` that returns a dict of scalar
            float32 sums over the batch. `"loss_sum"` and `"weight"` (the number of predicted tokens
            or examples) are required. Further sums, such as `"nll_sum"` and `"correct_sum"`, become
            metrics (see `metrics_from_sums`). In training, `weight` times the losses of
            `add_loss` and of regularizers is added to `"loss_sum"`. The objective must not have
            trainable weights.
        config: training settings; `None` means the defaults. `fit` uses only `steps_per_call` and
            the settings for accumulation, clipping, moving average and skipped updates. The
            function `train` uses all settings. Set `steps_per_call` above 1 if a call of the graph
            is expensive, as on a TPU. Callbacks then run only between calls.
        first_stage: first training stage, which trains only some variables; `None` means that every
            update trains all variables.
    """

    def __init__(
        self,
        network: keras.Model,
        objective: Objective,
        config: TrainingConfig | None = None,
        first_stage: FirstStage | None = None,
        **kwargs,
    ):
        super().__init__(network, objective, config, **kwargs)
        self.updates = Updates(self, first_stage)
        self.skipped_in_a_row = tf.Variable(0, trainable=False, dtype=tf.int64)

    def call(self, inputs, training=None):
        return self.network(inputs, training=training)

    def compile(self, optimizer="adam", jit_compile: bool | str = False) -> None:
        """Sets the optimizer. Losses and metrics come from the objective.

        `optimizer` must not clip, average or accumulate. With `jit_compile`, XLA compiles the
        computation for a micro-batch, once for each batch shape; `"auto"` means `False`. To run
        without graphs, for debugging, call `tf.config.run_functions_eagerly(True)`.
        """
        optimizer = keras.optimizers.get(optimizer)
        check_optimizer(optimizer.name, optimizer)
        super().compile(optimizer, jit_compile=jit_compile is True)
        # `Updates` has already summed the gradients over the replicas. Keras would sum them again.
        self.optimizer._all_reduce_sum_gradients = list
        updates = self.updates
        # Without autograph, because all control flow is already tf.cond and tf.while_loop.
        graph = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        compiled = functools.partial(graph, jit_compile=self.jit_compile or None)
        micro_step = compiled(lambda batch: updates.on_share(updates.micro_step, batch))
        test_step = compiled(lambda batch: updates.on_share(updates.test_step, batch))
        # The graphs themselves read the batches. If a batch were an argument, each batch shape
        # would cause a new trace.
        self._update = graph(lambda batches, n: updates.update_many(micro_step, batches, n))
        self._test = graph(lambda batches: updates.test(test_step, batches.get_next()))

    def batches(self, dataset: tf.data.Dataset, per_worker: bool = False) -> Iterator:
        return iter(distributed(self.strategy, dataset, per_worker))

    def update(self, batches: Iterator, limit: int = 1) -> tf.Tensor | None:
        try:
            return self._update(batches, tf.constant(min(self.config.steps_per_call, limit)))
        except tf.errors.OutOfRangeError:
            return None

    def test(self, batches: Iterator) -> Iterator[tf.Tensor]:
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                yield self._test(batches)


def build_fit_model(
    network: keras.Model,
    objective: Objective,
    config: TrainingConfig,
    jit_compile: bool = False,
    first_stage: FirstStage | None = None,
) -> TrainedModel:
    """Builds a compiled model for a network that was built under `config.dtype_policy`.

    It is a `FitModel`, or a `JaxModel` on Keras's JAX backend, which always compiles. `config`
    includes the optimizer and the weights to freeze.
    """
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
    if keras.backend.backend() == "jax":
        from macaron_tf.training.jax_model import JaxModel  # needs JAX

        if first_stage is not None:
            raise UserError("first_stage_steps needs TensorFlow: omit --engine jax, or set it to 0")
        return JaxModel(network, objective, config)
    model = FitModel(network, objective, config, first_stage)
    model.compile(make_optimizer(config, network.trainable_variables), jit_compile)
    return model
