"""Atomic export of a task as a SavedModel, which becomes a new version of a model to serve."""

import json
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from etils import epath

from macaron_tf.engines.certificate import Certificate, certificate_text
from macaron_tf.engines.graph import TaskGraph
from macaron_tf.engines.lite import LiteNetwork
from macaron_tf.engines.lite_decoding import LiteDecoder, write_decoder
from macaron_tf.engines.lite_writer import write_lite
from macaron_tf.engines.networks import TaskNetwork, write_network
from macaron_tf.io import paths
from macaron_tf.io.progress import Progress
from macaron_tf.io.serving import EXTRA, MODEL_FILE, RECORD, version_of
from macaron_tf.tasks.base import Decoding

_SECTION = """## Exported

Each file was opened and run on difficult texts. The difference is the largest deviation from the
network's outputs in float32, relative to the largest output. The time of the SavedModel is measured
from texts to answers. The time of any other file is measured from token ids to outputs, unless the
name of the file says otherwise.

"""


def write_version(
    graph: TaskGraph,
    record: dict[str, Any],
    out: str | os.PathLike,
    lite: str | None,
    formats: Sequence[str],
    certificate: Certificate,
    card: str,
) -> epath.Path:
    """Writes a SavedModel as the next version, with its vocabulary and a record.

    A local version folder gets its name only when the folder is complete. Folders in a bucket
    cannot be renamed, so `saved_model.pb` is uploaded last.

    Args:
        record: facts about the model for `assets.extra/export.json`.
        out: folder of the model, local or `gs://`.
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
        # A folder beside the versions can be renamed.
        place = {} if paths.is_remote(out) else {"prefix": ".exporting-", "dir": out}
        with Progress("exporting"), tempfile.TemporaryDirectory(**place) as folder:
            staging, network = pathlib.Path(folder, "version"), TaskNetwork(task)
            for name in formats:
                write_network(network, staging, name)
            extra = staging / EXTRA
            extra.mkdir(parents=True)
            signatures = dict(graph.signatures)
            lite_engine: LiteNetwork | LiteDecoder | None = None
            if lite and isinstance(task, Decoding):
                lite_engine = write_decoder(task.network, extra, lite)
            elif lite:
                lite_engine = write_lite(network, extra, lite)
                signatures |= graph.steps(lite_engine.output)
            tf.saved_model.save(module, str(staging), signatures=signatures)
            task.vocabulary.save(extra)
            facts = certificate.check(graph, staging, lite_engine, formats)
            (staging / "README.md").write_text(f"{card}\n{_SECTION}{certificate_text(facts)}")
            if lite_engine:
                facts["lite"] = {**lite_engine.save_max_rows(), **facts.pop("lite", {})}
            record = {**record, "compute_dtype": task.network.compute_dtype, **facts}
            record |= {"vocabulary": task.vocabulary.hash, "kind": task.name, "texts": task.texts}
            record["examples"] = [*task.typical_texts()]
            (extra / RECORD).write_text(json.dumps(record, indent=2) + "\n")
            versions = (version_of(entry.name) for entry in out.iterdir())
            path = out / str(1 + max((number for number in versions if number), default=0))
            if paths.is_remote(out):
                paths.upload(staging, path, last=MODEL_FILE)
            else:
                staging.rename(path)
    return path
