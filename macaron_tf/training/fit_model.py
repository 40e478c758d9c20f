"""The TensorFlow engine: `fit` trains a network on an objective with exact updates."""

import warnings
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from macaron_tf.distribution import distributed, spread_seeds
from macaron_tf.io.progress import Progress
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import make_optimizer
from macaron_tf.training.trained_model import TrainedModel, features, freeze
from macaron_tf.training.updates import ADDED, UPDATES, FirstStage, Objective, Updates, sums_of

_ITERATORS = tf.data.Iterator | tf.distribute.DistributedIterator


class FitModel(TrainedModel, keras.Model):
    """A Keras model that trains a network on an objective.

    An update reads `accumulation_steps` micro-batches. Its loss is `loss_sum / weight` over all
    their tokens, so that an update over 4 uneven micro-batches equals one over their union. The
    gradient is clipped once, after the micro-batches are summed. An update is skipped and counted
    if its gradient is NaN or infinite, or its weight is 0.

    `fit` counts updates. It takes a `tf.data.Dataset` of dicts, or of pairs of a dict and labels. A
    dataset whose shapes are `(None, None)` is traced once for all shapes. `save` writes the network
    only, which is all that is used after training.

    In the scope of a strategy with several replicas, each micro-batch's rows are divided among the
    replicas. Sums and gradients are added over the replicas before the mean and the clipping, so
    the update equals that on one device.

    Args:
        objective: `objective(network, batch, training) -> dict` of scalar float32 sums over the
            batch: `"loss_sum"`, `"weight"` (the number of tokens) and any others, such as
            `"nll_sum"`, `"correct_sum"`, `"source_tokens"`. `metrics_from_sums` turns them into
            metrics. The objective must add the losses of layers (regularizers) itself, and may
            have no trainable weights of its own.
        config: `train` uses all settings, `fit` by itself only those of an update: accumulation,
            clipping, moving average, skipped updates, and `steps_per_call`. Values above 1 help
            where a call of the graph is expensive, as on a TPU; callbacks run between calls only.
        first_stage: see `FirstStage`; None: every update trains all weights.

    Attributes:
        per_worker_data: whether each worker process brings its own batches, see `distributed`.

    Raises:
        Diverged: by `fit`, if too many updates in a row are skipped.
        UserError: by `fit`, if the data end before the run does.
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
        self.updates = Updates(network, objective, self.config, first_stage)
        self.skipped_in_a_row = self.updates.skipped_in_a_row
        self.per_worker_data = False
        self._steps_per_epoch: int | None = None

    def _maybe_symbolic_build(self, *args, **kwargs) -> None:
        """Does nothing. Keras's method draws a batch and fails on the dicts of several workers."""

    def call(self, inputs, training=None):
        return self.network(inputs, training=training)

    def compile(self, optimizer="adam", jit_compile: bool | str = False, **kwargs) -> None:
        """Sets the optimizer.

        Args:
            optimizer: a Keras optimizer without clipping, averaging or accumulation of its own.
            jit_compile: whether XLA compiles the step of a micro-batch, once for each shape of
                batch. Keras's `"auto"` counts as False.

        Raises:
            ValueError: an argument belongs to this model's configuration or to the objective.
        """
        optimizer = keras.optimizers.get(optimizer)
        clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
        if clips or optimizer.gradient_accumulation_steps or optimizer.use_ema:
            raise ValueError("give clipping, averaging and accumulation to FitModel")
        for name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} is decided by the objective, not by compile()")
        if kwargs.get("steps_per_execution", 1) != 1:
            raise ValueError("give steps_per_call to FitModel, not steps_per_execution")
        super().compile(optimizer=optimizer, jit_compile=jit_compile is True, **kwargs)
        # The gradients are summed over the replicas already; Keras would sum them again.
        self.optimizer._all_reduce_sum_gradients = list
        self.updates.optimizer = self.optimizer

    @property
    def metrics(self):
        """Empty, because metrics are ratios of sums, see `get_metrics_result`."""
        return []

    def prepare(self) -> None:
        """See `TrainedModel.prepare`.

        Raises:
            ValueError: the network is not built, or the objective has weights of its own.
        """
        if not self.network.built:
            raise ValueError("build the network first: call it once on a batch")
        begun, self.built = self.built, True
        if len(self.trainable_variables) > len(self.network.trainable_variables):
            raise ValueError("the objective has trainable weights; they belong to the network")
        super().prepare()
        self.updates.ema = self.ema
        if not begun:
            spread_seeds(self.strategy, self.seed_states)

    def fit(self, x=None, *args, **kwargs):
        """As Keras's `fit`, but `steps_per_epoch` counts updates.

        A network that is not built yet is built on the first batch.
        """
        self._build_on(x)
        self.prepare()
        self._steps_per_epoch = kwargs.get("steps_per_epoch")
        if isinstance(x, tf.data.Dataset):
            kwargs.setdefault("shuffle", False)  # Keras warns that it cannot shuffle a dataset
            x = distributed(self.strategy, x, self.per_worker_data)
        with warnings.catch_warnings():
            if self._steps_per_epoch is None:
                # Keras expects one update for each micro-batch, and warns when they end earlier.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
            try:
                return super().fit(x, *args, **kwargs)
            finally:
                # After a call of several updates, Keras may not have skipped all their steps.
                self.calls_to_pass, self._steps_per_epoch = 0, None

    def evaluate(self, x=None, *args, **kwargs):
        """As Keras's `evaluate`, but means are over tokens, whatever the batches."""
        self._build_on(x)
        with warnings.catch_warnings():
            if kwargs.get("steps") is None:
                # Keras warns at the end of any dataset of unknown length.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
            if isinstance(x, tf.data.Dataset):
                x = distributed(self.strategy, x)
            with Progress("evaluating"):
                return super().evaluate(x, *args, **kwargs)

    def save(self, filepath, *args, **kwargs) -> None:
        """Writes the network, see `keras.Model.save`."""
        self.network.save(filepath, *args, **kwargs)

    def make_train_function(self, force: bool = False):
        """Returns `iterator -> logs`, which makes `steps_per_call` updates in one graph."""
        if self.train_function is not None and not force:
            return self.train_function
        updates = self.updates
        micro_step = self._graph(
            lambda batch: updates.micro_step(features(batch)), self.jit_compile
        )
        several = self._graph(lambda iterator, count: updates.several(micro_step, iterator, count))
        update_on_batch = self._graph(lambda batch: updates.apply(*micro_step(batch)))

        def train_function(iterator):
            if self.calls_to_pass:
                self.calls_to_pass -= 1
                return {}
            count, iterator = 1, self._dealt(iterator)
            try:
                if isinstance(iterator, _ITERATORS):
                    count = max(1, min(self.config.steps_per_call, self._steps_left()))
                    values = several(iterator, tf.constant(count))
                else:
                    values = update_on_batch(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                if not self.stops:
                    raise
                raise self._ended() from None
            # Keras counts a call as one step, so its next count - 1 steps do nothing.
            self.calls_to_pass = count - 1
            return self._count(count, (*updates.names["train"], *ADDED), values)

        self.train_function = train_function
        return train_function

    def make_test_function(self, force: bool = False):
        """Returns `iterator -> logs`, which evaluates one batch."""
        if self.test_function is not None and not force:
            return self.test_function
        updates = self.updates
        test_step = self._graph(lambda batch: updates.test_step(features(batch)), self.jit_compile)
        # The graph draws the batch: one drawn outside would be traced again for each shape.
        test_next = self._graph(lambda iterator: updates.test(test_step, iterator.get_next()))

        def test_function(iterator):
            iterator = self._dealt(iterator)
            if isinstance(iterator, _ITERATORS):
                values = test_next(iterator)
            else:
                values = updates.test(test_step, next(iterator))
            self._epoch_sums.add((*updates.names["test"], UPDATES), values)
            return self.get_metrics_result()

        self.test_function = test_function
        return test_function

    def _build_on(self, x) -> None:
        """Builds the network on the first batch of a dataset if it is not built yet."""
        if not self.network.built and isinstance(x, tf.data.Dataset):
            with self.strategy.scope():
                for batch in x.take(1):
                    sums_of(self.objective, self.network, features(batch), training=False)

    def _dealt(self, batches: Iterator):
        """Divides a single batch, of `train_on_batch` or `test_on_batch`, among the replicas."""
        if self.strategy.num_replicas_in_sync == 1 or isinstance(batches, _ITERATORS):
            return batches
        batch = tf.data.Dataset.from_tensors(features(next(batches)))
        return iter(distributed(self.strategy, batch))

    def _graph(self, function: Callable, jit_compile: bool = False) -> Callable:
        if self.run_eagerly:
            return function
        # autograph off: all control flow is tf.cond and tf.while_loop.
        return tf.function(
            function, autograph=False, reduce_retracing=True, jit_compile=jit_compile or None
        )

    def _steps_left(self) -> int:
        """Updates until the next of `stops`; outside a run until the epoch's end, else 1."""
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
    """Makes a compiled `FitModel` of a network that was built under `config.dtype_policy`.

    Raises:
        UserError: see `freeze`.
    """
    freeze(network, config, first_stage)
    model = FitModel(network, objective, config, first_stage)
    model.compile(make_optimizer(config, network.trainable_variables), jit_compile)
    return model
