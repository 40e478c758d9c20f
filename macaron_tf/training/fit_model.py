"""The model that `fit` trains: a network, an objective, and exact updates over many tokens."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import keras
import tensorflow as tf

from macaron_tf.distribution.replicas import distributed, spread_seeds
from macaron_tf.errors import UserError
from macaron_tf.training.optimizer import ExponentialMovingAverage
from macaron_tf.training.updates import (
    SKIPPED_IN_A_ROW,
    UPDATES,
    Objective,
    Sums,
    Updates,
    metrics_from_sums,
)


class FitModel(keras.Model):
    """A network and its objective, made ready for `fit`.

    An update takes `accumulation_steps` micro-batches. Its loss is `loss_sum / weight` over all of
    their tokens, so that an update over 4 uneven micro-batches equals one over their union; its
    gradient likewise, and only the whole gradient is clipped. An update whose gradient is NaN or
    infinite, or whose weight is 0, changes nothing and is counted.

    `fit` counts updates. It takes any `tf.data.Dataset` of dicts; a dataset whose shapes are
    `(None, None)` is traced once for all of them (see `traces`).

    Args:
        network: the Keras model that is trained.
        objective: `objective(network, batch, training) -> dict` of scalar float32 sums over the
            batch: `"loss_sum"`, `"weight"` (how many tokens were summed) and any others, such as
            `"nll_sum"`, `"correct_sum"`, `"source_tokens"`; see `sums.metrics_from_sums` for how
            they become metrics. Losses that layers add (regularizers) are the objective's to add;
            weights to train belong to the network.
        accumulation_steps: micro-batches in one update.
        clip_norm: greatest global norm of the update's gradient; None = no clipping.
        ema_decay: decay of the moving average of the weights; None = none is kept.
        max_skipped_updates: so many skipped updates in a row stop the run; None = never.
        steps_per_call: greatest number of updates in one call of the graph; the host sees, and may
            do something, between calls only. More than 1 where a call costs, as on a TPU.

    Made in the scope of a strategy of several replicas, an update takes the rows of each
    micro-batch from all of them: its sums and its gradient are added up over the replicas before
    the mean is taken and the gradient clipped, so that it is the same update as on one device.

    Attributes:
        step: updates done, skipped ones included: the run's clock and its place in the data.
        window: `Sums` of the updates since somebody last reset it.
        returns_logs: `step -> bool`, whether the update that ends at `step` hands its metrics to
            Keras. Keras turns them into Python floats, which waits for the device.
        calls_to_pass: how many of Keras's next steps do nothing: a resumed epoch's earlier updates.
        steps_left: `step -> int`, how many updates may follow before somebody wants to look; the
            rest of the epoch, where its length is known.
        per_worker_data: each worker process brings batches of its own, see `distributed`.
        endless: whether data that end are an error rather than the end of the epoch.

    Raises:
        UserError: in `fit`: too many skipped updates in a row; data that end though `endless`.
    """

    def __init__(
        self,
        network: keras.Model,
        objective: Objective,
        accumulation_steps: int = 1,
        clip_norm: float | None = None,
        ema_decay: float | None = None,
        max_skipped_updates: int | None = 10,
        steps_per_call: int = 1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.network = network
        self.objective = objective
        self.ema_decay = ema_decay
        self.max_skipped_updates = max_skipped_updates
        self.updates = Updates(network, objective, accumulation_steps, clip_norm)
        self.steps_per_call = steps_per_call
        self.step = 0
        self.window = Sums()
        self.returns_logs: Callable[[int], bool] = lambda step: True
        self.calls_to_pass = 0
        self.steps_left: Callable[[int], int] = self._left_in_epoch
        self.per_worker_data = False
        self.endless = False
        self._epoch_sums = Sums()
        self._epoch_start = 0
        self._steps_per_epoch: int | None = None

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches in one update."""
        return self.updates.accumulation_steps

    @property
    def ema(self) -> ExponentialMovingAverage | None:
        """The moving average of the weights, if one is kept."""
        return self.updates.ema

    @property
    def traces(self) -> dict[str, int]:
        """How often the `"train"` and the `"test"` step were traced."""
        return self.updates.traces

    def _maybe_symbolic_build(self, *args, **kwargs) -> None:
        """Nothing: Keras would draw a batch to build by, and fails on several workers' dicts."""

    def call(self, inputs, training=None):
        return self.network(inputs, training=training)

    def compile(self, optimizer="adam", jit_compile: bool | str = False, **kwargs) -> None:
        """Sets the optimizer; XLA only where asked for (Keras's `"auto"` counts as not).

        Args:
            optimizer: a Keras optimizer without clipping, averaging or accumulation of its own.
            jit_compile: compile the micro-batch with XLA; anew for every shape of batch.

        Raises:
            ValueError: the optimizer or the arguments ask for what is this model's to do.
        """
        optimizer = keras.optimizers.get(optimizer)
        for name in ("clipnorm", "global_clipnorm", "clipvalue", "gradient_accumulation_steps"):
            if getattr(optimizer, name, None):
                raise ValueError(f"give clipping and accumulation to FitModel, not {name}")
        if getattr(optimizer, "use_ema", False):
            raise ValueError("give ema_decay to FitModel instead of use_ema to the optimizer")
        for name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
            if kwargs.get(name) is not None:
                raise ValueError(f"{name} is decided by the objective, not by compile()")
        if kwargs.get("steps_per_execution", 1) != 1:
            raise ValueError("give steps_per_call to FitModel, not steps_per_execution")
        super().compile(optimizer=optimizer, jit_compile=jit_compile is True, **kwargs)
        # Keras's would sum the gradients over the replicas again; ours are summed, and clipped.
        self.optimizer._all_reduce_sum_gradients = list
        self.updates.optimizer = self.optimizer

    @property
    def metrics(self):
        """None of Keras's own: the metrics are ratios of sums, see `get_metrics_result`."""
        return []

    def reset_metrics(self) -> None:
        """Forgets the epoch's sums; Keras calls this as an epoch or an evaluation begins."""
        self._epoch_sums.reset()
        self._epoch_start = self.step

    def get_metrics_result(self) -> dict[str, float]:
        """The metrics of the epoch or the evaluation so far."""
        return metrics_from_sums(self._epoch_sums.totals())

    def prepare(self) -> None:
        """Makes the optimizer's and the average's variables, once the network is built.

        Raises:
            ValueError: the network is not built, or the objective has weights of its own.
        """
        if not self.network.built:
            raise ValueError("build the network first: call it once on a batch")
        begun, self.built = self.built, True
        if len(self.trainable_variables) > len(self.network.trainable_variables):
            raise ValueError("the objective has trainable weights; they belong to the network")
        with self.updates.strategy.scope() if self.updates.replicas > 1 else nullcontext():
            if not self.optimizer.built:
                self.optimizer.build(self.network.trainable_variables)
            if self.ema_decay is not None and self.ema is None:
                self.updates.ema = ExponentialMovingAverage(
                    self.network.trainable_variables, self.ema_decay
                )
        if not begun:
            spread_seeds(self.updates.strategy, self.seed_states)

    def fit(self, x=None, *args, **kwargs):
        """Keras's `fit`, an epoch counted in updates; builds the network on a first batch."""
        if not self.network.built and isinstance(x, tf.data.Dataset):
            for batch in x.take(1):
                self.objective(self.network, _only_inputs(batch), training=False)
        self.prepare()
        self._steps_per_epoch = kwargs.get("steps_per_epoch")
        if isinstance(x, tf.data.Dataset):
            kwargs.setdefault("shuffle", False)  # Keras would warn that it cannot
            x = distributed(self.updates.strategy, x, self.per_worker_data)
        with warnings.catch_warnings():
            if self.accumulation_steps > 1 and kwargs.get("steps_per_epoch") is None:
                # Keras expects as many updates as the dataset has micro-batches.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
            return super().fit(x, *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        """Keras's `evaluate`; the means are over tokens, however they fall into batches."""
        with warnings.catch_warnings():
            if kwargs.get("steps") is None:
                # Keras warns at the end of any dataset that does not know its length.
                warnings.filterwarnings("ignore", message="Your input ran out of data")
            if isinstance(x, tf.data.Dataset):
                x = distributed(self.updates.strategy, x)
            return super().evaluate(x, *args, **kwargs)

    @property
    def seed_states(self) -> list[keras.Variable]:
        """The states of the network's random number generators, in order."""
        weights = {id(weight) for weight in self.network.weights}
        return [v for v in self.network.variables if id(v) not in weights]

    def train_step(self, data) -> dict[str, tf.Tensor]:
        """A whole update from one micro-batch; returns its values by name."""
        values = self.updates.apply(*self.updates.micro_step(_only_inputs(data)))
        return dict(zip(self.updates.update_names, tf.unstack(values), strict=True))

    def test_step(self, data) -> dict[str, tf.Tensor]:
        """The objective's sums on a batch, by name."""
        values = self.updates.test_step(_only_inputs(data))
        return dict(zip(self.updates.names["test"], tf.unstack(values), strict=True))

    def make_train_function(self, force: bool = False):
        """`iterator -> logs`: some updates a call, their micro-batches drawn inside the graph."""
        if self.train_function is not None and not force:
            return self.train_function
        micro_step = self._graph(
            lambda batch: self.updates.micro_step(_only_inputs(batch)), self.jit_compile
        )
        updates = self.updates
        several = self._graph(
            lambda iterator, count: updates.several(
                lambda: updates.update(micro_step, iterator), count
            )
        )
        update_on_batch = self._graph(lambda batch: updates.apply(*micro_step(batch)))

        def train_function(iterator):
            if self.calls_to_pass:
                self.calls_to_pass -= 1
                return {}
            count = 1
            try:
                if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
                    count = max(1, min(self.steps_per_call, self.steps_left(self.step)))
                    values = several(iterator, tf.constant(count))
                else:
                    values = update_on_batch(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                if self.endless:
                    raise UserError(
                        f"the training data ended after step {self.step}: they must repeat "
                        "without end and hold at least one batch"
                    ) from None
                raise
            # Keras counts a call as one of its steps: the rest of this one's are passed over.
            self.calls_to_pass = count - 1
            self.step += count
            self.window.add(updates.update_names, values)
            self._epoch_sums.add(updates.update_names, values)
            return self._logs() if self.returns_logs(self.step) else {}

        self.train_function = train_function
        return train_function

    def make_test_function(self, force: bool = False):
        """`iterator -> logs`: one batch a call."""
        if self.test_function is not None and not force:
            return self.test_function
        test_step = self._graph(
            lambda batch: self.updates.test_step(_only_inputs(batch)), self.jit_compile
        )
        # Drawn inside the graph: a batch drawn outside has its own shape, and would be traced anew.
        test_step_of = self._graph(
            lambda iterator: self.updates.test(test_step, iterator.get_next())
        )

        def test_function(iterator):
            if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
                values = test_step_of(iterator)
            else:
                values = self.updates.test(test_step, next(iterator))
            self._epoch_sums.add((*self.updates.names["test"], UPDATES), values)
            return self.get_metrics_result()

        self.test_function = test_function
        return test_function

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        """While the context lasts, the network's weights are their moving average, if one is kept.

        Nothing may be trained, or saved for resuming, inside.
        """
        with self.ema.swapped() if self.ema else nullcontext():
            yield

    def _graph(self, function: Callable, jit_compile: bool = False) -> Callable:
        if self.run_eagerly:
            return function
        # autograph off: control flow here is tf.cond and tf.while_loop, and objectives are ours.
        return tf.function(
            function, autograph=False, reduce_retracing=True, jit_compile=jit_compile or None
        )

    def _left_in_epoch(self, step: int) -> int:
        if self._steps_per_epoch is None:
            return 1
        return self._steps_per_epoch - (step - self._epoch_start)

    def _logs(self) -> dict[str, float]:
        totals = self._epoch_sums.totals()
        skipped = totals.get(SKIPPED_IN_A_ROW, 0)
        if self.max_skipped_updates is not None and skipped >= self.max_skipped_updates:
            raise UserError(
                f"{skipped:.0f} updates in a row up to step {self.step} had a NaN or infinite "
                "loss or gradient: lower learning_rate, lengthen warmup_steps or set clip_norm"
            )
        return metrics_from_sums(totals)


def _only_inputs(data):
    """Keras hands a batch without targets over as `(x,)` where it came from arrays."""
    return data[0] if isinstance(data, tuple | list) else data
