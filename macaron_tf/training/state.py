"""Saves the state of a run in a checkpoint, and restores it to the bit."""

import dataclasses
import json
import math
import os
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.distribution import Workers
from macaron_tf.errors import UserError, needed
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import checkpoints
from macaron_tf.training.trained_model import TrainedModel


@dataclasses.dataclass
class RunState:
    """The part of a run's state that is not in variables.

    Attributes:
        elapsed_seconds: wall-clock time of the run so far, without pauses between sessions.
        best_score: best validation score so far; None before the first validation.
        best_step: step of the best score.
        rounds_without_improvement: validations since the best score.
        validated_at: step of the last validation; 0 before the first.
    """

    elapsed_seconds: float = 0.0
    best_score: float | None = None
    best_step: int | None = None
    rounds_without_improvement: int = 0
    validated_at: int = 0


def joined_memory(model: TrainedModel, workers: Workers) -> dict[str, np.ndarray]:
    """Collects the memory variables of all workers' replicas, in order.

    Every worker must call it.
    """
    model.synchronize()
    if keras.backend.backend() == "jax":  # whole in every process
        return {name: np.array(v) for name, v in _memory_variables(model).items()}
    return {
        name: workers.joined(np.concatenate([np.array(copy) for copy in _copies(model, variable)]))
        for name, variable in _memory_variables(model).items()
    }


def write_checkpoint(
    directory: epath.Path, model: TrainedModel, state: RunState, memory: dict[str, np.ndarray]
) -> None:
    """Writes weights and state into an empty local directory, for `CheckpointDirectory.save`.

    Args:
        memory: the result of `joined_memory`.
    """
    host = {"step": model.step, "window": model.window.totals(), "run": dataclasses.asdict(state)}
    arrays = {name: np.array(variable) for name, variable in model.state_variables().items()}
    arrays |= memory
    arrays["host"] = np.frombuffer(json.dumps(host).encode(), np.uint8)
    weights = [w for w in model.network.weights for _ in range(2 if model.ema else 1)]
    require_room(directory, weights, arrays.values())
    model.network.save_weights(str(directory / checkpoints.WEIGHTS))
    if model.ema:
        with model.ema_weights():
            model.network.save_weights(str(directory / checkpoints.EMA_WEIGHTS))
    np.savez(directory / checkpoints.STATE, **arrays)


def require_room(
    directory: epath.Path, weights: Iterable[keras.Variable], arrays: Iterable[np.ndarray] = ()
) -> None:
    """Raises an OSError if the disk has no room for files of these weights and arrays.

    Without this check HDF5 crashes the process (SIGSEGV) when it closes a file on a full disk.
    """
    sizes = [tf.as_dtype(weight.dtype).size * math.prod(weight.shape) for weight in weights]
    sizes += [array.nbytes for array in arrays]
    # 4 KB for each array's header; in a small model headers outweigh the numbers.
    storage.require_room(directory, sum(sizes) + 4096 * len(sizes))


def save_weights(layer: keras.layers.Layer, file: epath.Path) -> None:
    """Writes the weights of a layer or model into a local file, .safetensors or .weights.h5."""
    if file.suffix != ".safetensors":
        keras.saving.save_weights(layer, str(file))
        return
    with needed(f"writing {file.name}"):
        import safetensors.numpy
    arrays = {weight.path: keras.ops.convert_to_numpy(weight) for weight in layer.weights}
    # Keras numbers names within a process: another process finds the weights by their order.
    safetensors.numpy.save_file(arrays, file, {"order": json.dumps([*arrays])})


def load_weights(layer: keras.layers.Layer, file: epath.Path) -> None:
    """Reads weights that `save_weights` wrote, from disk or from a bucket."""
    with storage.local_copy(file) as copy:
        if copy.suffix != ".safetensors":
            keras.saving.load_weights(layer, copy)
            return
        with needed(f"reading {file}"):
            import safetensors
        with safetensors.safe_open(copy, "numpy") as arrays:
            order = json.loads(arrays.metadata()["order"])
            for weight, name in zip(layer.weights, order, strict=True):
                weight.assign(arrays.get_tensor(name))


