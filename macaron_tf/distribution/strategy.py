"""Distribution strategies (one device, several, several machines, a TPU) and their workers."""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.distribution.hosts import leave_at_exit, lost_on_jax
from macaron_tf.errors import UserError, parse_json

STRATEGIES = ("cpu", "one_gpu", "mirrored", "multi_worker", "tpu")


def make_strategy(
    name: str | None = None, tpu: str | None = None, replicas: int | None = None
) -> tf.distribute.Strategy:
    """Makes a distribution strategy by name; call it before TensorFlow computes anything.

    Args:
        name: `"cpu"`; `"one_gpu"`; `"mirrored"`, all GPUs of this machine, or without a GPU several
            logical devices of its CPU; `"multi_worker"`, the processes that the environment
            variable TF_CONFIG names; or `"tpu"`. None: TensorFlow's default, the first GPU or else
            the CPU.
        tpu: name of a Cloud TPU, or `"local"` on a TPU VM; with `"tpu"` only.
        replicas: number of devices of `"mirrored"`; None: all GPUs, or 2 of the CPU.

    Raises:
        UserError: a device is missing, TF_CONFIG is missing or malformed, or an argument belongs to
            another strategy.

    Example:
        strategy = make_strategy("mirrored", replicas=2)
        with strategy.scope():
            model = build_fit_model(network_fn(), objective, config)
    """
    if name is not None and name not in STRATEGIES:
        raise UserError(f"--strategy {name}: give one of {', '.join(STRATEGIES)}")
    if tpu is not None and name != "tpu":
        raise UserError("--tpu names a TPU: give --strategy tpu with it")
    if replicas is not None and (name != "mirrored" or replicas < 1):
        raise UserError(f"--replicas {replicas}: give 1 or more, with --strategy mirrored")
    try:
        if name == "cpu":
            tf.config.set_visible_devices([], "GPU")
        elif name == "one_gpu":
            tf.config.set_visible_devices(_gpus(name, 1), "GPU")
        elif name == "mirrored":
            return _mirrored(replicas)
        elif name == "multi_worker":
            read_cluster()
            return tf.distribute.MultiWorkerMirroredStrategy()
        elif name == "tpu":
            return _tpu(tpu or "local")
    except RuntimeError as error:
        raise UserError(
            f"--strategy {name} comes too late: TensorFlow has initialized its devices ({error}); "
            "make the strategy first"
        ) from error
    return tf.distribute.get_strategy()


def _gpus(name: str, count: int) -> list:
    found = tf.config.list_physical_devices("GPU")
    if len(found) < count:
        raise UserError(
            f"--strategy {name} needs {count} GPU{'s' if count > 1 else ''}, but TensorFlow sees "
            f"{len(found)}: check the driver and CUDA (`nvidia-smi`), or give another strategy"
        )
    return found[:count]


def _mirrored(replicas: int | None) -> tf.distribute.Strategy:
    if tf.config.list_physical_devices("GPU"):
        devices = [f"GPU:{i}" for i in range(len(_gpus("mirrored", replicas or 1)))]
        return tf.distribute.MirroredStrategy(devices if replicas else None)
    replicas = replicas or 2
    cpu = tf.config.list_physical_devices("CPU")[0]
    configuration = [tf.config.LogicalDeviceConfiguration()] * replicas
    if tf.config.get_logical_device_configuration(cpu) != configuration:
        tf.config.set_logical_device_configuration(cpu, configuration)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def read_cluster() -> tuple[list[str], int]:
    """Reads the addresses of the workers from TF_CONFIG, and the number of this worker."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        given = parse_json(text, task=dict, cluster=dict)
        task, addresses = given["task"], list(given["cluster"]["worker"])
        number = int(task["index"])
        whole = task["type"] == "worker" and 0 <= number < len(addresses)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(
            f"--strategy multi_worker reads TF_CONFIG, which is {text!r}: set it, such as to "
            '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
            '"task": {"type": "worker", "index": 0}}'
        )
    return addresses, number


def _tpu(name: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, KeyError, tf.errors.OpError, OSError) as error:
        said = str(error).partition("\n")[0]
        raise UserError(
            f"--tpu {name} cannot be reached ({said}): on a TPU VM give --tpu local and install "
            "tensorflow-tpu, see experiments/cloud/README.md"
        ) from error


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether the devices are a TPU, whose programs need static shapes."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def emulates_bfloat16(strategy: tf.distribute.Strategy, cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Whether the device is a CPU that emulates bfloat16, which is slower than float32.

    False if the system does not tell.
    """
    if keras.backend.backend() == "jax":
        import jax

        elsewhere = jax.default_backend() != "cpu"
    else:
        elsewhere = is_tpu(strategy) or tf.config.get_visible_devices("GPU")
    if elsewhere:
        return False
    try:
        words = set(pathlib.Path(cpuinfo).read_text().split())
    except OSError:
        return False
    return not words & {"avx512_bf16", "amx_bf16", "bf16"}  # the last is ARM's


