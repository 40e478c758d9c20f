"""Which devices train: one, several of a machine, several machines, or a TPU."""

import json
import os

import tensorflow as tf

from macaron_tf.errors import UserError

STRATEGIES = ("cpu", "one_gpu", "mirrored", "multi_worker", "tpu")


def make_strategy(
    name: str | None = None, tpu: str | None = None, replicas: int | None = None
) -> tf.distribute.Strategy:
    """The strategy of that name; call it before TensorFlow computes anything.

    Args:
        name: `"cpu"`; `"one_gpu"`; `"mirrored"`, all of this machine's GPUs, or its CPU taken for
            several devices where it has none; `"multi_worker"`, this process among those that the
            environment variable TF_CONFIG names; `"tpu"`. None = TensorFlow's own choice, the
            first GPU or else the CPU.
        tpu: name of a Cloud TPU, or `"local"` on a TPU VM; with `"tpu"` only.
        replicas: how many devices `"mirrored"` takes; None = all GPUs, or 2 of the CPU.

    Raises:
        UserError: a device that is not there, a TF_CONFIG that is missing or cannot be read, an
            argument of another strategy.

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
            _check_cluster()
            return tf.distribute.MultiWorkerMirroredStrategy()
        elif name == "tpu":
            return _tpu(tpu or "local")
    except RuntimeError as error:
        raise UserError(
            f"--strategy {name} comes too late: TensorFlow has its devices already ({error}); "
            "make the strategy first"
        ) from error
    return tf.distribute.get_strategy()


def _gpus(name: str, count: int) -> list:
    found = tf.config.list_physical_devices("GPU")
    if len(found) < count:
        raise UserError(
            f"--strategy {name} wants {count} GPU{'s' if count > 1 else ''} and TensorFlow sees "
            f"{len(found)}: check the driver and CUDA (`nvidia-smi`), or take another strategy"
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


def _check_cluster() -> None:
    example = (
        '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise UserError(f"--strategy multi_worker reads TF_CONFIG: set it, such as to {example}")
    try:
        given = json.loads(text)
        workers, task = given["cluster"]["worker"], given["task"]
        whole = task["type"] == "worker" and 0 <= int(task["index"]) < len(workers)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise UserError(f"TF_CONFIG is {text!r}: it must look like {example}")


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
    """Whether a strategy is a TPU's, whose programs want static shapes."""
    return isinstance(strategy, tf.distribute.TPUStrategy)
