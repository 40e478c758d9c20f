"""Execution of a task's network in LiteRT, for small requests on CPUs.

For a single line, a TensorFlow graph spends most of the time on starting hundreds of operations.
LiteRT plans the whole network once, for fixed shapes. The file has one signature for each of
several row lengths, and all signatures share one set of weights. LiteRT cannot process strings. One
TensorFlow graph therefore converts texts to rows of token ids, and another TensorFlow graph
converts the network's outputs to answers.
"""

import json
import os
import pathlib
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from macaron_tf.engines.session import STEPS, SessionModel
from macaron_tf.errors import needed
from macaron_tf.io.paths import read_json, refuse_damage

NETWORK, RECORD = "network.tflite", "network.json"
DECODER = "decode.tflite"  # see `lite_decoding`
SIGNATURE = "length_{}"  # the signature of `NETWORK` for rows with this number of token ids
_MAX_THREADS = 4  # maximum; more threads do not speed up matrix products with few rows
_PADDING_OUTPUT = -1e9  # output at padded positions; evaluation uses the same value
Arrays = Mapping[str, np.ndarray]


class LiteFile:
    """File opened in LiteRT, with the JSON record that was written beside it.

    Args:
        threads: number of threads for a matrix product; `None` means the number of CPUs available
            to this process, but at most 4, and 1 for a file below `split_bytes`.
        split_bytes: see `threads`. The matrix products of a smaller file are too small to split.
        fields: fields of the record besides `kind` and `rows`, with their types.

    Attributes:
        precision: weight format, `"fp32"` or `"int8"`.
        max_rows: maximum number of rows in a request that LiteRT should answer.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        file: str,
        record: str,
        threads: int | None = None,
        split_bytes: int = 0,
        **fields: type,
    ):
        with needed("LiteRT"):
            from ai_edge_litert.interpreter import Interpreter

        self._path, mend = pathlib.Path(folder, file), "export the model again"
        self._record_path = self._path.with_name(record)
        self._record = read_json(self._record_path, mend=mend, kind=str, rows=int, **fields)
        self.precision: str = self._record["kind"]
        self.max_rows: int = self._record["rows"]
        is_small = self._path.is_file() and self._path.stat().st_size < split_bytes
        cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        self._threads = threads or (1 if is_small else min(cpus, _MAX_THREADS))
        with refuse_damage(self._path, mend):
            self._interpreter = Interpreter(str(self._path), num_threads=self._threads)
            self._interpreter.allocate_tensors()
        self._lock = threading.Lock()

    def save_max_rows(self) -> dict[str, Any]:
        """Writes `max_rows` into the record, and returns fields for the record of an export."""
        fields = {**self._record, "rows": self.max_rows}
        self._record_path.write_text(json.dumps(fields, indent=2) + "\n")
        return {name: fields[name] for name in ("kind", "rows", "lengths") if name in fields}


class LiteNetwork(LiteFile):
    """Network in LiteRT, loaded from the files that `write_lite` writes.

    The network runs one row at a time, padded to one of the fixed `lengths`. All methods are
    thread-safe. A lock lets only one thread at a time use the interpreter.

    Attributes:
        lengths: supported row lengths in ascending order. A row is padded to the shortest length
            that is sufficient.
        inputs: dict mapping input name to the input's shape for a batch of one row, with -1 for the
            length, such as `[1, -1]`.
        output: shape of the network's output for a batch, with `None` for an unknown dimension.
    """

    def __init__(self, folder: str | os.PathLike):
        super().__init__(folder, NETWORK, RECORD, lengths=list, inputs=dict, output=list)
        self.lengths: list[int] = self._record["lengths"]
        sizes = self._record["output"][1:]
        self.output = [None, *(size if size >= 0 else None for size in sizes)]
        self._pad_id: int = self._record["pad_id"]
        self.inputs: Mapping[str, list[int]] = self._record["inputs"]
        with refuse_damage(self._path, "export the model again"):
            self._runners = {
                length: self._interpreter.get_signature_runner(SIGNATURE.format(length))
                for length in self.lengths
            }

    def fits(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns booleans `(B,)`: whether each row is at most as long as the last of `lengths`."""
        return self._row_lengths(rows) <= self.lengths[-1]

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Computes outputs (see `OnePass.compute`) of rows that fit, -1e9 after a padded row."""
        ids, shape = rows["token_ids"], self.inputs["token_ids"]
        length = ids.shape[shape.index(-1)]
        sizes = [length if size is None else size for size in self.output[1:]]
        computed = np.empty((len(ids), *sizes), np.float32)
        for row, row_length in enumerate(self._row_lengths(rows)):
            padded_length = next(length for length in self.lengths if length >= row_length)
            inputs = {
                name: _fit_to_batch(
                    rows[name][row],
                    [padded_length if n == -1 else n for n in input_sizes[1:]],
                    self._pad_id if name == "token_ids" else 0,
                )
                for name, input_sizes in self.inputs.items()
            }
            with self._lock:
                outputs = self._runners[padded_length](**inputs)["computed"][0]
            computed[row] = _fit_to_batch(outputs, sizes, _PADDING_OUTPUT)[0]
        return computed

    def _row_lengths(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns row lengths `(B,)` without right padding. Rows of only padding stay whole."""
        ids, shape = rows["token_ids"], self.inputs["token_ids"]
        axis = shape.index(-1)
        other_axes = tuple(dimension for dimension in range(1, ids.ndim) if dimension != axis)
        is_real = (ids != self._pad_id).any(axis=other_axes)  # (B, L)
        return is_real.shape[1] - np.argmax(is_real[:, ::-1], axis=1)


class LiteModel:
    """Engine that runs a task's network in LiteRT, between two TensorFlow graphs.

    The first graph converts texts to token ids, and the second converts outputs to answers.

    Args:
        model: SavedModel with the two signatures in `STEPS`, which run before and after the
            network.
        outputs: names of the outputs in the order in which `answer` returns the outputs; `None`
            means alphabetical order.
    """

    def __init__(
        self, lite: LiteNetwork, model: SessionModel, outputs: Sequence[str] | None = None
    ):
        self.lite, self._model = lite, model
        self._outputs = outputs or sorted(model.signature_defs[STEPS[1]].outputs)

    def answer(self, inputs: Arrays) -> dict[str, np.ndarray] | None:
        """Computes `OnePass.serve` for 1 to `max_rows` rows that fit, or else returns `None`."""
        prepare, conclude = STEPS
        rows, lite = self._model.run(prepare, inputs), self.lite
        if not (0 < len(rows["token_ids"]) <= lite.max_rows and lite.fits(rows).all()):
            return None
        kept = {name: value for name, value in rows.items() if name not in lite.inputs}
        answers = self._model.run(conclude, {"computed": lite.compute(rows), **kept})
        return {name: answers[name] for name in self._outputs}


def _fit_to_batch(row: np.ndarray, sizes: list[int], pad: int) -> np.ndarray:
    """Returns `row` as a batch `(1, *sizes)`, truncated or padded with `pad`."""
    batch = np.full((1, *sizes), pad, row.dtype)
    region = tuple(map(slice, map(min, row.shape, sizes)))
    batch[(0, *region)] = row[region]
    return batch
