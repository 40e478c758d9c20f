"""Distribution strategies for one device, several devices, several machines or a TPU."""

import contextlib
import os
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.distribution.hosts import leave_at_exit, lost_on_jax
from macaron_tf.errors import UserError, first_line, parse_json
from macaron_tf.io.paths import FILE_ERRORS, clear_errors

STRATEGIES = ("cpu", "mirrored", "multi_worker", "tpu")


def make_strategy(
    name: str | None = None, tpu: str | None = None, replicas: int | None = None
) -> tf.distribute.Strategy:
    """Returns a distribution strategy. Call it before TensorFlow computes anything.

    Args:
        name: `"cpu"`, `"mirrored"` (several GPUs of this machine, or logical CPU devices without a
            GPU), `"multi_worker"` (the processes in the environment variable TF_CONFIG) or `"tpu"`.
            `None` means the first GPU, or the CPU.
        tpu: name of a Cloud TPU, or `"local"` on a TPU VM, the default. Only valid for `"tpu"`.
        replicas: number of devices. Only valid for `"mirrored"`. `None` means all GPUs, or two
            logical CPU devices.

    Example:
        strategy = make_strategy("mirrored", replicas=2)
        with strategy.scope():
            model = build_fit_model(network_fn(), objective, config)
    """
    if name is not None and name not in STRATEGIES:
        raise UserError(f"--strategy {name} is unknown: give one of {', '.join(STRATEGIES)}")
    for flag, value, owner in (("tpu", tpu, "tpu"), ("replicas", replicas, "mirrored")):
        if value is not None and name != owner:
            raise UserError(f"--{flag} {value} needs --strategy {owner}: give both or neither")
    try:
        if name == "cpu":
            tf.config.set_visible_devices([], "GPU")
        elif name == "mirrored":
            return _mirrored(replicas)
        elif name == "multi_worker":
            read_cluster()
            return tf.distribute.MultiWorkerMirroredStrategy()
        elif name == "tpu":
            return _tpu(tpu or "local")
    except RuntimeError as error:
        raise UserError(f"--strategy {name} must come before TensorFlow runs ({error})") from error
    return tf.distribute.get_strategy()


def _mirrored(replicas: int | None) -> tf.distribute.Strategy:
    if gpus := tf.config.list_physical_devices("GPU"):
        if replicas and replicas > len(gpus):
            raise UserError(f"--replicas {replicas} exceeds the {len(gpus)} GPUs: give fewer")
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(replicas or len(gpus))])
    replicas = replicas or 2
    cpu = tf.config.list_physical_devices("CPU")[0]
    configuration = [tf.config.LogicalDeviceConfiguration()] * replicas
    if tf.config.get_logical_device_configuration(cpu) != configuration:
        tf.config.set_logical_device_configuration(cpu, configuration)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def read_cluster() -> tuple[list[str], int]:
    """Reads each worker's `host:port`, and the index of this worker, from TF_CONFIG."""
    text = os.environ.get("TF_CONFIG", "")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        config = parse_json(text, task=dict, cluster=dict)
        task, addresses = config["task"], list(config["cluster"]["worker"])
        index = int(task["index"])
        if task["type"] == "worker" and 0 <= index < len(addresses):
            return addresses, index
    example = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    raise UserError(f"TF_CONFIG={text!r} lacks the workers' addresses: set it as {example}")


def _tpu(name: str) -> tf.distribute.Strategy:
    errors = (ValueError, KeyError, *FILE_ERRORS)
    with clear_errors(f"--tpu {name} is unreachable", "name a running TPU", errors):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether the strategy runs on a TPU, which needs static shapes."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


# TensorFlow raises these errors within a minute after a worker in a collective has died.
_LOST_WORKER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)


class Workers:
    """The worker processes of a strategy.

    In TensorFlow, only `MultiWorkerMirroredStrategy` has more than one worker. On Keras's JAX
    backend, the workers are the JAX processes that `hosts.join_hosts` connects.

    Attributes:
        index: index of this worker, from 0.
        chief: whether this is worker 0, which writes logs and checkpoints.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.index, self.count = 0, 1
        if keras.backend.backend() == "jax":
            import jax

            self.index, self.count = jax.process_index(), jax.process_count()
        elif isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            self.index = resolver.task_id
            self.count = resolver.cluster_spec().num_tasks("worker")
        self.several, self.chief = self.count > 1, self.index == 0
        self._summed = tf.function(self._reduce, autograph=False, reduce_retracing=True)

    def totals(self, values: Sequence[float] | np.ndarray) -> list:
        """Sums each element of `values` over all workers, which must all call it, in float64."""
        if not self.several:
            return list(values)
        return self._sums(np.asarray(values, np.float64)).tolist()

    def concatenate(self, array: np.ndarray) -> np.ndarray:
        """Concatenates all workers' arrays `(N, ...)` to `(count * N, ...)`; all must call it."""
        if not self.several:
            return array
        table = np.zeros((self.count, array.size))
        table[self.index] = array.reshape(-1)
        # Flat arrays of any size share one graph. Sums with zeros are exact.
        joined = self._sums(table.reshape(-1)).astype(array.dtype)
        return joined.reshape(-1, *array.shape[1:])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Turns an error in the `with` block into a `UserError` if another worker has died.

        On JAX with several workers, any error makes this process skip JAX's shutdown
        (`leave_at_exit`).
        """
        try:
            yield
        except Exception as error:
            if not self.several:
                raise
            on_jax = keras.backend.backend() == "jax"
            if on_jax:
                leave_at_exit()
            if not (lost_on_jax(error) if on_jax else isinstance(error, _LOST_WORKER)):
                raise
            loss = f"worker {self.index} lost another worker ({first_line(error)})"
            raise UserError(f"{loss}: start all again") from error

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Sums float64 values `(N,)` over all workers."""
        if keras.backend.backend() != "jax":
            return self._summed(tf.constant(values)).numpy()
        from jax.experimental import multihost_utils

        # JAX would round float64 to float32, so the raw bytes are gathered.
        rows = multihost_utils.process_allgather(values.view(np.uint8))  # (workers, 8 N)
        return np.ascontiguousarray(rows).view(np.float64).sum(axis=0)

    def _reduce(self, values: tf.Tensor) -> tf.Tensor:
        local_devices = len(self.strategy.extended.worker_devices)

        def contribute() -> tf.Tensor:
            # The first replica of a worker contributes the values. Its other replicas add zeros.
            replica_index = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.where(replica_index % local_devices == 0, values, tf.zeros_like(values))

        return self.strategy.reduce("SUM", self.strategy.run(contribute), axis=None)
