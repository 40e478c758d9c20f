"""Checkpoints: directories with checksums, which are written atomically.

RUN/checkpoints/step-00001000/model.weights.h5     weights, for `network.load_weights`
                              ema.weights.h5       moving average of the weights (optional)
                              training_state.npz   optimizer, random number generators, memory,
                                                   step, scores
                              manifest.json        step, checksums, vocabulary, metrics
RUN/checkpoints/best.json                          step, metric and score of the best checkpoint

On a local disk, a checkpoint is written under a temporary name and then renamed. A bucket (`gs://`)
cannot rename a directory atomically. A checkpoint for a bucket is therefore written to the local
disk and uploaded, with the manifest as the last file. A directory in a bucket that has no manifest
is not a checkpoint. An upload goes to a temporary name, and its files are renamed one by one when
all of them are in the bucket.
"""

import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence

import h5py
import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.errors import UserError, parse_json, warn
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import track
from macaron_tf.text.base import check_vocabulary

FORMAT = 1
WEIGHTS = "model.weights.h5"
EMA_WEIGHTS = "ema.weights.h5"
STATE = "training_state.npz"
MODEL = "model.json"  # in a run's folder, and beside the weights of `save_pretrained`
MANIFEST = "manifest.json"
CARD = "README.md"  # model card of `save_pretrained`, without a checksum because users edit it
BEST = "best.json"


_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY = ".tmp-"  # prefix of a directory while it is written or deleted
# Prefix of an intact checkpoint while a new checkpoint of the same step replaces the old one. This
# is the old checkpoint on a local disk, and the new checkpoint in a bucket.
_REPLACED = ".old-"


class CheckpointDirectory:
    """The folder `checkpoints` of a run, on disk or in a bucket (`gs://`)."""

    def __init__(self, run_dir: str | os.PathLike):
        self.path = storage.as_path(run_dir) / "checkpoints"
        self._damaged: set[int] = set()

    def steps(self, every: int | None = None) -> list[int]:
        """Returns the steps that have a checkpoint, also a damaged one, in ascending order.

        Only multiples of `every` are returned, which excludes most checkpoints that were saved
        after a fixed time or at an interruption.
        """
        if not self.path.is_dir():
            return []
        matches = (_NAME.fullmatch(entry.name) for entry in self.path.iterdir())
        steps = sorted(int(match[1]) for match in matches if match)
        return [s for s in steps if s % (every or 1) == 0 and is_checkpoint(self.of_step(s))]

    def of_step(self, step: int) -> epath.Path:
        """Returns the path of a step's checkpoint, whether or not the checkpoint exists."""
        return self.path / f"step-{step:08d}"

    def clean(self) -> None:
        """Removes the files of an interrupted save, in the process that writes checkpoints.

        If it was replacing an older checkpoint of the same step, that is restored or, in a bucket,
        the replacement is completed.
        """
        if not self.path.is_dir():
            return
        with storage.clear_errors(f"cannot clean {self.path}"):
            for entry in sorted(self.path.iterdir()):
                if entry.name.startswith(_REPLACED):
                    # The process was killed during the replacement. This checkpoint is intact.
                    final = self.path / entry.name.removeprefix(_REPLACED)
                    if is_checkpoint(entry) and not is_checkpoint(final):
                        (_rename_files if storage.is_remote(entry) else os.replace)(entry, final)
                        continue
                half_uploaded = _NAME.fullmatch(entry.name) and not is_checkpoint(entry)
                if entry.name.startswith((_TEMPORARY, _REPLACED)) or half_uploaded:
                    _remove(entry)

    def save(
        self,
        step: int,
        write: Callable[[epath.Path], None],
        manifest: Mapping[str, object] | None = None,
    ) -> epath.Path:
        """Writes a step's checkpoint with `save_whole`, and returns the checkpoint's directory."""
        final = self.of_step(step)
        save_whole(final, write, {"step": step, **(manifest or {})})
        self._damaged.discard(step)
        return final

    def latest(self) -> epath.Path | None:
        """Returns the directory of the newest undamaged checkpoint, with warnings of newer ones."""
        for step in reversed(self.steps()):
            if (damage := find_damage(self.of_step(step))) is None:
                return self.of_step(step)
            self._damaged.add(step)
            warn(f"skipped a damaged checkpoint, because {damage}")
        return None

    def rotate(self, keep_last: int) -> None:
        """Deletes all checkpoints except the best and the `keep_last` newest checkpoints.

        One that `latest` has found damaged does not count, and is deleted unless it is the best.
        """
        best, steps = self.best(), self.steps()
        newest = [step for step in steps if step not in self._damaged][-keep_last:]
        keep = {*newest, *([best["step"]] if best else [])}
        with storage.clear_errors(f"cannot remove old checkpoints in {self.path}"):
            for step in sorted(set(steps) - keep):
                obsolete = self.of_step(step)
                if not storage.is_remote(obsolete):
                    # Rename first, so that a directory with a step's name is never half deleted.
                    temporary_path = self.path / f"{_TEMPORARY}{obsolete.name}"
                    os.replace(obsolete, temporary_path)
                    obsolete = temporary_path
                _remove(obsolete)

    def best(self) -> dict | None:
        """Returns the `step`, `metric` and `score` of the best checkpoint; `None` if unknown."""
        try:
            best = storage.read_json(self.path / BEST, step=int)
        except UserError:
            return None
        return best if is_checkpoint(self.of_step(best["step"])) else None

    def mark_best(self, step: int, metric: str, score: float | None) -> None:
        """Writes the best step to `best.json`, so that `rotate` keeps the step's checkpoint."""
        text = json.dumps({"step": step, "metric": metric, "score": score}) + "\n"
        storage.write_atomic(self.path / BEST, text.encode())


