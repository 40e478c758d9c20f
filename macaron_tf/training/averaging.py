"""The mean of several checkpoints' weights, as a checkpoint to evaluate and export."""

import os
from collections.abc import Sequence

import h5py
import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data import storage
from macaron_tf.errors import UserError
from macaron_tf.training import checkpoints
from macaron_tf.training.state import check_vocabulary, check_weights


def last_checkpoints(
    run_dir: str | os.PathLike, count: int, every: int | None = None
) -> list[epath.Path]:
    """The newest `count` checkpoints of a run, oldest first.

    Args:
        run_dir: the run's directory.
        count: at least 1.
        every: leave out steps that are no multiple of this: those that were saved for the time,
            or at an interruption, would make the average depend on the clock.

    Raises:
        UserError: there are fewer.
    """
    directory = checkpoints.CheckpointDirectory(run_dir)
    steps = directory.steps(every)
    if len(steps) < count:
        raise UserError(
            f"{directory.path} holds {len(steps)} checkpoints, not the {count} to average: "
            "ask for fewer, or train with a larger keep_last"
        )
    return [directory.of_step(step) for step in steps[-count:]]


def average_checkpoints(
    sources: Sequence[str | os.PathLike], destination: str | os.PathLike
) -> epath.Path:
    """Averages weights, added up in float64, into a new checkpoint directory.

    It holds `model.weights.h5` and a manifest, no training state: it loads like any checkpoint but
    no run can be resumed from it. Weights that are not floating-point are the last source's.

    Args:
        sources: checkpoint directories, at least one; their own weights, not moving averages.
        destination: the directory to make; replaced if present.

    Returns:
        The destination.

    Raises:
        UserError: no sources; a damaged one; sources of different vocabularies or models; an
            unwritable destination.
    """
    sources = [storage.as_path(source) for source in sources]
    destination = storage.as_path(destination)
    if not sources:
        raise UserError("no checkpoints to average: name at least one")
    manifests = [checkpoints.read_manifest(source) for source in sources]
    for source, manifest in zip(sources, manifests, strict=True):
        check_vocabulary(source, manifest, manifests[0]["vocabulary"])
        check_weights(source, manifest["weights"], manifests[0]["weights"])

    def write(directory: epath.Path) -> None:
        target = directory / checkpoints.WEIGHTS
        storage.require_room(directory, storage.size(sources[-1] / checkpoints.WEIGHTS))
        tf.io.gfile.copy(os.fspath(sources[-1] / checkpoints.WEIGHTS), os.fspath(target))
        _average_into(target, [source / checkpoints.WEIGHTS for source in sources])

    last = manifests[-1]
    fields = {
        "step": last["step"],
        "vocabulary": last["vocabulary"],
        "metrics": {},
        "weights": last["weights"],
        "averaged_steps": [manifest["step"] for manifest in manifests],
    }
    checkpoints.save_whole(destination, write, fields)
    return destination


def _average_into(target: epath.Path, sources: Sequence[epath.Path]) -> None:
    """Overwrites every floating-point dataset of one HDF5 file with the mean over several."""
    with h5py.File(target, "r+") as mean:
        names = []
        mean.visititems(lambda name, item: names.append(name) if _is_weight(item) else None)
        totals = {name: np.zeros(mean[name].shape, np.float64) for name in names}
        for source in sources:
            with storage.local_copy(source) as copy, h5py.File(copy, "r") as file:
                for name, total in totals.items():
                    total += file[name][...]
        for name, total in totals.items():
            mean[name][...] = (total / len(sources)).astype(mean[name].dtype)


def _is_weight(item) -> bool:
    return isinstance(item, h5py.Dataset) and np.issubdtype(item.dtype, np.floating)
