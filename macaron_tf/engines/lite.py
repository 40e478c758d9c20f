"""A task's network in LiteRT, TensorFlow's engine for small requests on CPUs.

TensorFlow's graph starts hundreds of operations for each request, which takes most of the time of a
single line; LiteRT plans the whole network once, for fixed shapes. The file holds the network for
rows of several lengths, as signatures that share one set of weights. LiteRT has no operations on
strings, so TensorFlow's graphs turn texts into rows, and the network's outputs into answers.
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
_THREADS = 4  # at most; products of few rows are no faster with more
_UNKNOWN = -1e9  # outputs past the end of a row; the value that evaluation uses
Arrays = Mapping[str, np.ndarray]


def signature_of(length: int) -> str:
    """The name of the signature for rows of a length."""
    return f"length_{length}"


def keep_rows(record: pathlib.Path, rows: int) -> None:
    """Changes the most rows of a request in a record."""
    kept = {**json.loads(record.read_text()), "rows": rows}
    record.write_text(json.dumps(kept, indent=2) + "\n")


class LiteNetwork:
    """An opened network of `write_lite`: it runs one row at a time, at the row's own length.

    Threads take turns, because an interpreter serves one at a time.

    Args:
        folder: holds `NETWORK` and `RECORD`.
        threads: threads of a matrix product; by default the CPUs of this process, at most 4.

    Attributes:
        kind: see `write_lite`.
        lengths: of the rows that it computes; shorter ones are padded.
        most_rows: the most rows of a request that it takes.
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
                self._interpreter.allocate_tensors()  # XNNPACK tells of itself
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
        """Whether LiteRT should compute these rows: they are few, and none is too long."""
        return 0 < len(rows["token_ids"]) <= self.most_rows and self.fits(rows).all()

    def fits(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Whether each row is short enough for `compute`, `(B,)`."""
        return _row_lengths(rows["token_ids"], self.inputs["token_ids"]) <= self.lengths[-1]

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """The outputs of `OnePass.compute`, float32, for rows that `takes` accepts."""
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
    """A task whose network runs in LiteRT, between two graphs of TensorFlow.

    Args:
        network: the network's half.
        model: a SavedModel with the signatures `STEPS`.
        outputs: names of the outputs, in the order of an answer; None = sorted.
    """

    def __init__(
        self, network: LiteNetwork, model: SessionModel, outputs: Sequence[str] | None = None
    ):
        self.network, self._model = network, model
        self._outputs = outputs or sorted(model.signature_defs[STEPS[1]].outputs)

    def answer(self, inputs: Arrays) -> dict[str, np.ndarray] | None:
        """The outputs of `OnePass.serve`; None for more or longer rows than LiteRT takes."""
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
    """A row cut or padded with zeros to `sizes`, as a batch of one."""
    given = np.zeros((1, *sizes), row.dtype)
    kept = tuple(map(slice, map(min, row.shape, sizes)))
    given[(0, *kept)] = row[kept]
    return given
