"""Functions that save the state of a run to a checkpoint, and restore the state bit-exactly."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.distribution import Workers
from macaron_tf.errors import UserError, needed, parse_json
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress
from macaron_tf.text.base import check_vocabulary
from macaron_tf.training import checkpoints
from macaron_tf.training.lora import low_rank_layers
from macaron_tf.training.trained_model import TrainedModel
from macaron_tf.training.updates import Sums


@dataclasses.dataclass
class RunState:
    """State of a run that is not held in Keras variables.

    Attributes:
        elapsed_seconds: wall-clock time of the run so far in seconds, excluding the time between
            sessions.
        best_score: best validation score so far; `None` before the first validation.
        best_loss: loss of the validation with the best score; infinity if the validation has none.
        best_step: step of the best validation score; `None` before the first validation.
        rounds_without_improvement: number of validations since the best score was first reached.
        validated_at: step of the last validation; 0 before the first validation.
    """

    elapsed_seconds: float = 0.0
    best_score: float | None = None
    best_loss: float = math.inf
    best_step: int | None = None
    rounds_without_improvement: int = 0
    validated_at: int = 0


def gather_memory(model: TrainedModel, workers: Workers) -> dict[str, np.ndarray]:
    """Gathers `model.memory` over the replicas of all workers, which must all call this."""
    model.synchronize()
    memory, on_jax = {}, keras.backend.backend() == "jax"
    for i, variable in enumerate(model.memory):
        share = np.concatenate(list(map(np.array, _copies(model, variable))))
        # On JAX, every process holds the whole array.
        memory[f"memory/{i:05d}"] = share if on_jax else workers.concatenate(share)
    return memory


def write_checkpoint(
    directory: epath.Path, model: TrainedModel, state: RunState, memory: dict[str, np.ndarray]
) -> None:
    """Writes the weights and the training state of a run into an empty local directory."""
    host = {"step": model.step, "window": model.window.totals(), "run": dataclasses.asdict(state)}
    arrays = {name: np.array(variable) for name, variable in model.state_variables().items()}
    arrays |= memory
    arrays["host"] = np.frombuffer(json.dumps(host).encode(), np.uint8)
    weights = [w for w in model.network.weights for _ in range(2 if model.ema else 1)]
    require_disk_space(directory, weights, arrays.values())
    model.network.save_weights(str(directory / checkpoints.WEIGHTS))
    if model.ema:
        with model.ema_weights():
            model.network.save_weights(str(directory / checkpoints.EMA_WEIGHTS))
    np.savez(directory / checkpoints.STATE, **arrays)


def require_disk_space(
    directory: epath.Path, weights: Iterable[keras.Variable], arrays: Iterable[np.ndarray] = ()
) -> None:
    """Raises an OSError if the disk of `directory` has too little space for `weights` and `arrays`.

    Without this check, HDF5 crashes the process (SIGSEGV) when it closes a file on a full disk.
    """
    sizes = [tf.as_dtype(weight.dtype).size * math.prod(weight.shape) for weight in weights]
    sizes += [array.nbytes for array in arrays]
    # Add 4 KB for each array's header. In a small model, the headers take most of the space.
    storage.require_disk_space(directory, sum(sizes) + 4096 * len(sizes))


def save_weights(layer: keras.layers.Layer, file: epath.Path) -> None:
    """Writes the weights of a layer or model into a local .safetensors or .weights.h5 file."""
    if file.suffix != ".safetensors":
        keras.saving.save_weights(layer, str(file))
        return
    with needed(f"writing {file.name}"):
        import safetensors.numpy
    arrays = {weight.path: keras.ops.convert_to_numpy(weight) for weight in layer.weights}
    # Save the order too, because the numbers in Keras's layer names differ between processes.
    safetensors.numpy.save_file(arrays, file, {"order": json.dumps([*arrays])})


def load_weights(layer: keras.layers.Layer, file: epath.Path) -> None:
    """Loads weights that `save_weights` wrote. `file` may be on a local disk or in a bucket."""
    with _refuse_damage(file), storage.local_copy(file) as copy:
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
    """Lists the weights, such as `"encoder/dense/kernel (8, 8)"`, in order.

    The paths do not include the name of a model that contains `network`. Saved weights include
    low-rank updates, whose factors are left out.
    """
    layers = low_rank_layers(network)
    factors = {id(w) for layer in layers for w in (layer.lora_kernel_a, layer.lora_kernel_b)}
    parent, slash, _ = network.path.rpartition("/")
    prefix = parent + slash
    weights = [weight for weight in network.weights if id(weight) not in factors]
    return [f"{w.path.removeprefix(prefix)} {tuple(w.shape)}" for w in weights]


def restore_checkpoint(
    checkpoint: str | os.PathLike, model: TrainedModel, vocabulary_hash: str, workers: Workers
) -> RunState:
    """Restores weights, optimizer, random number generators and step of a prepared model.

    `vocabulary_hash` must equal the hash in the checkpoint. Returns scores and times of the run.
    """
    load_network(checkpoint, model.network, vocabulary_hash, average=False)
    path = storage.as_path(checkpoint) / checkpoints.STATE
    with _refuse_damage(path), storage.local_copy(path) as copy, np.load(copy) as arrays:
        variables = model.state_variables()
        memory = {f"memory/{i:05d}": v for i, v in enumerate(model.memory)}
        if {*variables, *memory} != set(arrays.files) - {"host"}:
            raise UserError(
                f"{checkpoint} has another optimizer, dropout, training.ema_decay or "
                "memory_length: use the settings that the run started with"
            )
        for name, variable in variables.items():
            _check_shape(checkpoint, name, arrays[name], variable.shape, "settings")
        for name, variable in variables.items():
            variable.assign(arrays[name])
        on_jax, settings = keras.backend.backend() == "jax", "batch_size, memory_length and devices"
        index, processes = (0, 1) if on_jax else (workers.index, workers.count)
        for name, variable in memory.items():
            copies = _copies(model, variable)
            first, count = index * len(copies), processes * len(copies)
            shape = (count * variable.shape[0], *variable.shape[1:])
            _check_shape(checkpoint, name, arrays[name], shape, settings)
            shares = np.split(arrays[name], count)[first : first + len(copies)]
            for copy, share in zip(copies, shares, strict=True):
                copy.assign(share)
        host = parse_json(arrays["host"].tobytes(), step=int, window=dict, run=dict)
        model.step = host["step"]
        model.window = Sums(host["window"])
        return RunState(**host["run"])


def load_network(
    checkpoint: str | os.PathLike,
    network: keras.Model,
    vocabulary_hash: str,
    average: bool = True,
) -> dict:
    """Loads a checkpoint's weights into a built network, and returns the checkpoint's manifest."""
    manifest = checkpoints.read_manifest(checkpoint)
    check_vocabulary(manifest["vocabulary"], vocabulary_hash, checkpoint)
    checkpoints.check_weights(checkpoint, manifest["weights"], weight_table(network))
    path = storage.as_path(checkpoint) / checkpoints.WEIGHTS
    with Progress(f"loading {path.parent}"):
        load_weights(network, checkpoints.weights_file(checkpoint) if average else path)
    return manifest


@contextlib.contextmanager
def _refuse_damage(path: epath.Path) -> Iterator[None]:
    """Turns errors of reading a checkpoint's file into UserErrors.

    The checksums in the manifest reveal accidents only. Another program may have written both.
    """
    mend = "restore the checkpoint from a copy, or use another checkpoint"
    with storage.clear_errors(f"cannot read {path}", mend), storage.refuse_damage(path, mend):
        yield


def _check_shape(checkpoint, name: str, array: np.ndarray, shape, settings: str) -> None:
    if array.shape != tuple(shape):
        shapes = f"{name} is {array.shape}, not {(*shape,)}"
        raise UserError(f"{checkpoint} has other {settings}, as {shapes}: restore those of the run")


def _copies(model: TrainedModel, variable: keras.Variable) -> list[tf.Variable | keras.Variable]:
    """Returns a variable's copies on the replicas of this process, in replica order."""
    if keras.backend.backend() == "jax":
        return [variable]
    return list(model.strategy.experimental_local_results(variable.value))