def weight_table(network: keras.Model) -> list[str]:
    """Lists `"path (shape)"` of every weight in order; paths begin with the network's name."""
    # Weights of an encoder inside a classifier have the classifier's name first.
    outer, slash, _ = network.path.rpartition("/")
    within = outer + slash
    return [f"{w.path.removeprefix(within)} {tuple(w.shape)}" for w in network.weights]


def restore_checkpoint(
    checkpoint: str | os.PathLike, model: TrainedModel, vocabulary_hash: str, workers: Workers
) -> RunState:
    """Restores weights, optimizer, random states and step of a compiled, prepared model.

    Raises:
        UserError: the checkpoint is damaged, or of another vocabulary, model or optimizer.
    """
    load_network(checkpoint, model.network, vocabulary_hash, average=False)
    path = storage.as_path(checkpoint) / checkpoints.STATE
    with storage.local_copy(path) as copy, np.load(copy) as arrays:
        variables, memory = model.state_variables(), _memory_variables(model)
        if {*variables, *memory} != set(arrays.files) - {"host"}:
            raise UserError(
                f"{checkpoint} was written with another optimizer, dropout, ema_decay or memory: "
                "use the settings it was started with, or another run directory"
            )
        for name, variable in variables.items():
            _check_shape(checkpoint, name, arrays[name], variable.shape, "settings")
        for name, variable in variables.items():
            variable.assign(arrays[name])
        for name, variable in memory.items():
            copies = _copies(model, variable)
            on_jax = keras.backend.backend() == "jax"
            number, processes = (0, 1) if on_jax else (workers.number, workers.count)
            first, count = number * len(copies), processes * len(copies)
            shape = (count * variable.shape[0], *variable.shape[1:])
            _check_shape(
                checkpoint, name, arrays[name], shape, "batch_size, memory_length and devices"
            )
            shares = np.split(arrays[name], count)[first : first + len(copies)]
            for copy, share in zip(copies, shares, strict=True):
                copy.assign(share)
        host = json.loads(arrays["host"].tobytes())
    model.step = host["step"]
    model.window.load(host["window"])
    return RunState(**host["run"])


def load_network(
    checkpoint: str | os.PathLike,
    network: keras.Model,
    vocabulary_hash: str,
    average: bool = True,
) -> dict:
    """Loads a checkpoint's weights into a built network; returns the checkpoint's manifest.

    Args:
        average: load the moving average of the weights if the checkpoint has one.

    Raises:
        UserError: the checkpoint is damaged, or of another vocabulary or architecture.
    """
    manifest = checkpoints.read_manifest(checkpoint)
    check_vocabulary(manifest["vocabulary"], vocabulary_hash, checkpoint)
    checkpoints.check_weights(checkpoint, manifest["weights"], weight_table(network))
    path = storage.as_path(checkpoint) / checkpoints.WEIGHTS
    with Progress(f"loading {path.parent}"):
        load_weights(network, checkpoints.weights_file(checkpoint) if average else path)
    return manifest


def _check_shape(checkpoint, name: str, array: np.ndarray, shape, settings: str) -> None:
    if array.shape != tuple(shape):
        raise UserError(
            f"{name} has shape {array.shape} in {checkpoint} but {tuple(shape)} in the model: "
            f"use the {settings} it was started with"
        )


def _memory_variables(model: TrainedModel) -> dict[str, keras.Variable]:
    return {f"memory/{i:05d}": v for i, v in enumerate(model.memory)}


def _copies(model: TrainedModel, variable: keras.Variable) -> list[tf.Variable | keras.Variable]:
    """Copies of a variable on this process's replicas, in order."""
    if keras.backend.backend() == "jax":
        return [variable]
    return list(model.strategy.experimental_local_results(variable.value))