def is_checkpoint(path: str | os.PathLike) -> bool:
    """Returns whether `path` is a checkpoint directory, perhaps damaged.

    In a bucket, the directory must have a manifest.
    """
    folder = storage.as_path(path)
    return folder.is_dir() and (not storage.is_remote(folder) or (folder / MANIFEST).exists())


def is_saved(directory: str | os.PathLike) -> bool:
    """Returns whether `save_pretrained` wrote a folder in macaron_tf's format, perhaps damaged."""
    path = storage.as_path(directory)
    return (path / MODEL).exists() and any(f.exists() for f in (saved_file(path), path / MANIFEST))


def save_whole(
    final: str | os.PathLike,
    write: Callable[[epath.Path], None],
    manifest: Mapping[str, object],
) -> None:
    """Creates or replaces a checkpoint directory, atomically if it is on a local disk.

    In a bucket, an earlier checkpoint is removed after the upload. If the directory cannot be
    written, it remains unchanged. `write(directory)` writes all files except the manifest into a
    local directory. `manifest` gets the format and the checksums.
    """
    final = storage.as_path(final)
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    mend = "check the folder's permissions and the free space (other checkpoints are intact)"
    with storage.clear_errors(f"cannot write checkpoint {final}", mend):
        if storage.is_remote(final):
            with tempfile.TemporaryDirectory(prefix="macaron_tf-") as local:
                _write_files(storage.as_path(local), write, manifest)
                _remove(replaced)
                storage.upload(local, replaced, last=MANIFEST)
                _remove(final)
                _rename_files(replaced, final)
            return
        temporary_path = final.with_name(f"{_TEMPORARY}{final.name}")
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            _remove(temporary_path)
            temporary_path.mkdir()
            _write_files(temporary_path, write, manifest)
            for entry in (*pathlib.Path(temporary_path).rglob("*"), temporary_path):
                storage.sync(entry)
            if final.exists():
                _remove(replaced)
                os.replace(final, replaced)
            os.replace(temporary_path, final)
            storage.sync(final.parent)
            _remove(replaced)
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(temporary_path)
            raise


def _rename_files(uploaded: epath.Path, final: epath.Path) -> None:
    """Renames the files of a checkpoint in a bucket, with the manifest as the last file.

    A second call completes an interrupted first call.
    """
    storage.upload(uploaded, final, last=MANIFEST)
    _remove(uploaded)


def _write_files(directory: epath.Path, write, manifest: Mapping[str, object]) -> None:
    """Writes a checkpoint's files and its manifest into an empty local directory."""
    try:
        write(directory)
    except RuntimeError as error:  # raised by h5py when the disk is full
        raise OSError(str(error)) from error
    names = sorted(storage.files_in(directory) - {CARD})
    files = {name: _fingerprint(directory / name) for name in names}
    content = {"format": FORMAT, **manifest, "files": files}
    content["sha256"] = _manifest_digest(content)
    (directory / MANIFEST).write_text(json.dumps(content, indent=1) + "\n")


def refuse_other_files(path: epath.Path, library: str) -> None:
    """Raises a UserError if `path` must not be replaced by a saved model.

    Only a new or empty folder, or one with only the files of an undamaged model saved in
    macaron_tf's format or in that of `library`, may be replaced.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file: choose another path for the folder")
    replaceable, manifest = {MANIFEST, CARD}, path / MANIFEST
    is_foreign = manifest.exists() and storage.read_json(manifest).get("library") == library
    if is_foreign or is_saved(path):
        replaceable |= read_manifest(path)["files"].keys()
    if others := storage.files_in(path) - replaceable:
        raise UserError(f"{path} holds other files, such as {min(others)}: give another folder")


def read_manifest(checkpoint: str | os.PathLike) -> dict:
    """Compares a checkpoint's files with their checksums, and returns the manifest."""
    if (damage := find_damage(checkpoint)) is not None:
        raise UserError(f"{checkpoint} is damaged, because {damage}: restore it, or choose another")
    manifest = storage.read_json(storage.as_path(checkpoint) / MANIFEST)
    if manifest["format"] > FORMAT:
        raise UserError(f"{checkpoint} has a newer format than {FORMAT}: update macaron_tf")
    return manifest


