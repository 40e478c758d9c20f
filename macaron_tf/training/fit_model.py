"""TensorFlow training engine: a Keras model whose `fit` trains a network on an objective."""

import warnings
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from macaron_tf.distribution import distributed, spread_seeds
from macaron_tf.io.progress import Progress
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.keras_optimizers import check_optimizer
from macaron_tf.training.optimizer import make_optimizer
from macaron_tf.training.trained_model import TrainedModel, features, freeze
from macaron_tf.training.updates import (
    UPDATE_STATISTICS,
    UPDATES,
    FirstStage,
    Objective,
    Updates,
    sums_of,
)

_ITERATORS = tf.data.Iterator | tf.distribute.DistributedIterator


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
            metrics (see `metrics_from_sums`). The objective must add the layers' regularization
            losses to `"loss_sum"`, and must not have trainable weights.
        config: training settings; `None` means the defaults. `fit` uses only `steps_per_call` and
            the settings for accumulation, clipping, moving average and skipped updates. The
            function `train` uses all settings. Set `steps_per_call` above 1 if a call of the graph
            is expensive, as on a TPU. Callbacks then run only between calls.
        first_stage: first training stage, which trains only some variables; `None` means that every
            update trains all variables.

    Attributes:
        per_worker_data: whether each worker process provides its own batches (see `distributed`).
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
        self.per_worker_data = False
        self._steps_per_epoch: int | None = None

    def _maybe_symbolic_build(self, *args, **kwargs) -> None:
        """Does nothing. Keras's implementation fails with several workers."""

    def call(self, inputs, training=None):
        return self.network(inputs, training=training)

    def compile(
        self, optimizer="adam", jit_compile: bool | str = False, run_eagerly: bool = False
    ) -> None:
        """Sets the optimizer. Losses and metrics come from the objective.

        Args:
            optimizer: a Keras optimizer, or its name, that does not clip, average or accumulate.
            jit_compile: whether XLA compiles the computation for a micro-batch, once for each batch
                shape. The Keras value `"auto"` means `False`.
            run_eagerly: whether to run without graphs, for debugging.
        """
        optimizer = keras.optimizers.get(optimizer)
        check_optimizer(optimizer.name, optimizer)
        super().compile(optimizer, jit_compile=jit_compile is True, run_eagerly=run_eagerly)
        # `Updates` has already summed the gradients over the replicas. Keras would sum them again.
        self.optimizer._all_reduce_sum_gradients = list

    @property
    def metrics(self):
        """Empty list, because `get_metrics_result` computes the metrics without metric objects."""
        return []

    def prepare(self) -> None:
        """Creates the missing variables of the optimizer and of the moving average."""
        if not self.network.built:
            raise ValueError("the network is not built: call the network once on a batch")
        was_built, self.built = self.built, True
        if len(self.trainable_variables) > len(self.network.trainable_variables):
            raise ValueError("the objective has trainable weights: move the weights to the network")
        super().prepare()
        if not was_built:
            spread_seeds(self.strategy, self.seed_states)

    def fit(self, x=None, *args, **kwargs):
        """Trains like `keras.Model.fit`, except that `steps_per_epoch` counts updates.

        If the network is not built, this method first builds the network on a batch of a dataset.
        """
        self._build_on(x)
        self.prepare()
        self._steps_per_epoch = kwargs.get("steps_per_epoch")
        if isinstance(x, tf.data.Dataset):
            kwargs.setdefault("shuffle", False)  # Keras warns that it cannot shuffle a dataset
            x = distributed(self.strategy, x, self.per_worker_data)
        with warnings.catch_warnings():
            if self._steps_per_epoch is None:
                # With accumulation, Keras would warn that micro-batches outnumber the updates.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
            try:
                return super().fit(x, *args, **kwargs)
            finally:
                # Keras may stop before it has skipped all steps of a call with several updates.
                self.steps_to_skip, self._steps_per_epoch = 0, None

    def evaluate(self, x=None, *args, **kwargs):
        """Evaluates like `keras.Model.evaluate`, except that metrics are weighted means over `x`.

        For example, the loss is the mean over all tokens, not over batches (see
        `metrics_from_sums`).
        """
        self._build_on(x)
        with warnings.catch_warnings():
            if kwargs.get("steps") is None:
                # Keras warns at the end of every dataset of unknown length.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
            if isinstance(x, tf.data.Dataset):
                x = distributed(self.strategy, x)
            with Progress("evaluating"):
                return super().evaluate(x, *args, **kwargs)

    def save(self, filepath, *args, **kwargs) -> None:
        self.network.save(filepath, *args, **kwargs)

    def make_train_function(self, force: bool = False):
        """Returns a function that makes up to `steps_per_call` updates in one call of a graph.

        The function takes an iterator over micro-batches, and returns a dict of metrics, which
        Keras passes to callbacks as logs. After a call that makes n updates, the next n - 1 calls
        do nothing and return {}. The same holds for the first `steps_to_skip` calls.
        """
        if self.train_function is not None and not force:
            return self.train_function
        updates = self.updates
        micro_step = self._graph(
            lambda batch: updates.micro_step(features(batch)), self.jit_compile
        )
        update_many = self._graph(
            lambda iterator, count: updates.update_many(micro_step, iterator, count)
        )
        update_on_batch = self._graph(lambda batch: updates.apply(*micro_step(batch)))

        def train_function(iterator):
            if self.steps_to_skip:
                self.steps_to_skip -= 1
                return {}
            count, iterator = 1, self._divide(iterator)
            try:
                if isinstance(iterator, _ITERATORS):
                    count = max(1, min(self.config.steps_per_call, self._steps_left()))
                    values = update_many(iterator, tf.constant(count))
                    count = len(values)
                else:
                    values = update_on_batch(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                if not self.stops:
                    raise
                raise self._data_ended_error() from None
            # Keras counts this call as one step, so let the next count - 1 steps do nothing.
            self.steps_to_skip = count - 1
            return self._count(count, (*updates.names["train"], *UPDATE_STATISTICS), values)

        self.train_function = train_function
        return train_function

    def make_test_function(self, force: bool = False):
        """Returns a function that evaluates the next batch of an iterator.

        The function returns a dict of the metrics of all batches since the evaluation began.
        """
        if self.test_function is not None and not force:
            return self.test_function
        updates = self.updates
        test_step = self._graph(lambda batch: updates.test_step(features(batch)), self.jit_compile)
        # The graph itself reads the batch. If the batch were an argument, each batch shape would
        # cause a new trace.
        test_next = self._graph(lambda iterator: updates.test(test_step, iterator.get_next()))

        def test_function(iterator):
            iterator = self._divide(iterator)
            if isinstance(iterator, _ITERATORS):
                values = test_next(iterator)
            else:
                values = updates.test(test_step, next(iterator))
            self._epoch_sums.add((*updates.names["test"], UPDATES), values)
            return self.get_metrics_result()

        self.test_function = test_function
        return test_function

    def _build_on(self, x) -> None:
        """Builds the network on the first batch of a dataset, unless the network is built."""
        if not self.network.built and isinstance(x, tf.data.Dataset):
            with self.strategy.scope():
                for batch in x.take(1):
                    sums_of(self.objective, self.network, features(batch), training=False)

    def _divide(self, batches: Iterator):
        """Divides the single batch of `train_on_batch` or `test_on_batch` among the replicas.

        The batches of a dataset stay unchanged, because they are already divided.
        """
        if self.strategy.num_replicas_in_sync == 1 or isinstance(batches, _ITERATORS):
            return batches
        batch = tf.data.Dataset.from_tensors(features(next(batches)))
        return iter(distributed(self.strategy, batch))

    def _graph(self, function: Callable, jit_compile: bool = False) -> Callable:
        if self.run_eagerly:
            return function
        # Without autograph, because all control flow is already tf.cond and tf.while_loop.
        return tf.function(
            function, autograph=False, reduce_retracing=True, jit_compile=jit_compile or None
        )

    def _steps_left(self) -> int:
        """Returns the number of updates until the next multiple of any interval in `stops`.

        If `stops` is empty, the result is the number of updates until the end of the epoch, or 1 if
        the length of the epoch is unknown.
        """
        if self.stops:
            return min(every - self.step % every for every in self.stops)
        if self._steps_per_epoch is None:
            return 1
        return self._steps_per_epoch - (self.step - self._epoch_start)


def build_fit_model(
    network: keras.Model,
    objective: Objective,
    config: TrainingConfig,
    jit_compile: bool = False,
    first_stage: FirstStage | None = None,
) -> FitModel:
    """Builds a compiled `FitModel` for a network that was built under `config.dtype_policy`.

    Args:
        config: training settings, including the optimizer.
        objective, first_stage: see `FitModel`.
        jit_compile: see `FitModel.compile`.
    """
    freeze(network, config, first_stage)
    model = FitModel(network, objective, config, first_stage)
    model.compile(make_optimizer(config, network.trainable_variables), jit_compile)
    return model
