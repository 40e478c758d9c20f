"""Atomic export of a task as a SavedModel, which becomes a new version of a model to serve."""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from etils import epath

from macaron_tf.engines.certificate import Certificate, certificate_text
from macaron_tf.engines.graph import TaskGraph
from macaron_tf.engines.lite import LiteNetwork
from macaron_tf.engines.lite_decoding import LiteDecoder, write_decoder
from macaron_tf.engines.lite_writer import write_lite
from macaron_tf.engines.networks import TaskNetwork, write_network
from macaron_tf.engines.warm_up import write_warm_up
from macaron_tf.errors import UserError
from macaron_tf.io import paths
from macaron_tf.io.progress import Progress
from macaron_tf.io.serving import MAX_VERSION, MODEL_FILE, RECORD, version_of
from macaron_tf.tasks.base import Decoding

_SECTION = """## Exported

Each file was opened and run on difficult texts. The difference is the largest deviation from the
network's outputs in float32, relative to the largest output. The time of the SavedModel is measured
from texts to answers. The time of any other file is measured from token ids to outputs, unless the
name of the file says otherwise.

"""


@contextlib.contextmanager
def _staging_folder(out: epath.Path) -> Iterator[pathlib.Path]:
    """Yields an empty folder for writing a version, inside a local `out` so that it can be renamed.

    Exports to the same local `out` wait for each other, and remove the files of a killed export.
    """
    if paths.is_remote(out):
        with tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)
        return
    folder = pathlib.Path(out, ".exporting")
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the lock ends with the process
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def write_version(
    graph: TaskGraph,
    record: dict[str, Any],
    out: str | os.PathLike,
    version: int | None = None,
    lite: str | None = None,
    formats: Sequence[str] = (),
    certificate: Certificate | None = None,
    card: str = "",
) -> epath.Path:
    """Writes a SavedModel as a new version, with its vocabulary, a record and warm-up requests.

    A local version folder gets its name only when the folder is complete. Folders in a bucket
    cannot be renamed, so `saved_model.pb` is uploaded last.

    Args:
        record: facts about the model for `assets.extra/export.json`.
        out: folder of the model, local or `gs://`.
        version: version number; `None` means one more than the greatest number in `out`.
        lite: weight format of an additional LiteRT file, `"fp32"` or `"int8"`. If the network runs
            once per text, the SavedModel also gets the signatures `prepare` and `conclude`, which
            run before and after the network.
        formats: additional formats to write, as keys of `FORMATS`.
        certificate: comparison of the written files with the network, for the record and for a
            table below the card.
        card: model card, which becomes the version's `README.md`.
    """
    out, task, module = paths.as_path(out), graph.task, graph.saved_module()
    # TensorFlow reports a full disk as one of its own errors.
    with paths.clear_errors(f"{out} cannot be written", "choose another path"):
        paths.make_folders(out)
        with (
            Progress("exporting"),
            _staging_folder(out) as folder,
        ):
            version = _choose_version(out, version)
            staging, network = folder / str(version), TaskNetwork(task)
            for name in formats:
                write_network(network, staging, name)
            extra = staging / "assets.extra"
            extra.mkdir(parents=True)
            signatures, facts = dict(graph.signatures), {}
            lite_engine: LiteNetwork | LiteDecoder | None = None
            if lite and isinstance(task, Decoding):
                lite_engine = write_decoder(task.network, extra, lite)
            elif lite:
                lite_engine = write_lite(network, extra, lite)
                signatures |= graph.steps(lite_engine.output)
            tf.saved_model.save(module, str(staging), signatures=signatures)
            task.vocabulary.save(extra)
            if certificate:
                facts = certificate.check(graph, staging, lite_engine, formats)
                card += f"\n{_SECTION}{certificate_text(facts)}"
            if lite_engine:
                facts["lite"] = {**lite_engine.save_max_rows(), **facts.pop("lite", {})}
            if card:
                (staging / "README.md").write_text(card)
            record = {**record, "compute_dtype": task.network.compute_dtype, **facts}
            record |= {"vocabulary": task.vocabulary.hash, "kind": task.name, "texts": task.texts}
            record["examples"] = [*task.typical_texts()]
            (extra / RECORD).write_text(json.dumps(record, indent=2) + "\n")
            write_warm_up(staging, graph.signatures, task.typical_texts())
            if paths.is_remote(out):
                paths.upload(staging, out / str(version), last=MODEL_FILE)
            else:
                staging.rename(out / str(version))
    return out / str(version)


def _choose_version(out: epath.Path, requested: int | None) -> int:
    """Returns `requested`, or if it is `None` one more than the greatest version number."""
    versions = {version_of(entry.name) for entry in out.iterdir()} - {None}
    version = requested if requested is not None else max(versions, default=0) + 1
    if not 1 <= version <= MAX_VERSION:
        raise UserError(f"--version {version} is not valid: give a number from 1 to {MAX_VERSION}")
    if version in versions:
        raise UserError(f"--version {version} already exists in {out}: give another number")
    return version