def find_damage(checkpoint: str | os.PathLike) -> str | None:
    """Returns a clause about the first damage, such as a missing file; `None` without damage."""
    path = storage.as_path(checkpoint)
    changed = f"{path / MANIFEST} has changed since it was written"
    try:
        if not storage.is_file(path / MANIFEST):
            return f"{path / MANIFEST} is missing"
        manifest = parse_json((path / MANIFEST).read_bytes(), files=dict, step=int, format=int)
        if manifest["sha256"] != _manifest_digest(manifest):
            return changed
        for name, fingerprint in manifest["files"].items():
            parts = pathlib.PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts:
                return f"{path / MANIFEST} names {name!r}, which lies outside of its folder"
            if not (path / name).exists():
                return f"{path / name} is missing"
            if not storage.is_file(path / name):  # reading a device or a pipe may never end
                return f"{path / name} is not a regular file"
            if _fingerprint(path / name) != fingerprint:
                return f"{path / name} has changed since it was written"
    except storage.FILE_ERRORS as error:
        return f"{path} cannot be read ({storage.reason(error)})"
    except (ValueError, TypeError, KeyError, AttributeError):
        return changed
    return None


def weights_file(checkpoint: str | os.PathLike) -> epath.Path:
    """Returns the weights file that an evaluation loads: the moving average, if there is one."""
    average = storage.as_path(checkpoint) / EMA_WEIGHTS
    return average if average.exists() else saved_file(checkpoint)


def saved_file(folder: str | os.PathLike) -> epath.Path:
    """Returns the path `model.safetensors` if this file exists, otherwise `model.weights.h5`."""
    file = storage.as_path(folder) / "model.safetensors"
    return file if file.exists() else file.with_name("model.weights.h5")


def _fingerprint(path: epath.Path) -> dict:
    return {"sha256": storage.file_digest(path), "bytes": storage.size(path)}


