"""Runs a task's network in LiteRT, for small requests on CPUs.

TensorFlow's graph starts hundreds of operations for each request, which takes most of the time for
a single line. LiteRT plans the whole network once, for fixed shapes. The file has a signature for
each of several row lengths; all share one set of weights. LiteRT cannot process strings, so
TensorFlow's graphs convert texts to rows, and the network's outputs to answers.
"""

import json
import os
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from macaron_tf.engines.session import STEPS, SessionModel
from macaron_tf.errors import UserError, needed
from macaron_tf.io.noise import silenced
from macaron_tf.io.paths import read_json

NETWORK, RECORD = "network.tflite", "network.json"
DECODER = "decode.tflite"  # see `lite_decoding`
_THREADS = 4  # at most; more threads do not speed up products of few rows
_UNKNOWN = -1e9  # outputs at padding; evaluation uses the same value
Arrays = Mapping[str, np.ndarray]


def signature_of(length: int) -> str:
    """The name of the signature for rows of `length` ids."""
    return f"length_{length}"


def keep_rows(record: pathlib.Path, rows: int) -> None:
    """Sets the most rows of a request in a record file."""
    kept = {**json.loads(record.read_text()), "rows": rows}
    record.write_text(json.dumps(kept, indent=2) + "\n")


class LiteNetwork:
    """A network that `write_lite` wrote, opened. It runs one row at a time, padded to a length.

    It is thread-safe; an interpreter serves one thread at a time.

    Args:
        folder: folder of the files `NETWORK` and `RECORD`.
        threads: threads of a matrix product; None: the CPUs of this process, at most 4.

    Attributes:
        kind: see `write_lite`.
        lengths: lengths of rows, ascending; a row is padded to the next one.
        most_rows: most rows of a request that `takes` accepts.
        inputs: shapes of one row's inputs by name, -1 for the length.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike, threads: int | None = None):
        with needed("LiteRT"):
            from ai_edge_litert.interpreter import Interpreter

        mend = "export the model again"
        folder = pathlib.Path(folder)
        record = read_json(
            folder / RECORD, mend=mend, kind=str, lengths=list, rows=int, inputs=dict, output=list
        )
        self.kind, self.lengths, self._output = (record[n] for n in ("kind", "lengths", "output"))
        self.most_rows: int = record["rows"]
        self.inputs: Mapping[str, list[int]] = record["inputs"]
        threads = threads or min(len(os.sched_getaffinity(0)), _THREADS)
        try:
            with silenced():
                self._interpreter = Interpreter(str(folder / NETWORK), num_threads=threads)
                self._interpreter.allocate_tensors()  # XNNPACK prints a notice
                self._runners = {
                    length: self._interpreter.get_signature_runner(signature_of(length))
                    for length in self.lengths
                }
        except (ValueError, RuntimeError) as error:
            raise UserError(f"{folder / NETWORK} is damaged ({error}): {mend}") from error
        self._lock = threading.Lock()

    @property
    def output(self) -> list[int | None]:
        """The shape of `OnePass.compute`'s outputs, None for an open dimension."""
        return [None, *(size if size >= 0 else None for size in self._output[1:])]

    def facts(self) -> dict[str, Any]:
        """Facts for the record of an export."""
        return {"kind": self.kind, "lengths": self.lengths, "rows": self.most_rows}

    def keep_most_rows(self, folder: pathlib.Path) -> None:
        """Writes `most_rows` into the record in a folder."""
        keep_rows(folder / RECORD, self.most_rows)

    def takes(self, rows: Mapping[str, np.ndarray]) -> bool:
        """Whether LiteRT should compute these rows: at most `most_rows`, none of them too long."""
        return 0 < len(rows["token_ids"]) <= self.most_rows and self.fits(rows).all()

    def fits(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Whether each row is short enough for `compute`, `(B,)`."""
        return _row_lengths(rows["token_ids"], self.inputs["token_ids"]) <= self.lengths[-1]

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the outputs of `OnePass.compute` in float32, for rows that all `fits`."""
        ids, shape = rows["token_ids"], self.inputs["token_ids"]
        length = ids.shape[shape.index(-1)]
        sizes = [length if size == -1 else size for size in self._output[1:]]
        computed = np.full((len(ids), *sizes), _UNKNOWN, np.float32)
        for row, own in enumerate(_row_lengths(ids, shape)):
            room = next(length for length in self.lengths if length >= own)
            given = {
                name: _fitted(rows[name][row], [room if n == -1 else n for n in sizes[1:]])
                for name, sizes in self.inputs.items()
            }
            with self._lock:
                found = self._runners[room](**given)["computed"][0]
            kept = tuple(map(slice, map(min, found.shape, computed.shape[1:])))
            computed[(row, *kept)] = found[kept]
        return computed


class LiteModel:
    """A task whose network runs in LiteRT, between two TensorFlow graphs.

    Args:
        network: the network in LiteRT.
        model: a SavedModel with the signatures `STEPS`, the graphs before and after the network.
        outputs: names of the outputs, in the order of an answer; None: sorted.
    """

    def __init__(
        self, network: LiteNetwork, model: SessionModel, outputs: Sequence[str] | None = None
    ):
        self.network, self._model = network, model
        self._outputs = outputs or sorted(model.signature_defs[STEPS[1]].outputs)

    def answer(self, inputs: Arrays) -> dict[str, np.ndarray] | None:
        """Returns the outputs of `OnePass.serve`, or None for too many or too long rows."""
        prepare, conclude = STEPS
        found = self._model.run(prepare, inputs)
        if not self.network.takes(found):
            return None
        kept = {name: value for name, value in found.items() if name not in self.network.inputs}
        answers = self._model.run(conclude, {"computed": self.network.compute(found), **kept})
        return {name: answers[name] for name in self._outputs}


def _row_lengths(ids: np.ndarray, shape: list[int]) -> np.ndarray:
    """The lengths `(B,)` of rows without their padding."""
    axis = shape.index(-1)
    others = tuple(n for n in range(1, ids.ndim) if n != axis)
    real = (ids != 0).any(axis=others) if others else ids != 0  # (B, L)
    return real.shape[1] - np.argmax(real[:, ::-1], axis=1)


def _fitted(row: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Cuts or pads a row with zeros to `sizes`, and makes it a batch of one."""
    given = np.zeros((1, *sizes), row.dtype)
    kept = tuple(map(slice, map(min, row.shape, sizes)))
    given[(0, *kept)] = row[kept]
    return given