# Errors when the partner of a collective operation has died; they appear within a minute.
_GONE = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)


class Workers:
    """The worker processes of a strategy.

    There is one, except with `MultiWorkerMirroredStrategy`. On Keras's JAX backend they are JAX's
    processes, see `hosts.join_hosts`.

    Attributes:
        several: whether there is more than one.
        number: number of this worker, from 0.
        count: number of workers.
        chief: whether this is the first worker, which writes logs and checkpoints.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.number, self.count = 0, 1
        if keras.backend.backend() == "jax":
            import jax

            self.number, self.count = jax.process_index(), jax.process_count()
            self.several = self.count > 1
        elif self.several:
            resolver = strategy.cluster_resolver
            self.number = resolver.task_id
            self.count = len(resolver.cluster_spec().as_dict()["worker"])
        self.chief = self.number == 0
        self._summed = tf.function(self._reduced, autograph=False, reduce_retracing=True)

    def totals(self, values: Sequence[float] | np.ndarray) -> list:
        """Sums numbers over all workers; waits for all. Integers up to 2^53 are exact."""
        if not self.several:
            return list(values)
        return self._sums(np.asarray(values, np.float64)).tolist()

    def of_chief(self, values: Sequence[float]) -> list[float]:
        """Returns the chief's numbers on every worker."""
        return self.totals([value if self.chief else 0.0 for value in values])

    def gathered(self, mine: bytes) -> list[bytes]:
        """Gathers the bytes of every worker, in their order."""
        lengths = self.joined(np.array([len(mine)]))
        padded = np.frombuffer(mine.ljust(lengths.max(), b"\0"), np.uint8)
        rows = self.joined(padded).reshape(len(lengths), -1)
        return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]

    def joined(self, mine: np.ndarray) -> np.ndarray:
        """Concatenates arrays `(N, ...)` of equal shape over the workers: `(count N, ...)`."""
        if not self.several:
            return mine
        table = np.zeros((self.count, mine.size))
        table[self.number] = mine.reshape(-1)
        # One dimension, so that all shapes of a rank share a graph. Sums with zeros are exact.
        joined = self._sums(table.reshape(-1)).astype(mine.dtype)
        return joined.reshape(-1, *mine.shape[1:])

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Context that raises a UserError if another worker dies."""
        try:
            yield
        except Exception as error:
            if not self.several:
                raise
            on_jax = keras.backend.backend() == "jax"
            if on_jax:
                leave_at_exit()
            if not (lost_on_jax(error) if on_jax else isinstance(error, _GONE)):
                raise
            raise UserError(
                f"worker {self.number} lost another one: find out why in its output, then give "
                "every worker its command again; they go on from the last checkpoint "
                f"({str(error).splitlines()[0]})"
            ) from error

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Sums float64 values `(N,)` over all workers."""
        if keras.backend.backend() != "jax":
            return self._summed(tf.constant(values)).numpy()
        from jax.experimental import multihost_utils

        # JAX would round float64 to float32, so the bytes are gathered instead.
        rows = multihost_utils.process_allgather(values.view(np.uint8))  # (workers, 8 N)
        return np.ascontiguousarray(rows).view(np.float64).sum(axis=0)

    def _reduced(self, values: tf.Tensor) -> tf.Tensor:
        local = len(self.strategy.extended.worker_devices)

        def contributed() -> tf.Tensor:
            # A worker's first replica contributes the numbers, the others zeros.
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.where(number % local == 0, values, tf.zeros_like(values))

        return self.strategy.reduce("SUM", self.strategy.run(contributed), axis=None)