def _manifest_digest(manifest: Mapping[str, object]) -> str:
    """Computes the SHA-256 digest (hex) of a manifest, with `None` in the field `sha256`."""
    text = json.dumps({**manifest, "sha256": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _remove(path: epath.Path) -> None:
    if not path.is_dir():
        path.unlink(missing_ok=True)
    elif storage.is_remote(path):
        # Delete the manifest first, because a directory without a manifest is not a checkpoint.
        (path / MANIFEST).unlink(missing_ok=True)
        path.rmtree()
    else:
        shutil.rmtree(path)


def check_weights(
    checkpoint: str | os.PathLike,
    saved: list[str],
    present: list[str],
    owner: str = "the model",
    remedy: str = "build the model with the settings of the training run",
) -> None:
    """Raises a UserError if a checkpoint and a model differ in the name or shape of a weight.

    Number suffixes of layer names, as in `dense_3`, are ignored. `saved` and `present` are each's
    `weight_table`, and `owner` and `remedy` parts of the message.
    """
    for theirs, ours in itertools.zip_longest(saved, present, fillvalue="no further weight"):
        # `dense_3/kernel (8, 8)` -> `dense/kernel (8, 8)`, because Keras numbers names per process.
        if re.sub(r"_\d+(?=[/ ])", "", theirs) != re.sub(r"_\d+(?=[/ ])", "", ours):
            raise UserError(f"{checkpoint} contains {theirs} where {owner} has {ours}: {remedy}")


def find_checkpoint(
    run_dir: str | os.PathLike, name: str | None = None, every: int | None = None
) -> epath.Path:
    """Finds a checkpoint of a run, or the only one in a folder that `save_pretrained` wrote.

    `name` is `"average"`, `"best"`, `"last"` (the newest undamaged) or a step number. `None` means
    the first of these that exists, but no average, with a warning, if a regular checkpoint has a
    later step. For `every`, see `CheckpointDirectory.steps`.
    """
    directory, average = CheckpointDirectory(run_dir), storage.as_path(run_dir) / "average"
    if is_saved(run_dir):
        if name:
            raise UserError(f"{run_dir} has only one set of weights: leave out checkpoint {name!r}")
        return average.parent
    best = directory.best()
    checkpoints = {str(step): directory.of_step(step) for step in directory.steps()}
    if best:
        checkpoints["best"] = directory.of_step(best["step"])
    if is_checkpoint(average):
        checkpoints["average"] = average
    if name in (None, "last") and (latest := directory.latest()):
        checkpoints["last"] = latest
    names = [name] if name else ["average", "best", "last"]
    regular = directory.steps(every)
    if name is None and "average" in checkpoints and regular:
        last_averaged = read_manifest(average)["step"]
        if last_averaged < regular[-1]:
            age = f"it ends at step {last_averaged}, before the newest checkpoint"
            warn(f"{average} is not used, because {age}: average again to use it")
            names.remove("average")
    chosen_name = next((candidate for candidate in names if candidate in checkpoints), None)
    if chosen_name is None:
        if checkpoints and name in (None, "last"):
            raise UserError(f"every checkpoint in {directory.path} is damaged: restore one")
        known = ", ".join(checkpoints)
        advice = f"choose among {known}" if known else "train the model first"
        raise UserError(f"{run_dir} has no checkpoint {name or 'yet'}: {advice}")
    chosen = checkpoints[chosen_name]
    if chosen_name == "last" and not name and (directory.path / BEST).exists():
        problem = f"{directory.path / BEST} is damaged, or its checkpoint is missing"
        warn(f"{problem}: the last checkpoint, {chosen.name}, is used instead")
    return chosen


def last_checkpoints(
    run_dir: str | os.PathLike, count: int, every: int | None = None
) -> list[epath.Path]:
    """Returns the newest `count` checkpoints of a run, oldest first.

    Without `every` (see `CheckpointDirectory.steps`), they include those saved after a fixed time,
    whose steps depend on the machine's speed.
    """
    directory = CheckpointDirectory(run_dir)
    steps = directory.steps(every)
    if len(steps) < count:
        found = f"{directory.path} has {len(steps)} regular checkpoints, but {count} are needed"
        raise UserError(f"{found}: train longer, or raise training.keep_last")
    return [directory.of_step(step) for step in steps[-count:]]


def average_checkpoints(
    sources: Sequence[str | os.PathLike], destination: str | os.PathLike
) -> epath.Path:
    """Writes a checkpoint with the averaged weights of several checkpoints, and returns its path.

    A run cannot resume from it. Floating-point weights are averaged in float64, and integer weights
    are copied from the last source. Moving averages in the sources are ignored.
    """
    folders = [storage.as_path(source) for source in sources]
    destination = storage.as_path(destination)
    manifests = [read_manifest(source) for source in folders]
    for source, manifest in zip(folders, manifests, strict=True):
        remedy = f"average checkpoints with the same vocabulary as {folders[0]}"
        check_vocabulary(manifest["vocabulary"], manifests[0]["vocabulary"], source, remedy)
        remedy = "average checkpoints of one model"
        check_weights(source, manifest["weights"], manifests[0]["weights"], str(folders[0]), remedy)

    def write(directory: epath.Path) -> None:
        target = directory / WEIGHTS
        storage.require_disk_space(directory, storage.size(folders[-1] / WEIGHTS))
        tf.io.gfile.copy(os.fspath(folders[-1] / WEIGHTS), os.fspath(target))
        _average_into(target, [folder / WEIGHTS for folder in folders])

    fields = {name: manifests[-1][name] for name in ("step", "vocabulary", "weights")}
    steps = [manifest["step"] for manifest in manifests]
    save_whole(destination, write, {**fields, "metrics": {}, "averaged_steps": steps})
    return destination


def _average_into(target: epath.Path, sources: Sequence[epath.Path]) -> None:
    """Overwrites each floating-point dataset of the HDF5 file `target` by the mean over files."""
    totals: dict[str, np.ndarray] = {}
    counted = ((1, source) for source in sources)
    for source in track(counted, len(sources), "averaging", "checkpoints"):
        with storage.local_copy(source) as copy, h5py.File(copy, "r") as file:

            def add(name, link, file=file, totals=totals):
                item = file[name] if isinstance(link, h5py.HardLink) else None
                is_dataset = isinstance(item, h5py.Dataset)
                if item is None or (is_dataset and (item.external or item.is_virtual)):
                    return name
                if is_dataset and np.issubdtype(item.dtype, np.floating):
                    totals[name] = totals.get(name, 0.0) + item[...].astype(np.float64)
                return None

            if external := file.visititems_links(add):  # the mean would be written to that file
                raise UserError(f"{source} keeps {external} in another file: give a full copy")
    with h5py.File(target, "r+") as mean:
        for name, total in totals.items():
            mean[name][...] = (total / len(sources)).astype(mean[name].dtype)
