"""The model that `fit` trains: a network, an objective, and exact updates over many tokens."""

import contextlib
import warnings
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.ema import ExponentialMovingAverage
from macaron_tf.training.optimizers import make_optimizer
from macaron_tf.training.sums import SKIPPED_IN_A_ROW, UPDATES, Sums, metrics_from_sums
from macaron_tf.training.updates import Objective, Updates


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

    Attributes:
        step: updates done, skipped ones included: the run's clock and its place in the data.
        window: `Sums` of the updates since somebody last reset it.
        returns_logs: `step -> bool`, whether the update that ends at `step` hands its metrics to
            Keras. Keras turns them into Python floats, which waits for the device.
        calls_to_pass: how many of Keras's next steps do nothing: a resumed epoch's earlier updates.
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
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.network = network
        self.objective = objective
        self.ema_decay = ema_decay
        self.max_skipped_updates = max_skipped_updates
        self.updates = Updates(network, objective, accumulation_steps, clip_norm)
        self.step = 0
        self.window = Sums()
        self.returns_logs: Callable[[int], bool] = lambda step: True
        self.calls_to_pass = 0
        self.endless = False
        self._epoch_sums = Sums()

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
            raise ValueError("steps_per_execution above 1 is not supported")
        super().compile(optimizer=optimizer, jit_compile=jit_compile is True, **kwargs)
        self.updates.optimizer = self.optimizer

    @property
    def metrics(self):
        """None of Keras's own: the metrics are ratios of sums, see `get_metrics_result`."""
        return []

    def reset_metrics(self) -> None:
        """Forgets the epoch's sums; Keras calls this as an epoch or an evaluation begins."""
        self._epoch_sums.reset()

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
        self.built = True
        if len(self.trainable_variables) > len(self.network.trainable_variables):
            raise ValueError("the objective has trainable weights; they belong to the network")
        if not self.optimizer.built:
            self.optimizer.build(self.network.trainable_variables)
        if self.ema_decay is not None and self.ema is None:
            self.updates.ema = ExponentialMovingAverage(
                self.network.trainable_variables, self.ema_decay
            )

    def fit(self, x=None, *args, **kwargs):
        """Keras's `fit`, an epoch counted in updates; builds the network on a first batch."""
        if not self.network.built and isinstance(x, tf.data.Dataset):
            for batch in x.take(1):
                self.objective(self.network, _only_inputs(batch), training=False)
        self.prepare()
        if isinstance(x, tf.data.Dataset):
            kwargs.setdefault("shuffle", False)  # Keras would warn that it cannot
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
            return super().evaluate(x, *args, **kwargs)

    def train_step(self, data) -> dict[str, tf.Tensor]:
        """A whole update from one micro-batch; returns its values by name."""
        values = self.updates.apply(*self.updates.micro_step(_only_inputs(data)))
        return dict(zip(self.updates.update_names, tf.unstack(values), strict=True))

    def test_step(self, data) -> dict[str, tf.Tensor]:
        """The objective's sums on a batch, by name."""
        values = self.updates.test_step(_only_inputs(data))
        return dict(zip(self.updates.names["test"], tf.unstack(values), strict=True))

    def make_train_function(self, force: bool = False):
        """`iterator -> logs`: one update a call, its micro-batches drawn inside the graph."""
        if self.train_function is not None and not force:
            return self.train_function
        micro_step = self._graph(
            lambda batch: self.updates.micro_step(_only_inputs(batch)), self.jit_compile
        )
        update = self._graph(
            lambda iterator: self.updates.apply(*self.updates.accumulate(micro_step, iterator))
        )
        update_on_batch = self._graph(lambda batch: self.updates.apply(*micro_step(batch)))

        def train_function(iterator):
            if self.calls_to_pass:
                self.calls_to_pass -= 1
                return {}
            try:
                if isinstance(iterator, tf.data.Iterator):
                    values = update(iterator)
                else:
                    values = update_on_batch(next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                if self.endless:
                    raise UserError(
                        f"the training data ended after step {self.step}: they must repeat "
                        "without end and hold at least one batch"
                    ) from None
                raise
            self.step += 1
            self.window.add(self.updates.update_names, values)
            self._epoch_sums.add(self.updates.update_names, values)
            return self._logs() if self.returns_logs(self.step) else {}

        self.train_function = train_function
        return train_function

    def make_test_function(self, force: bool = False):
        """`iterator -> logs`: one batch a call."""
        if self.test_function is not None and not force:
            return self.test_function
        test_step = self._graph(
            lambda batch: tf.concat([self.updates.test_step(_only_inputs(batch)), [1.0]], axis=0),
            self.jit_compile,
        )
        # Drawn inside the graph: a batch drawn outside has its own shape, and would be traced anew.
        test_step_of = self._graph(lambda iterator: test_step(iterator.get_next()))

        def test_function(iterator):
            if isinstance(iterator, tf.data.Iterator):
                values = test_step_of(iterator)
            else:
                values = test_step(next(iterator))
            self._epoch_sums.add((*self.updates.names["test"], UPDATES), values)
            return self.get_metrics_result()

        self.test_function = test_function
        return test_function

    @contextlib.contextmanager
    def ema_weights(self) -> Iterator[None]:
        """While the context lasts, the network's weights are their moving average, if one is kept.

        Nothing may be trained, or saved for resuming, inside.
        """
        with self.ema.swapped() if self.ema else contextlib.nullcontext():
            yield

    def _graph(self, function: Callable, jit_compile: bool = False) -> Callable:
        if self.run_eagerly:
            return function
        # autograph off: control flow here is tf.cond and tf.while_loop, and objectives are ours.
        return tf.function(
            function, autograph=False, reduce_retracing=True, jit_compile=jit_compile or None
        )

    def _logs(self) -> dict[str, float]:
        totals = self._epoch_sums.totals()
        skipped = totals.get(SKIPPED_IN_A_ROW, 0)
        if self.max_skipped_updates is not None and skipped >= self.max_skipped_updates:
            raise UserError(
                f"{skipped:.0f} updates in a row up to step {self.step} had a NaN or infinite "
                "loss or gradient: lower learning_rate, lengthen warmup_steps or set clip_norm"
            )
        return metrics_from_sums(totals)


def build_fit_model(
    network: keras.Model, objective: Objective, config: TrainingConfig, jit_compile: bool = False
) -> FitModel:
    """A compiled `FitModel` with everything as the configuration says.

    Args:
        network: built, under the dtype policy `config.dtype_policy`.
        objective: see `FitModel`.
        config: the optimizer, its schedule, accumulation, clipping and averaging.
        jit_compile: see `FitModel.compile`.
    """
    model = FitModel(
        network,
        objective,
        accumulation_steps=config.accumulation_steps,
        clip_norm=config.clip_norm,
        ema_decay=config.ema_decay,
        max_skipped_updates=config.max_skipped_updates,
    )
    optimizer = make_optimizer(config, network.trainable_variables)
    model.compile(optimizer=optimizer, jit_compile=jit_compile)
    return model


def _only_inputs(data):
    """Keras hands a batch without targets over as `(x,)` where it came from arrays."""
    return data[0] if isinstance(data, tuple | list) else data
